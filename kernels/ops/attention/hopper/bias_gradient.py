# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Gradient of the bias of biased attention on Hopper's tensor cores, in 16 bits, in Gluon.

This kernel recomputes the logits: a program owns a tile of the bias, which stays in shared
memory, and loops over the rows that share it. All runs give equal bits.
Strides, tensors, masks and letters are as in `forward.py`.
"""

from evofeed.kernels.ops.attention.hopper.layouts import copy_rows, copy_vector, copying
from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper
from evofeed.kernels.runtime.hopper_tiles import flat, float32, mma_layout, tiles_of


@gluon.jit
def _copy_bias(tile, BIAS, first_q, first_k, N, stride, PAD: gl.constexpr, WIDE: gl.constexpr):
    """Starts the copy of a bias tile; columns up to the stride may be read."""
    layout: gl.constexpr = copying(tile.shape[1], gl.num_warps())
    q = first_q + gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    k = first_k + gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))
    rows = q.to(gl.int64) if WIDE else q
    pointers = BIAS + (rows[:, None] * stride + k[None, :])
    if PAD:
        cp.async_copy_global_to_shared(
            tile, pointers, mask=(q < N)[:, None] & (k < stride)[None, :]
        )
    else:
        cp.async_copy_global_to_shared(tile, pointers)


@gluon.jit
def _sum(x, y):
    """x + y in x's type, then float32: three instructions for a pair of bfloat16."""
    x, y = gl.broadcast(x, y)
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 s, lo, hi; add.rn.bf16x2 s, $2, $3; shl.b32 lo, s, 16; "
            "and.b32 hi, s, 0xffff0000; mov.b32 $0, lo; mov.b32 $1, hi; }",
            "=f,=f,r,r", [x, y], dtype=gl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return x.to(gl.float32) + y.to(gl.float32)


@gluon.jit
def _start(bias, term, HAS_MASK: gl.constexpr):
    """Bias plus mask, the initial value of the logits."""
    return _sum(bias, term) if HAS_MASK else float32(bias)


@gluon.jit
def _copy_row(
    memory, slot, sources, strides, i, q0, k0, N, D: gl.constexpr, HAS_MASK: gl.constexpr,
    WIDE: gl.constexpr,
):  # fmt: skip
    """Starts the copies of one row for a tile of the bias gradient."""
    q_s, k_s, v_s, do_s, terms, lses, deltas = memory
    Q, K, V, DO, TERM, LSE, DELTA = sources
    qs_i, qs_n, os_i, os_n, ts_row, stats = strides
    i = i.to(gl.int64)
    copy_rows(q_s.index(slot), Q + i * qs_i, q0, N, qs_n, D, WIDE)
    copy_rows(k_s.index(slot), K + i * qs_i, k0, N, qs_n, D, WIDE)
    copy_rows(do_s.index(slot), DO + i * os_i, q0, N, os_n, D, WIDE)
    copy_rows(v_s.index(slot), V + i * qs_i, k0, N, qs_n, D, WIDE)
    copy_vector(lses.index(slot), LSE + i * stats, q0, N, 1)
    copy_vector(deltas.index(slot), DELTA + i * stats, q0, N, 1)
    if HAS_MASK:
        copy_vector(terms.index(slot), TERM + i * ts_row, k0, ts_row, 2)


@gluon.jit
def bias_gradient_kernel(
    Q, K, V, BIAS, TERM, FACTOR, DO, LSE, DELTA, PARTIAL_DB,
    qs_b, qs_i, qs_n, qs_h, os_b, os_i, os_n, os_h, bs_b, bs_h, bs_q, ts_row, R, H, N, factor,
    rows_each,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, HAS_MASK: gl.constexpr, PAD: gl.constexpr, WIDE: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """One tile of a head's bias gradient, summed over `rows_each` rows."""
    mma: gl.constexpr = mma_layout(BLOCK_Q, BLOCK_K, num_warps)
    of_query: gl.constexpr = gl.SliceLayout(1, mma)
    of_key: gl.constexpr = gl.SliceLayout(0, mma)
    tiles_k = gl.cdiv(N, BLOCK_K)
    q0 = (gl.program_id(0) // tiles_k) * BLOCK_Q
    k0 = (gl.program_id(0) % tiles_k) * BLOCK_K
    h = gl.program_id(1).to(gl.int64)
    splits = gl.cdiv(R, rows_each)
    b, split = (gl.program_id(2) // splits).to(gl.int64), gl.program_id(2) % splits
    start = (b * qs_b + h * qs_h) * 8
    Q += start
    K += start
    V += start
    DO += (b * os_b + h * os_h) * 8
    LSE += (b * R * H + h) * N
    DELTA += (b * R * H + h) * N
    qs_n, os_n, bs_q, ts_row = qs_n * 8, os_n * 8, bs_q * 8, ts_row * 8
    if HAS_MASK:
        TERM += b * R * ts_row
        FACTOR += b * R
    dtype: gl.constexpr = Q.dtype.element_ty
    q_s = tiles_of(dtype, STAGES, BLOCK_Q, BLOCK_D)
    do_s = tiles_of(dtype, STAGES, BLOCK_Q, BLOCK_D)
    k_s = tiles_of(dtype, STAGES, BLOCK_K, BLOCK_D)
    v_s = tiles_of(dtype, STAGES, BLOCK_K, BLOCK_D)
    terms = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_K], flat())
    lses = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_Q], flat())
    deltas = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_Q], flat())
    bias_tile = tiles_of(dtype, 1, BLOCK_Q, BLOCK_K).index(0)
    _copy_bias(bias_tile, BIAS + (b * bs_b + h * bs_h) * 8, q0, k0, N, bs_q, PAD, WIDE)
    first = split * rows_each
    last_row = gl.minimum(first + rows_each, R)
    db = gl.full([BLOCK_Q, BLOCK_K], 0.0, gl.float32, mma)
    zeros = gl.full([BLOCK_Q, BLOCK_K], 0.0, gl.float32, mma)
    if HAS_MASK:
        factor = gl.load(FACTOR + first)
    memory = (q_s, k_s, v_s, do_s, terms, lses, deltas)
    sources = (Q, K, V, DO, TERM, LSE, DELTA)
    strides = (qs_i * 8, qs_n, os_i * 8, os_n, ts_row, H * N)
    for stage in gl.static_range(STAGES - 1):
        if first + stage < last_row:
            _copy_row(memory, stage, sources, strides, first + stage, q0, k0, N, D, HAS_MASK, WIDE)
        cp.commit_group()
    slot = 0
    for row in range(first, last_row):
        cp.wait_group(STAGES - 2)
        barrier()
        hopper.fence_async_shared()
        next_row = row + STAGES - 1
        if next_row < last_row:
            free = (slot + STAGES - 1) % STAGES
            _copy_row(memory, free, sources, strides, next_row, q0, k0, N, D, HAS_MASK, WIDE)
        cp.commit_group()
        row_factor = factor
        term = 0.0
        if HAS_MASK:
            factor = gl.load(FACTOR + gl.minimum(row + 1, last_row - 1))
            term = terms.index(slot).load(of_key)[None, :]
        s = _start(bias_tile.load(mma), term, HAS_MASK)
        k_tile, v_tile = k_s.index(slot).permute((1, 0)), v_s.index(slot).permute((1, 0))
        s = hopper.warpgroup_mma(q_s.index(slot), k_tile, s, is_async=True)
        dp = hopper.warpgroup_mma(do_s.index(slot), v_tile, zeros, use_acc=False, is_async=True)
        lse = lses.index(slot).load(of_query)
        delta = deltas.index(slot).load(of_query)
        s = hopper.warpgroup_mma_wait(1, [s])
        x = s * row_factor - lse[:, None]
        if PAD:  # padded keys are not stored, but must not overflow
            x = gl.minimum(x, 100.0)
        p = gl.exp2(x)
        dp = hopper.warpgroup_mma_wait(0, [dp])
        db += p * (dp - delta[:, None])
        slot = (slot + 1) % STAGES
    slab = ((b * splits + split) * gl.num_programs(1) + h) * N * N
    q, k = q0 + gl.arange(0, BLOCK_Q, of_query), k0 + gl.arange(0, BLOCK_K, of_key)
    inside = (q < N)[:, None] & (k < N)[None, :]
    gl.store(PARTIAL_DB + slab + (q[:, None] * N + k[None, :]), db, mask=inside)
