# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Gradients of attention of rows a few positions longer than whole tiles, on Hopper, in Gluon.

What `backward.py` computes without a bias, for the rows of `late.py`. With log-sum-exp and delta
known, pairs of a query and a key are independent: MAIN x MAIN of them are as in `backward.py`. The
late queries are a tile of 16 beside each key block. The late keys come last, 16 rows of logits
that `mma_v2` makes, and their share of dq is added where it is written. Strides, tensors, masks
and letters are as in `forward.py`.
"""

from evofeed.kernels.ops.attention.hopper.backward import key_extra, store_extra
from evofeed.kernels.ops.attention.hopper.layouts import (
    copy_in_turn,
    copy_line,
    copy_line_in_turn,
    copy_rows,
    in_turn,
    put,
    put_in_turn,
    row_and_head,
)
from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper, mma_v2
from evofeed.kernels.runtime.hopper_tiles import flat, mma_layout, tiles_of


@gluon.jit
def late_backward_kernel(
    Q, K, V, TERM, FACTOR, DO, LSE, DELTA, DQ, DK, DV,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h, ts_row, R, H, N,
    factor, scale,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    Q_TILES: gl.constexpr, K_TILES: gl.constexpr, HAS_MASK: gl.constexpr, WIDE: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """dq, dk and dv of one row and head. Logits are keys first, as in `backward.py`."""
    MAIN: gl.constexpr = Q_TILES * BLOCK_Q
    mma: gl.constexpr = mma_layout(BLOCK_K, BLOCK_Q, num_warps)
    t_mma: gl.constexpr = mma_layout(BLOCK_K, 16, num_warps)
    k_mma: gl.constexpr = mma_layout(BLOCK_K, BLOCK_D, num_warps)
    q_mma: gl.constexpr = mma_layout(BLOCK_Q, BLOCK_D, num_warps)
    operand: gl.constexpr = gl.DotOperandLayout(0, k_mma, 2)
    of_logits: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    of_tail: gl.constexpr = gl.DotOperandLayout(0, t_mma, 2)
    v2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, num_warps], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, v2, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, v2, 2)
    of_q: gl.constexpr = gl.SliceLayout(0, v2)
    of_k: gl.constexpr = gl.SliceLayout(1, v2)
    row, h = row_and_head(H)
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
    q_tiles = tiles_of(dtype, Q_TILES, BLOCK_Q, BLOCK_D)
    do_tiles = tiles_of(dtype, Q_TILES, BLOCK_Q, BLOCK_D)
    k_tiles = tiles_of(dtype, 2, BLOCK_K, BLOCK_D)
    v_tiles = tiles_of(dtype, 2, BLOCK_K, BLOCK_D)
    extra_tiles = tiles_of(dtype, Q_TILES, BLOCK_Q, 16)
    late = tiles_of(dtype, 4, 16, BLOCK_D)  # q, do, k, v
    late_extra = tiles_of(dtype, 1, 16, 16).index(0)
    swizzled: gl.constexpr = gl.SwizzledSharedLayout(8, 1, BLOCK_D // 8, [1, 0])
    dq_tiles = gl.allocate_shared_memory(gl.float32, [Q_TILES, BLOCK_Q, BLOCK_D], swizzled)
    terms = gl.allocate_shared_memory(dtype, [K_TILES, BLOCK_K], flat())
    lses = gl.allocate_shared_memory(gl.float32, [Q_TILES, BLOCK_Q], flat())
    deltas = gl.allocate_shared_memory(gl.float32, [Q_TILES, BLOCK_Q], flat())
    late_lses = gl.allocate_shared_memory(gl.float32, [16], flat())
    late_deltas = gl.allocate_shared_memory(gl.float32, [16], flat())
    for n in gl.static_range(Q_TILES):
        copy_line_in_turn(lses.index(n), LSE, n * BLOCK_Q, N)
        copy_line_in_turn(deltas.index(n), DELTA, n * BLOCK_Q, N)
    copy_line(late_lses, LSE, MAIN, N, 1)
    copy_line(late_deltas, DELTA, MAIN, N, 1)
    if HAS_MASK:
        factor = gl.load(FACTOR + row)
        TERM += row.to(gl.int64) * ts_row
        for n in gl.static_range(K_TILES):
            copy_line(terms.index(n), TERM, n * BLOCK_K, ts_row, 2)
    copy_rows(k_tiles.index(0), K, 0, N, qs_n, D, WIDE)
    copy_rows(v_tiles.index(0), V, 0, N, qs_n, D, WIDE)
    copy_in_turn(q_tiles.index(0), Q, 0, N, qs_n, D, WIDE)
    copy_in_turn(do_tiles.index(0), DO, 0, N, os_n, D, WIDE)
    cp.commit_group()
    for n in gl.static_range(1, Q_TILES):
        copy_in_turn(q_tiles.index(n), Q, n * BLOCK_Q, N, qs_n, D, WIDE)
        copy_in_turn(do_tiles.index(n), DO, n * BLOCK_Q, N, os_n, D, WIDE)
    copy_rows(k_tiles.index(1), K, BLOCK_K, N, qs_n, D, WIDE)
    copy_rows(v_tiles.index(1), V, BLOCK_K, N, qs_n, D, WIDE)
    copy_rows(late.index(0), Q, MAIN, N, qs_n, D, WIDE)
    copy_rows(late.index(1), DO, MAIN, N, os_n, D, WIDE)
    copy_rows(late.index(2), K, MAIN, N, qs_n, D, WIDE)
    copy_rows(late.index(3), V, MAIN, N, qs_n, D, WIDE)
    cp.commit_group()
    cp.wait_group(1)
    barrier()
    inverse = gl.where(factor == 0.0, 0.0, 1.0 / factor)
    for n in gl.static_range(Q_TILES):
        store_extra(extra_tiles.index(n), lses.index(n), deltas.index(n), inverse)
    store_extra(late_extra, late_lses, late_deltas, inverse)
    shift = gl.where(factor == 0.0, -gl.log2(N.to(gl.float32)), 0.0)
    hopper.fence_async_shared()
    barrier()
    zeros = gl.full([BLOCK_K, BLOCK_Q], 0.0, gl.float32, mma)
    late_zeros = gl.full([BLOCK_K, 16], 0.0, gl.float32, t_mma)
    late_dq = gl.full([16, BLOCK_D], 0.0, gl.float32, v2)
    ds_tile = tiles_of(dtype, 1, BLOCK_K, BLOCK_Q).index(0)
    late_ds = tiles_of(dtype, 1, BLOCK_K, 16).index(0)
    for kb in range(K_TILES):
        if kb > 0:
            cp.wait_group(0)
            hopper.fence_async_shared()
            barrier()
            if kb < K_TILES - 1:
                copy_rows(k_tiles.index((kb + 1) % 2), K, (kb + 1) * BLOCK_K, N, qs_n, D, WIDE)
                copy_rows(v_tiles.index((kb + 1) % 2), V, (kb + 1) * BLOCK_K, N, qs_n, D, WIDE)
                cp.commit_group()
        k_tile, v_tile = k_tiles.index(kb % 2), v_tiles.index(kb % 2)
        term, late_term = 0.0, 0.0
        if HAS_MASK:
            term = terms.index(kb).load(gl.SliceLayout(1, of_logits))
        key_s = key_extra(term, BLOCK_K, 0, of_logits, dtype, HAS_MASK)
        key_d = key_extra(term, BLOCK_K, 4, of_logits, dtype, False)
        dk = hopper.warpgroup_mma_init(gl.full([BLOCK_K, BLOCK_D], 0.0, gl.float32, k_mma))
        dv = hopper.warpgroup_mma_init(gl.full([BLOCK_K, BLOCK_D], 0.0, gl.float32, k_mma))
        for qb in range(Q_TILES):
            if (kb == 0) & (qb == 1):
                cp.wait_group(0)
                hopper.fence_async_shared()
                barrier()
            extra = extra_tiles.index(qb).permute((1, 0))
            q_tile, do_tile = q_tiles.index(qb), do_tiles.index(qb)
            queries, outputs = q_tile.permute((1, 0)), do_tile.permute((1, 0))
            s = hopper.warpgroup_mma(k_tile, queries, zeros, use_acc=False, is_async=True)
            s = hopper.warpgroup_mma(key_s, extra, s, is_async=True)
            dp = hopper.warpgroup_mma(v_tile, outputs, zeros, use_acc=False, is_async=True)
            dp = hopper.warpgroup_mma(key_d, extra, dp, is_async=True)
            barrier()  # all have read the tile of ds
            s = hopper.warpgroup_mma_wait(2, [s])
            p = gl.exp2(s * factor + shift)
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
        if HAS_MASK:
            late_term = gl.convert_layout(term, gl.SliceLayout(1, of_tail))
        late_key_s = key_extra(late_term, BLOCK_K, 0, of_tail, dtype, HAS_MASK)
        late_key_d = key_extra(late_term, BLOCK_K, 4, of_tail, dtype, False)
        q_late, do_late = late.index(0), late.index(1)
        queries, outputs = q_late.permute((1, 0)), do_late.permute((1, 0))
        columns = late_extra.permute((1, 0))
        late_s = hopper.warpgroup_mma(k_tile, queries, late_zeros, use_acc=False, is_async=True)
        late_s = hopper.warpgroup_mma(late_key_s, columns, late_s, is_async=True)
        late_dp = hopper.warpgroup_mma(v_tile, outputs, late_zeros, use_acc=False, is_async=True)
        late_dp = hopper.warpgroup_mma(late_key_d, columns, late_dp, is_async=True)
        dk, dv, late_s, late_dp, late_key_s, late_key_d = hopper.warpgroup_mma_wait(
            0, [dk, dv, late_s, late_dp, late_key_s, late_key_d]
        )
        late_p = gl.exp2(late_s * factor + shift)
        late_p16 = gl.convert_layout(late_p.to(dtype), operand)
        late_d = (late_p * late_dp).to(dtype)
        late_ds.store(late_d)
        late_d16 = gl.convert_layout(late_d, operand)
        dv = hopper.warpgroup_mma(late_p16, do_late, dv, is_async=True)
        dk = hopper.warpgroup_mma(late_d16, q_late, dk, is_async=True)
        dv, dk, late_p16, late_d16 = hopper.warpgroup_mma_wait(0, [dv, dk, late_p16, late_d16])
        barrier()
        late_dq = mma_v2(late_ds.permute((1, 0)).load(left), k_tile.load(right), late_dq)
        put(DK + to, dk * scale, kb * BLOCK_K, N, gs_n, k_mma, D, WIDE)
        put(DV + to, dv, kb * BLOCK_K, N, gs_n, k_mma, D, WIDE)
    q_late, do_late, k_late = late.index(0), late.index(1), late.index(2)
    k_left, v_left = k_late.load(left), late.index(3).load(left)
    keys = MAIN + gl.arange(0, 16, of_k)
    inside = (keys < N)[:, None]
    add = gl.where(keys < N, 0.0, -1e30)
    if HAS_MASK:
        add += gl.load(TERM + keys, mask=keys < N, other=0.0).to(gl.float32)
    key_p, key_ds = tiles_of(dtype, Q_TILES, 16, BLOCK_Q), tiles_of(dtype, Q_TILES, 16, BLOCK_Q)
    corners = tiles_of(dtype, 2, 16, 16)
    queries = MAIN + gl.arange(0, 16, of_q)
    lse = gl.load(LSE + queries, mask=queries < N, other=0.0)
    delta = gl.load(DELTA + queries, mask=queries < N, other=0.0)
    corner = gl.full([16, 16], 0.0, gl.float32, v2)
    s = mma_v2(k_left, q_late.permute((1, 0)).load(right), corner + add[:, None])
    dp = mma_v2(v_left, do_late.permute((1, 0)).load(right), corner)
    p = gl.where(inside, gl.exp2(s * factor - lse[None, :]), 0.0)
    corners.index(0).store(p.to(dtype))
    corners.index(1).store((p * (dp - delta[None, :])).to(dtype))
    none = gl.full([16, BLOCK_Q], 0.0, gl.float32, v2)
    for qb in gl.static_range(Q_TILES):
        q_tile, do_tile = q_tiles.index(qb), do_tiles.index(qb)
        at = qb * BLOCK_Q + in_turn(BLOCK_Q, of_q)
        lse, delta = gl.load(LSE + at), gl.load(DELTA + at)
        s = mma_v2(k_left, q_tile.permute((1, 0)).load(right), none + add[:, None])
        dp = mma_v2(v_left, do_tile.permute((1, 0)).load(right), none)
        p = gl.where(inside, gl.exp2(s * factor - lse[None, :]), 0.0)
        key_p.index(qb).store(p.to(dtype))
        key_ds.index(qb).store((p * (dp - delta[None, :])).to(dtype))
    hopper.fence_async_shared()
    barrier()
    nothing = gl.full([16, BLOCK_D], 0.0, gl.float32, v2)
    dv = mma_v2(corners.index(0).load(left), do_late.load(right), nothing)
    dk = mma_v2(corners.index(1).load(left), q_late.load(right), nothing)
    corner_ds = corners.index(1).permute((1, 0)).load(left)
    late_dq = mma_v2(corner_ds, k_late.load(right), late_dq)
    for qb in gl.static_range(Q_TILES):
        ds, dq = key_ds.index(qb), dq_tiles.index(qb).load(q_mma)
        dq = hopper.warpgroup_mma(ds.permute((1, 0)), k_late, dq, is_async=True)
        dv = mma_v2(key_p.index(qb).load(left), do_tiles.index(qb).load(right), dv)
        dk = mma_v2(ds.load(left), q_tiles.index(qb).load(right), dk)
        dq = hopper.warpgroup_mma_wait(0, [dq])
        put_in_turn(DQ + to, dq * scale, qb * BLOCK_Q, N, gs_n, q_mma, D, WIDE)
    put(DK + to, dk * scale, MAIN, N, gs_n, v2, D, WIDE)
    put(DV + to, dv, MAIN, N, gs_n, v2, D, WIDE)
    put(DQ + to, late_dq * scale, MAIN, N, gs_n, v2, D, WIDE)
