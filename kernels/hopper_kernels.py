# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""softmax(scale * (q k^T + bias), masked) v on Hopper's tensor cores, in 16 bits, in Gluon.

What `biased_attention.py` computes, with the layouts chosen by hand. Heads are
narrow, so a score costs two products of 32 numbers and a dozen other
instructions: what counts is how few of these there are, and how far a tile's
numbers travel. Therefore

- the bias tile comes by asynchronous copy, a pair of its numbers gets the mask
  in one 16-bit addition, and the sum is the accumulator that q k^T adds to;
- one backward kernel makes dq, dk and dv of a row and head from a single
  computation of the logits: a key block's dk and dv stay in registers while all
  queries pass by, dq gathers in shared memory. There the log-sum-exp, delta and
  the mask are 16 more columns of the products: the tensor cores have time;
- the bias gradient alone recomputes the logits: its program owns a tile of the
  bias and walks over the rows that share it. No atomics, equal bits every run.

All strides are in units of 8 numbers: copies are 16 bytes wide. Tensors, masks
and letters are as in `biased_attention.py`; N queries and N keys.
"""

from evofeed.kernels.backend import barrier, cp, gl, gluon, hopper

__all__ = ["backward_kernel", "bias_gradient_kernel", "forward_kernel"]


@gluon.constexpr_function
def _mma(ROWS, COLS, warps):
    """Layout of an accumulator: warps down the rows first, 16 rows each."""
    down = min(warps, ROWS // 16)
    across = warps // down
    return gl.NVMMADistributedLayout([3, 0], [down, across], [16, COLS // across, 16])


@gluon.constexpr_function
def _copying(COLS, warps):
    """Layout in which a tile is copied: 16 bytes a thread."""
    per_row = min(COLS // 8, 8)
    return gl.BlockedLayout([1, 8], [32 // per_row, per_row], [warps, 1], [1, 0])


@gluon.constexpr_function
def _line(size, warps):
    """Layout in which a line is copied, `size` numbers a thread."""
    return gl.BlockedLayout([size], [32], [warps], [0])


@gluon.constexpr_function
def _flat():
    return gl.SwizzledSharedLayout(1, 1, 1, [0])


@gluon.jit
def _tiles(dtype: gl.constexpr, COUNT: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Shared memory for `COUNT` tiles that tensor cores read."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLS], dtype)
    return gl.allocate_shared_memory(dtype, [COUNT, ROWS, COLS], layout)


@gluon.jit
def _copy_rows(tile, PTR, first, N, stride, D: gl.constexpr):
    """Starts the copy of rows of D numbers into a tile; what lies outside is 0."""
    layout: gl.constexpr = _copying(tile.shape[1], gl.num_warps())
    rows = first + gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    d = gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))
    inside = (rows < N)[:, None] & (d < D)[None, :]
    cp.async_copy_global_to_shared(tile, PTR + (rows[:, None] * stride + d[None, :]), mask=inside)


@gluon.jit
def _copy_bias(tile, BIAS, first_q, first_k, N, stride, PAD: gl.constexpr):
    """Starts the copy of a bias tile; columns up to the stride may be read."""
    layout: gl.constexpr = _copying(tile.shape[1], gl.num_warps())
    q = first_q + gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    k = first_k + gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))
    at = BIAS + (q[:, None] * stride + k[None, :])
    if PAD:
        cp.async_copy_global_to_shared(tile, at, mask=(q < N)[:, None] & (k < stride)[None, :])
    else:
        cp.async_copy_global_to_shared(tile, at)


@gluon.jit
def _copy_line(line, PTR, first, N, PER: gl.constexpr):
    """Starts the copy of a line of numbers, `PER` a thread."""
    n = first + gl.arange(0, line.shape[0], _line(PER, gl.num_warps()))
    cp.async_copy_global_to_shared(line, PTR + n, mask=n < N)


@gluon.jit
def _float32(x):
    """x in float32; a pair of bfloat16 costs two instructions."""
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 lo, hi; shl.b32 lo, $2, 16; and.b32 hi, $2, 0xffff0000; "
            "mov.b32 $0, lo; mov.b32 $1, hi; }",
            "=f,=f,r", [x], dtype=gl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return x.to(gl.float32)


@gluon.jit
def _sum(x, y):
    """x + y in x's type and then float32: a pair of bfloat16 costs three instructions."""
    x, y = gl.broadcast(x, y)
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 s, lo, hi; add.rn.bf16x2 s, $2, $3; shl.b32 lo, s, 16; "
            "and.b32 hi, s, 0xffff0000; mov.b32 $0, lo; mov.b32 $1, hi; }",
            "=f,=f,r,r", [x, y], dtype=gl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return x.to(gl.float32) + y.to(gl.float32)


@gluon.jit
def _start(bias, term, HAS_BIAS: gl.constexpr, HAS_MASK: gl.constexpr):
    """Bias (or zeros) plus mask: what the product of q and k is added to."""
    if HAS_BIAS and HAS_MASK:
        start = _sum(bias, term)
    elif HAS_BIAS:
        start = _float32(bias)
    elif HAS_MASK:
        start = bias + _float32(term)
    else:
        start = bias
    return start


@gluon.jit
def forward_kernel(
    Q, K, V, BIAS, TERM, FACTOR, OUT, LSE,
    qs_b, qs_i, qs_n, qs_h, os_b, os_i, os_n, os_h, bs_b, bs_h, bs_q, ts_row, R, H, N, factor,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    TILES: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_MASK: gl.constexpr, PAD: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """The output of one row and head, and the log-sum-exp of its logits.

    All its keys and values stay in shared memory: TILES tiles of BLOCK_K.
    """
    mma: gl.constexpr = _mma(BLOCK_Q, BLOCK_K, num_warps)
    out_mma: gl.constexpr = _mma(BLOCK_Q, BLOCK_D, num_warps)
    row, h = gl.program_id(0), gl.program_id(1)
    b, i = (row // R).to(gl.int64), (row % R).to(gl.int64)
    start = (b * qs_b + i * qs_i + h * qs_h) * 8
    qs_n, os_n, bs_q, ts_row = qs_n * 8, os_n * 8, bs_q * 8, ts_row * 8
    Q += start
    K += start
    V += start
    OUT += (b * os_b + i * os_i + h * os_h) * 8
    LSE += (row.to(gl.int64) * H + h) * N
    dtype: gl.constexpr = Q.dtype.element_ty
    q_tile = _tiles(dtype, 1, BLOCK_Q, BLOCK_D).index(0)
    k_tiles = _tiles(dtype, TILES, BLOCK_K, BLOCK_D)
    v_tiles = _tiles(dtype, TILES, BLOCK_K, BLOCK_D)
    _copy_rows(q_tile, Q, 0, N, qs_n, D)
    for each in gl.static_range(TILES):
        _copy_rows(k_tiles.index(each), K, each * BLOCK_K, N, qs_n, D)
        _copy_rows(v_tiles.index(each), V, each * BLOCK_K, N, qs_n, D)
    if HAS_MASK:
        factor = gl.load(FACTOR + row)
        TERM += row.to(gl.int64) * ts_row
        terms = gl.allocate_shared_memory(dtype, [TILES, BLOCK_K], _flat())
        for each in gl.static_range(TILES):
            _copy_line(terms.index(each), TERM, each * BLOCK_K, ts_row, 2)
    if HAS_BIAS:
        BIAS += (b * bs_b + h * bs_h) * 8
        bias_tiles = _tiles(dtype, 2, BLOCK_Q, BLOCK_K)
        _copy_bias(bias_tiles.index(0), BIAS, 0, 0, N, bs_q, PAD)
    cp.commit_group()
    turn = 0
    for first in range(0, N, BLOCK_Q):
        cp.wait_group(0)
        barrier()
        hopper.fence_async_shared()
        q = q_tile.load(gl.DotOperandLayout(0, mma, 2))
        barrier()
        _copy_rows(q_tile, Q, first + BLOCK_Q, N, qs_n, D)
        if not HAS_BIAS:  # else it goes with the next bias tile
            cp.commit_group()
        # finite, so that a factor of 0 makes it 0
        top = gl.full([BLOCK_Q], -1e30, gl.float32, gl.SliceLayout(1, mma))
        total = gl.full([BLOCK_Q], 0.0, gl.float32, gl.SliceLayout(1, mma))
        acc = gl.full([BLOCK_Q, BLOCK_D], 0.0, gl.float32, out_mma)
        acc = hopper.warpgroup_mma_init(acc)
        for n in range(TILES):
            s = gl.full([BLOCK_Q, BLOCK_K], 0.0, gl.float32, mma)
            term = 0.0
            if HAS_BIAS:
                cp.wait_group(0)
                barrier()
                last = n == TILES - 1
                next_q = gl.where(last, first + BLOCK_Q, first)
                if next_q < N:
                    next_k = gl.where(last, 0, (n + 1) * BLOCK_K)
                    _copy_bias(bias_tiles.index(1 - turn), BIAS, next_q, next_k, N, bs_q, PAD)
                cp.commit_group()
                s = bias_tiles.index(turn).load(mma)
                turn = 1 - turn
            if HAS_MASK:
                term = terms.index(n).load(gl.SliceLayout(0, mma))[None, :]
            s = _start(s, term, HAS_BIAS, HAS_MASK)
            s = hopper.warpgroup_mma(q, k_tiles.index(n).permute((1, 0)), s, is_async=True)
            s, acc = hopper.warpgroup_mma_wait(0, [s, acc])
            if PAD:
                inside = n * BLOCK_K + gl.arange(0, BLOCK_K, gl.SliceLayout(0, mma)) < N
                s = gl.where(inside[None, :], s, -1e30)
            new_top = gl.maximum(top, gl.max(s, 1))
            p = gl.exp2(s * factor - (new_top * factor)[:, None])
            if PAD:
                p = gl.where(inside[None, :], p, 0.0)
            shrink = gl.exp2((top - new_top) * factor)
            total = total * shrink + gl.sum(p, 1)
            top = new_top
            acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, out_mma))[:, None]
            p = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, out_mma, 2))
            acc = hopper.warpgroup_mma(p, v_tiles.index(n), acc, is_async=True)
        acc = hopper.warpgroup_mma_wait(0, [acc])
        share = gl.convert_layout(1.0 / total, gl.SliceLayout(1, out_mma))
        _put(OUT, acc * share[:, None], first, N, os_n, out_mma, D)
        rows = first + gl.arange(0, BLOCK_Q, gl.SliceLayout(1, mma))
        gl.store(LSE + rows, top * factor + gl.log2(total), mask=rows < N)


@gluon.jit
def _put(PTR, x, first, N, stride, layout: gl.constexpr, D: gl.constexpr):
    """Stores rows of D numbers."""
    rows = first + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))
    d = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))
    inside = (rows < N)[:, None] & (d < D)[None, :]
    to = PTR + (rows[:, None] * stride + d[None, :])
    gl.store(to, x.to(PTR.dtype.element_ty), mask=inside)


@gluon.jit
def _store_extra(tile, LSE, DELTA, first, N, factor):
    """16 columns of a query tile that the keys' extra columns are multiplied with.

    0 to 2: -lse / factor, the sum of three 16-bit numbers; 3: one; 4 to 6: -delta likewise.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [gl.num_warps(), 1], [1, 0])
    dtype: gl.constexpr = tile.dtype
    q = first + gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    c = gl.arange(0, 16, gl.SliceLayout(0, layout))[None, :]
    lse = gl.load(LSE + q, mask=q < N, other=0.0)
    delta = -gl.load(DELTA + q, mask=q < N, other=0.0)
    lse = gl.where(factor == 0.0, 0.0, -lse / factor)
    x = gl.where(c < 4, lse[:, None], delta[:, None])
    high = x.to(dtype)
    rest = x - high.to(gl.float32)
    middle = rest.to(dtype)
    low = (rest - middle.to(gl.float32)).to(dtype)
    one = gl.full([1, 16], 1.0, gl.float32, layout).to(dtype)
    part = gl.where(c % 4 == 0, high, gl.where(c % 4 == 1, middle, low))
    part = gl.where(c == 3, one, part)
    zero = gl.full([1, 16], 0.0, gl.float32, layout).to(dtype)
    tile.store(gl.where(c < 7, part, zero))


@gluon.jit
def _key_extra(
    TERM, first, ts_row, ROWS: gl.constexpr, FROM: gl.constexpr, layout: gl.constexpr,
    dtype: gl.constexpr, HAS_MASK: gl.constexpr,
):  # fmt: skip
    """Ones in the three columns from `FROM`, and the mask in the next."""
    c = gl.arange(0, 16, gl.SliceLayout(0, layout))[None, :]
    k = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    x = gl.where((c >= FROM) & (c < FROM + 3), 1.0, 0.0).to(dtype)
    x, _ = gl.broadcast(x, k[:, None])
    if HAS_MASK:
        term = gl.load(TERM + k, mask=k < ts_row, other=0.0)
        x = gl.where(c == FROM + 3, term[:, None], x)
    return x


@gluon.jit
def backward_kernel(
    Q, K, V, BIAS, TERM, FACTOR, DO, LSE, DELTA, DQ, DK, DV,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h,
    bs_b, bs_h, bs_q, ts_row, R, H, N, factor, scale,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    Q_TILES: gl.constexpr, K_TILES: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_MASK: gl.constexpr,
    PAD: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """dq, dk and dv of one row and head. Logits lie keys first, as dk and dv do."""
    mma: gl.constexpr = _mma(BLOCK_K, BLOCK_Q, num_warps)
    k_mma: gl.constexpr = _mma(BLOCK_K, BLOCK_D, num_warps)
    q_mma: gl.constexpr = _mma(BLOCK_Q, BLOCK_D, num_warps)
    operand: gl.constexpr = gl.DotOperandLayout(0, k_mma, 2)
    of_logits: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    of_key: gl.constexpr = gl.SliceLayout(1, mma)
    row, h = gl.program_id(0), gl.program_id(1)
    b, i = (row // R).to(gl.int64), (row % R).to(gl.int64)
    start = (b * qs_b + i * qs_i + h * qs_h) * 8
    to = (b * gs_b + i * gs_i + h * gs_h) * 8
    qs_n, gs_n, os_n, bs_q, ts_row = qs_n * 8, gs_n * 8, os_n * 8, bs_q * 8, ts_row * 8
    Q += start
    K += start
    V += start
    DO += (b * os_b + i * os_i + h * os_h) * 8
    LSE += (row.to(gl.int64) * H + h) * N
    DELTA += (row.to(gl.int64) * H + h) * N
    dtype: gl.constexpr = Q.dtype.element_ty
    q_tiles = _tiles(dtype, Q_TILES, BLOCK_Q, BLOCK_D)
    do_tiles = _tiles(dtype, Q_TILES, BLOCK_Q, BLOCK_D)
    k_tiles = _tiles(dtype, 2, BLOCK_K, BLOCK_D)
    v_tiles = _tiles(dtype, 2, BLOCK_K, BLOCK_D)
    ds_tile = _tiles(dtype, 1, BLOCK_K, BLOCK_Q).index(0)
    extra_tiles = _tiles(dtype, Q_TILES, BLOCK_Q, 16)
    swizzled: gl.constexpr = gl.SwizzledSharedLayout(8, 1, BLOCK_D // 8, [1, 0])
    dq_tiles = gl.allocate_shared_memory(gl.float32, [Q_TILES, BLOCK_Q, BLOCK_D], swizzled)
    _copy_rows(k_tiles.index(0), K, 0, N, qs_n, D)
    _copy_rows(v_tiles.index(0), V, 0, N, qs_n, D)
    for n in gl.static_range(Q_TILES):
        _copy_rows(q_tiles.index(n), Q, n * BLOCK_Q, N, qs_n, D)
        _copy_rows(do_tiles.index(n), DO, n * BLOCK_Q, N, os_n, D)
    if HAS_BIAS:
        BIAS += (b * bs_b + h * bs_h) * 8
        bias_tiles = _tiles(dtype, 2, BLOCK_Q, BLOCK_K)
        _copy_bias(bias_tiles.index(0), BIAS, 0, 0, N, bs_q, PAD)
    cp.commit_group()
    shift = 0.0
    if HAS_MASK:
        factor = gl.load(FACTOR + row)  # where it is 0, all logits are, and p is 1 / N
        shift = gl.where(factor == 0.0, -gl.log2(N.to(gl.float32)), 0.0)
        TERM += row.to(gl.int64) * ts_row
    for n in gl.static_range(Q_TILES):
        _store_extra(extra_tiles.index(n), LSE, DELTA, n * BLOCK_Q, N, factor)
    hopper.fence_async_shared()
    turn = 0
    for kb in range(K_TILES):
        cp.wait_group(0)
        barrier()
        hopper.fence_async_shared()
        k_tile, v_tile = k_tiles.index(kb % 2), v_tiles.index(kb % 2)
        _copy_rows(k_tiles.index((kb + 1) % 2), K, (kb + 1) * BLOCK_K, N, qs_n, D)
        _copy_rows(v_tiles.index((kb + 1) % 2), V, (kb + 1) * BLOCK_K, N, qs_n, D)
        cp.commit_group()
        keys = kb * BLOCK_K + gl.arange(0, BLOCK_K, of_key)
        key_s = _key_extra(TERM, kb * BLOCK_K, ts_row, BLOCK_K, 0, of_logits, dtype, HAS_MASK)
        key_d = _key_extra(TERM, kb * BLOCK_K, ts_row, BLOCK_K, 4, of_logits, dtype, False)
        dk = hopper.warpgroup_mma_init(gl.full([BLOCK_K, BLOCK_D], 0.0, gl.float32, k_mma))
        dv = hopper.warpgroup_mma_init(gl.full([BLOCK_K, BLOCK_D], 0.0, gl.float32, k_mma))
        for qb in range(Q_TILES):
            zeros = gl.full([BLOCK_K, BLOCK_Q], 0.0, gl.float32, mma)
            s = zeros
            if HAS_BIAS:
                if qb > 0:
                    cp.wait_group(0)
                    barrier()
                last = qb == Q_TILES - 1
                next_k = gl.where(last, kb + 1, kb)
                if next_k < K_TILES:
                    next_q = gl.where(last, 0, (qb + 1) * BLOCK_Q)
                    to_k = next_k * BLOCK_K
                    _copy_bias(bias_tiles.index(1 - turn), BIAS, next_q, to_k, N, bs_q, PAD)
                cp.commit_group()
                s = bias_tiles.index(turn).permute((1, 0)).load(mma)
                turn = 1 - turn
            s = _start(s, s, HAS_BIAS, False)
            extra = extra_tiles.index(qb).permute((1, 0))
            q_tile, do_tile = q_tiles.index(qb), do_tiles.index(qb)
            s = hopper.warpgroup_mma(k_tile, q_tile.permute((1, 0)), s, is_async=True)
            s = hopper.warpgroup_mma(key_s, extra, s, is_async=True)
            dp = hopper.warpgroup_mma(
                v_tile, do_tile.permute((1, 0)), zeros, use_acc=False, is_async=True
            )
            dp = hopper.warpgroup_mma(key_d, extra, dp, is_async=True)
            s = hopper.warpgroup_mma_wait(2, [s])
            x = s * factor + shift
            if PAD:
                x = gl.where((keys < N)[:, None], x, float("-inf"))
            p = gl.exp2(x)
            p16 = gl.convert_layout(p.to(dtype), operand)
            dv = hopper.warpgroup_mma(p16, do_tile, dv, is_async=True)
            dp = hopper.warpgroup_mma_wait(1, [dp])
            ds = (p * dp).to(dtype)
            ds_tile.store(ds)
            dq = gl.full([BLOCK_Q, BLOCK_D], 0.0, gl.float32, q_mma)
            if kb > 0:
                dq = dq_tiles.index(qb).load(q_mma)
            hopper.fence_async_shared()
            barrier()
            ds16 = gl.convert_layout(ds, operand)
            dk = hopper.warpgroup_mma(ds16, q_tile, dk, is_async=True)
            dq = hopper.warpgroup_mma(ds_tile.permute((1, 0)), k_tile, dq, is_async=True)
            dv, dk, dq, _, _ = hopper.warpgroup_mma_wait(0, [dv, dk, dq, p16, ds16])
            dv, dk = hopper.warpgroup_mma_init(dv), hopper.warpgroup_mma_init(dk)
            dq_tiles.index(qb).store(dq)
        dk, dv = hopper.warpgroup_mma_wait(0, [dk, dv])
        _put(DK + to, dk * scale, kb * BLOCK_K, N, gs_n, k_mma, D)
        _put(DV + to, dv, kb * BLOCK_K, N, gs_n, k_mma, D)
    for n in gl.static_range(Q_TILES):
        _put(DQ + to, dq_tiles.index(n).load(q_mma) * scale, n * BLOCK_Q, N, gs_n, q_mma, D)


@gluon.jit
def _copy_row(
    memory, slot, sources, strides, i, q0, k0, N, D: gl.constexpr, HAS_MASK: gl.constexpr
):
    """Starts the copy of what one row brings to a tile of the bias gradient."""
    q_s, k_s, v_s, do_s, terms, lses, deltas = memory
    Q, K, V, DO, TERM, LSE, DELTA = sources
    qs_i, qs_n, os_i, os_n, ts_row, stats = strides
    i = i.to(gl.int64)
    _copy_rows(q_s.index(slot), Q + i * qs_i, q0, N, qs_n, D)
    _copy_rows(k_s.index(slot), K + i * qs_i, k0, N, qs_n, D)
    _copy_rows(do_s.index(slot), DO + i * os_i, q0, N, os_n, D)
    _copy_rows(v_s.index(slot), V + i * qs_i, k0, N, qs_n, D)
    _copy_line(lses.index(slot), LSE + i * stats, q0, N, 1)
    _copy_line(deltas.index(slot), DELTA + i * stats, q0, N, 1)
    if HAS_MASK:
        _copy_line(terms.index(slot), TERM + i * ts_row, k0, ts_row, 2)


@gluon.jit
def bias_gradient_kernel(
    Q, K, V, BIAS, TERM, FACTOR, DO, LSE, DELTA, PARTIAL_DB,
    qs_b, qs_i, qs_n, qs_h, os_b, os_i, os_n, os_h, bs_b, bs_h, bs_q, ts_row, R, H, N, factor,
    rows_each,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, HAS_MASK: gl.constexpr, PAD: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The share of `rows_each` rows in one tile of the bias gradient, of one head."""
    mma: gl.constexpr = _mma(BLOCK_Q, BLOCK_K, num_warps)
    of_query: gl.constexpr = gl.SliceLayout(1, mma)
    of_key: gl.constexpr = gl.SliceLayout(0, mma)
    tiles_k = gl.cdiv(N, BLOCK_K)
    q0 = (gl.program_id(0) // tiles_k) * BLOCK_Q
    k0 = (gl.program_id(0) % tiles_k) * BLOCK_K
    h = gl.program_id(1)
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
    q_s = _tiles(dtype, STAGES, BLOCK_Q, BLOCK_D)
    do_s = _tiles(dtype, STAGES, BLOCK_Q, BLOCK_D)
    k_s = _tiles(dtype, STAGES, BLOCK_K, BLOCK_D)
    v_s = _tiles(dtype, STAGES, BLOCK_K, BLOCK_D)
    terms = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_K], _flat())
    lses = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_Q], _flat())
    deltas = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_Q], _flat())
    bias_tile = _tiles(dtype, 1, BLOCK_Q, BLOCK_K).index(0)
    _copy_bias(bias_tile, BIAS + (b * bs_b + h * bs_h) * 8, q0, k0, N, bs_q, PAD)
    first = split * rows_each
    end = gl.minimum(first + rows_each, R)
    db = gl.full([BLOCK_Q, BLOCK_K], 0.0, gl.float32, mma)
    zeros = gl.full([BLOCK_Q, BLOCK_K], 0.0, gl.float32, mma)
    if HAS_MASK:
        factor = gl.load(FACTOR + first)
    memory = (q_s, k_s, v_s, do_s, terms, lses, deltas)
    sources = (Q, K, V, DO, TERM, LSE, DELTA)
    strides = (qs_i * 8, qs_n, os_i * 8, os_n, ts_row, H * N)
    for stage in gl.static_range(STAGES - 1):
        if first + stage < end:
            _copy_row(memory, stage, sources, strides, first + stage, q0, k0, N, D, HAS_MASK)
        cp.commit_group()
    slot = 0
    for each in range(first, end):
        cp.wait_group(STAGES - 2)
        barrier()
        hopper.fence_async_shared()
        ahead = each + STAGES - 1
        if ahead < end:
            free = (slot + STAGES - 1) % STAGES
            _copy_row(memory, free, sources, strides, ahead, q0, k0, N, D, HAS_MASK)
        cp.commit_group()
        now = factor
        term = 0.0
        if HAS_MASK:
            factor = gl.load(FACTOR + gl.minimum(each + 1, end - 1))
            term = terms.index(slot).load(of_key)[None, :]
        s = _start(bias_tile.load(mma), term, True, HAS_MASK)
        k_tile, v_tile = k_s.index(slot).permute((1, 0)), v_s.index(slot).permute((1, 0))
        s = hopper.warpgroup_mma(q_s.index(slot), k_tile, s, is_async=True)
        dp = hopper.warpgroup_mma(do_s.index(slot), v_tile, zeros, use_acc=False, is_async=True)
        lse = lses.index(slot).load(of_query)
        delta = deltas.index(slot).load(of_query)
        s = hopper.warpgroup_mma_wait(1, [s])
        x = s * now - lse[:, None]
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
