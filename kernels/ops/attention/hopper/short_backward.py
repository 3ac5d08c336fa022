# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Gradients of attention over few positions and without a bias on Hopper's tensor cores, in Gluon.

What `backward.py` computes, for rows of 129 to 144 positions (`short.py`). With log-sum-exp and
delta known, pairs of a query and a key are independent: 128 x 128 of them are as in `backward.py`,
with all queries at once; the later queries are a tile of 16 beside them, and the later keys one
of 16 that `mma_v2` multiplies, 32 queries a warp. Strides, tensors, masks and letters are as in
`forward.py`.
"""

from evofeed.kernels.ops.attention.hopper.backward import key_extra, store_extra
from evofeed.kernels.ops.attention.hopper.layouts import copy_rows, put
from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper, mma_v2
from evofeed.kernels.runtime.hopper_tiles import flat, mma_layout, tiles_of


@gluon.jit
def _copy_line(line, PTR, first, N):
    """Starts the copy of a line of numbers, one a thread."""
    n = first + gl.arange(0, line.shape[0], gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    cp.async_copy_global_to_shared(line, PTR + n, mask=n < N)


@gluon.jit
def _numbers_of(COUNT: gl.constexpr):
    """Shared memory for so many numbers of float32."""
    return gl.allocate_shared_memory(gl.float32, [COUNT], flat())


@gluon.jit
def short_backward_kernel(
    Q, K, V, TERM, FACTOR, DO, LSE, DELTA, DQ, DK, DV,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h, ts_row, R, H, N,
    factor, scale,
    D: gl.constexpr, BLOCK_D: gl.constexpr, HAS_MASK: gl.constexpr, WIDE: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """dq, dk and dv of one row and head, of 128 positions and up to 16 more."""
    BLOCK_K: gl.constexpr = 64
    mma: gl.constexpr = mma_layout(BLOCK_K, 128, num_warps)
    t_mma: gl.constexpr = mma_layout(BLOCK_K, 16, num_warps)
    k_mma: gl.constexpr = mma_layout(BLOCK_K, BLOCK_D, num_warps)
    q_mma: gl.constexpr = mma_layout(128, BLOCK_D, num_warps)
    v2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, num_warps], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, v2, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, v2, 2)
    operand: gl.constexpr = gl.DotOperandLayout(0, k_mma, 2)
    of_logits: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    of_tail: gl.constexpr = gl.DotOperandLayout(0, t_mma, 2)
    of_q: gl.constexpr = gl.SliceLayout(0, v2)
    of_k: gl.constexpr = gl.SliceLayout(1, v2)
    row, h = gl.program_id(0), gl.program_id(1).to(gl.int64)
    b, i = (row // R).to(gl.int64), (row % R).to(gl.int64)
    start = (b * qs_b + i * qs_i + h * qs_h) * 8
    to = (b * gs_b + i * gs_i + h * gs_h) * 8
    qs_n, gs_n, os_n, ts_row = qs_n * 8, gs_n * 8, os_n * 8, ts_row * 8
    Q += start
    K += start
    V += start
    DO += (b * os_b + i * os_i + h * os_h) * 8
    LSE += (row.to(gl.int64) * H + h) * N
    DELTA += (row.to(gl.int64) * H + h) * N
    dtype: gl.constexpr = Q.dtype.element_ty
    q_tile = tiles_of(dtype, 1, 128, BLOCK_D).index(0)
    do_tile = tiles_of(dtype, 1, 128, BLOCK_D).index(0)
    k_tiles, v_tiles = tiles_of(dtype, 2, BLOCK_K, BLOCK_D), tiles_of(dtype, 2, BLOCK_K, BLOCK_D)
    late = tiles_of(dtype, 4, 16, BLOCK_D)  # q, do, k, v
    extra, late_extra = tiles_of(dtype, 1, 128, 16).index(0), tiles_of(dtype, 1, 16, 16).index(0)
    ds_tile = tiles_of(dtype, 1, BLOCK_K, 128).index(0)
    late_ds = tiles_of(dtype, 1, BLOCK_K, 16).index(0)
    key_ds, corner_ds = tiles_of(dtype, 1, 16, 128).index(0), tiles_of(dtype, 1, 16, 16).index(0)
    lses, deltas, late_lses, late_deltas = (
        _numbers_of(128), _numbers_of(128), _numbers_of(16), _numbers_of(16)
    )  # fmt: skip
    _copy_line(lses, LSE, 0, N)
    _copy_line(deltas, DELTA, 0, N)
    _copy_line(late_lses, LSE, 128, N)
    _copy_line(late_deltas, DELTA, 128, N)
    copy_rows(q_tile, Q, 0, N, qs_n, D, WIDE)
    copy_rows(do_tile, DO, 0, N, os_n, D, WIDE)
    for n in gl.static_range(2):
        copy_rows(k_tiles.index(n), K, n * BLOCK_K, N, qs_n, D, WIDE)
        copy_rows(v_tiles.index(n), V, n * BLOCK_K, N, qs_n, D, WIDE)
    copy_rows(late.index(0), Q, 128, N, qs_n, D, WIDE)
    copy_rows(late.index(1), DO, 128, N, os_n, D, WIDE)
    copy_rows(late.index(2), K, 128, N, qs_n, D, WIDE)
    copy_rows(late.index(3), V, 128, N, qs_n, D, WIDE)
    cp.commit_group()
    if HAS_MASK:
        factor = gl.load(FACTOR + row)
        TERM += row.to(gl.int64) * ts_row
    cp.wait_group(0)
    barrier()
    inverse = gl.where(factor == 0.0, 0.0, 1.0 / factor)
    store_extra(extra, lses, deltas, inverse)
    store_extra(late_extra, late_lses, late_deltas, inverse)
    shift = gl.where(factor == 0.0, -gl.log2(N.to(gl.float32)), 0.0)
    hopper.fence_async_shared()
    barrier()
    q_late, do_late = late.index(0), late.index(1)
    dq = gl.full([128, BLOCK_D], 0.0, gl.float32, q_mma)
    late_dq = gl.full([16, BLOCK_D], 0.0, gl.float32, v2)
    zeros = gl.full([BLOCK_K, 128], 0.0, gl.float32, mma)
    late_zeros = gl.full([BLOCK_K, 16], 0.0, gl.float32, t_mma)
    for kb in gl.static_range(2):
        k_tile, v_tile = k_tiles.index(kb), v_tiles.index(kb)
        term, late_term = 0.0, 0.0
        if HAS_MASK:
            keys = kb * BLOCK_K + gl.arange(0, BLOCK_K, gl.SliceLayout(1, of_logits))
            term = gl.load(TERM + keys)
            late_term = gl.convert_layout(term, gl.SliceLayout(1, of_tail))
        key_s = key_extra(term, BLOCK_K, 0, of_logits, dtype, HAS_MASK)
        key_d = key_extra(term, BLOCK_K, 4, of_logits, dtype, False)
        late_key_s = key_extra(late_term, BLOCK_K, 0, of_tail, dtype, HAS_MASK)
        late_key_d = key_extra(late_term, BLOCK_K, 4, of_tail, dtype, False)
        queries, outputs = q_tile.permute((1, 0)), do_tile.permute((1, 0))
        late_queries, late_outputs = q_late.permute((1, 0)), do_late.permute((1, 0))
        columns, late_columns = extra.permute((1, 0)), late_extra.permute((1, 0))
        s = hopper.warpgroup_mma(k_tile, queries, zeros, use_acc=False, is_async=True)
        s = hopper.warpgroup_mma(key_s, columns, s, is_async=True)
        dp = hopper.warpgroup_mma(v_tile, outputs, zeros, use_acc=False, is_async=True)
        dp = hopper.warpgroup_mma(key_d, columns, dp, is_async=True)
        late_s = hopper.warpgroup_mma(
            k_tile, late_queries, late_zeros, use_acc=False, is_async=True
        )
        late_s = hopper.warpgroup_mma(late_key_s, late_columns, late_s, is_async=True)
        late_dp = hopper.warpgroup_mma(
            v_tile, late_outputs, late_zeros, use_acc=False, is_async=True
        )
        late_dp = hopper.warpgroup_mma(late_key_d, late_columns, late_dp, is_async=True)
        s, key_s = hopper.warpgroup_mma_wait(6, [s, key_s])
        p = gl.exp2(s * factor + shift)
        p16 = gl.convert_layout(p.to(dtype), operand)
        dp, late_s, late_dp, key_d, late_key_s, late_key_d = hopper.warpgroup_mma_wait(
            0, [dp, late_s, late_dp, key_d, late_key_s, late_key_d]
        )
        ds = (p * dp).to(dtype)
        ds_tile.store(ds)
        late_p = gl.exp2(late_s * factor + shift)
        late_p16 = gl.convert_layout(late_p.to(dtype), operand)
        late_d = (late_p * late_dp).to(dtype)
        late_ds.store(late_d)
        ds16, late_ds16 = gl.convert_layout(ds, operand), gl.convert_layout(late_d, operand)
        hopper.fence_async_shared()
        barrier()
        dv = gl.full([BLOCK_K, BLOCK_D], 0.0, gl.float32, k_mma)
        dk = gl.full([BLOCK_K, BLOCK_D], 0.0, gl.float32, k_mma)
        dv = hopper.warpgroup_mma(p16, do_tile, dv, use_acc=False, is_async=True)
        dv = hopper.warpgroup_mma(late_p16, do_late, dv, is_async=True)
        dk = hopper.warpgroup_mma(ds16, q_tile, dk, use_acc=False, is_async=True)
        dk = hopper.warpgroup_mma(late_ds16, q_late, dk, is_async=True)
        dq = hopper.warpgroup_mma(ds_tile.permute((1, 0)), k_tile, dq, is_async=True)
        dv, dk, dq, p16, late_p16, ds16, late_ds16 = hopper.warpgroup_mma_wait(
            0, [dv, dk, dq, p16, late_p16, ds16, late_ds16]
        )
        late_dq = mma_v2(late_ds.permute((1, 0)).load(left), k_tile.load(right), late_dq)
        put(DK + to, dk * scale, kb * BLOCK_K, N, gs_n, k_mma, D, WIDE)
        put(DV + to, dv, kb * BLOCK_K, N, gs_n, k_mma, D, WIDE)
        barrier()  # all have read the tiles of ds
    k_late, v_late = late.index(2).load(left), late.index(3).load(left)
    keys = 128 + gl.arange(0, 16, of_k)
    add = gl.where(keys < N, 0.0, -1e30)
    if HAS_MASK:
        add += gl.load(TERM + keys, mask=keys < N, other=0.0).to(gl.float32)
    none = gl.full([16, 128], 0.0, gl.float32, v2)
    corner = gl.full([16, 16], 0.0, gl.float32, v2)
    s = mma_v2(k_late, q_tile.permute((1, 0)).load(right), none + add[:, None])
    dp = mma_v2(v_late, do_tile.permute((1, 0)).load(right), none)
    p = gl.exp2(s * factor - lses.load(of_q)[None, :])
    p = gl.where((keys < N)[:, None], p, 0.0)
    ds = (p * (dp - deltas.load(of_q)[None, :])).to(dtype)
    key_ds.store(ds)
    s = mma_v2(k_late, q_late.permute((1, 0)).load(right), corner + add[:, None])
    dp = mma_v2(v_late, do_late.permute((1, 0)).load(right), corner)
    late_p = gl.exp2(s * factor - late_lses.load(of_q)[None, :])
    late_p = gl.where((keys < N)[:, None], late_p, 0.0)
    late_d = (late_p * (dp - late_deltas.load(of_q)[None, :])).to(dtype)
    corner_ds.store(late_d)
    hopper.fence_async_shared()
    barrier()
    dq = hopper.warpgroup_mma(key_ds.permute((1, 0)), late.index(2), dq, is_async=True)
    nothing = gl.full([16, BLOCK_D], 0.0, gl.float32, v2)
    dv_late = mma_v2(gl.convert_layout(p.to(dtype), left), do_tile.load(right), nothing)
    dv_late = mma_v2(gl.convert_layout(late_p.to(dtype), left), do_late.load(right), dv_late)
    dk_late = mma_v2(gl.convert_layout(ds, left), q_tile.load(right), nothing)
    dk_late = mma_v2(gl.convert_layout(late_d, left), q_late.load(right), dk_late)
    late_dq = mma_v2(corner_ds.permute((1, 0)).load(left), late.index(2).load(right), late_dq)
    put(DK + to, dk_late * scale, 128, N, gs_n, v2, D, WIDE)
    put(DV + to, dv_late, 128, N, gs_n, v2, D, WIDE)
    put(DQ + to, late_dq * scale, 128, N, gs_n, v2, D, WIDE)
    dq = hopper.warpgroup_mma_wait(0, [dq])
    put(DQ + to, dq * scale, 0, N, gs_n, q_mma, D, WIDE)
