# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Gradients of q, k and v of biased attention on Hopper's tensor cores, in 16 bits, in Gluon.

One kernel computes dq, dk and dv of a row and head from one computation of the logits: dk and dv
of a key block stay in registers during the loop over queries, dq is summed in shared memory. The
log-sum-exp, delta and the mask are 16 more columns of the products, because the tensor cores are
not the limit. The bias has its keys first (`BIAS[..., k, q]`), like the logits, and is loaded to
registers.

A program starts when its first tiles have arrived, and computes while the others are copied. It
writes dq after the last key block, or after the tail keys. Strides, tensors, masks, the tail and
letters are as in `forward.py`.
"""

from evofeed.kernels.ops.attention.hopper.layouts import (
    as_logits,
    copy_rows,
    copy_vector,
    in_pairs,
    key_extra,
    load_pairs,
    pairs_layout,
    put,
    row_and_head,
    store_extra,
    unpacked,
)
from evofeed.kernels.ops.attention.hopper.tail import tail_key_grads, tail_query_grads
from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper
from evofeed.kernels.runtime.hopper_tiles import flat, mma_layout, tiles_of


@gluon.jit
def backward_kernel(
    Q, K, V, BIAS, TERM, FACTOR, DO, LSE, DELTA, DQ, DK, DV,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h,
    bs_b, bs_h, bs_k, ts_row, R, H, N, factor, scale,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    Q_TILES: gl.constexpr, K_TILES: gl.constexpr, TAIL: gl.constexpr, HAS_BIAS: gl.constexpr,
    HAS_MASK: gl.constexpr, RESIDENT: gl.constexpr, PAD: gl.constexpr, WIDE: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """dq, dk and dv of one row and head. Logits are keys first, like dk and dv."""
    MAIN: gl.constexpr = Q_TILES * BLOCK_Q
    mma: gl.constexpr = mma_layout(BLOCK_K, BLOCK_Q, num_warps)
    k_mma: gl.constexpr = mma_layout(BLOCK_K, BLOCK_D, num_warps)
    q_mma: gl.constexpr = mma_layout(BLOCK_Q, BLOCK_D, num_warps)
    PAIRS: gl.constexpr = BLOCK_Q // 2
    wide: gl.constexpr = pairs_layout(BLOCK_K, PAIRS, num_warps)
    operand: gl.constexpr = gl.DotOperandLayout(0, k_mma, 2)
    of_logits: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    of_key: gl.constexpr = gl.SliceLayout(1, mma)
    K_SLOTS: gl.constexpr = K_TILES if RESIDENT else 2
    row, h = row_and_head(H)
    b, i = (row // R).to(gl.int64), (row % R).to(gl.int64)
    start = (b * qs_b + i * qs_i + h * qs_h) * 8
    to = (b * gs_b + i * gs_i + h * gs_h) * 8
    bs_k = bs_k * 8 if HAS_BIAS else 0
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
    k_tiles = tiles_of(dtype, K_SLOTS, BLOCK_K, BLOCK_D)
    v_tiles = tiles_of(dtype, K_SLOTS, BLOCK_K, BLOCK_D)
    extra_tiles = tiles_of(dtype, Q_TILES, BLOCK_Q, 16)
    if TAIL:
        tail = tiles_of(dtype, 4, TAIL, BLOCK_D)
        tail_extra = tiles_of(dtype, 1, TAIL, 16).index(0)
    swizzled: gl.constexpr = gl.SwizzledSharedLayout(8, 1, BLOCK_D // 8, [1, 0])
    dq_tiles = gl.allocate_shared_memory(gl.float32, [Q_TILES, BLOCK_Q, BLOCK_D], swizzled)
    terms = gl.allocate_shared_memory(dtype, [K_TILES, BLOCK_K], flat())
    lses = gl.allocate_shared_memory(gl.float32, [Q_TILES, BLOCK_Q], flat())
    deltas = gl.allocate_shared_memory(gl.float32, [Q_TILES, BLOCK_Q], flat())
    for n in gl.static_range(Q_TILES):
        copy_vector(lses.index(n), LSE, n * BLOCK_Q, N, 1, INTERLEAVED=True)
        copy_vector(deltas.index(n), DELTA, n * BLOCK_Q, N, 1, INTERLEAVED=True)
    if TAIL:
        tail_lses = gl.allocate_shared_memory(gl.float32, [TAIL], flat())
        tail_deltas = gl.allocate_shared_memory(gl.float32, [TAIL], flat())
        copy_vector(tail_lses, LSE, MAIN, N, 1)
        copy_vector(tail_deltas, DELTA, MAIN, N, 1)
    if HAS_MASK:
        factor = gl.load(FACTOR + row)  # where it is 0, all logits are, and p is 1 / N
        TERM += row.to(gl.int64) * ts_row
        for n in gl.static_range(K_TILES):
            copy_vector(terms.index(n), TERM, n * BLOCK_K, ts_row, 2)
    if HAS_BIAS:
        BIAS = in_pairs(BIAS + (b * bs_b + h * bs_h) * 8)
        bias = load_pairs(BIAS, 0, 0, N, bs_k, BLOCK_K, PAIRS, wide, PAD)
    copy_rows(k_tiles.index(0), K, 0, N, qs_n, D, WIDE)
    copy_rows(v_tiles.index(0), V, 0, N, qs_n, D, WIDE)
    copy_rows(q_tiles.index(0), Q, 0, N, qs_n, D, WIDE, INTERLEAVED=True)
    copy_rows(do_tiles.index(0), DO, 0, N, os_n, D, WIDE, INTERLEAVED=True)
    cp.commit_group()
    for n in gl.static_range(1, Q_TILES):
        copy_rows(q_tiles.index(n), Q, n * BLOCK_Q, N, qs_n, D, WIDE, INTERLEAVED=True)
        copy_rows(do_tiles.index(n), DO, n * BLOCK_Q, N, os_n, D, WIDE, INTERLEAVED=True)
    for n in gl.static_range(1, K_SLOTS):
        copy_rows(k_tiles.index(n), K, n * BLOCK_K, N, qs_n, D, WIDE)
        copy_rows(v_tiles.index(n), V, n * BLOCK_K, N, qs_n, D, WIDE)
    if TAIL:
        copy_rows(tail.index(0), Q, MAIN, N, qs_n, D, WIDE)
        copy_rows(tail.index(1), DO, MAIN, N, os_n, D, WIDE)
        copy_rows(tail.index(2), K, MAIN, N, qs_n, D, WIDE)
        copy_rows(tail.index(3), V, MAIN, N, qs_n, D, WIDE)
    cp.commit_group()
    cp.wait_group(1)
    barrier()
    inverse = gl.where(factor == 0.0, 0.0, 1.0 / factor)
    for n in gl.static_range(Q_TILES):
        store_extra(extra_tiles.index(n), lses.index(n), deltas.index(n), inverse)
    if TAIL:
        store_extra(tail_extra, tail_lses, tail_deltas, inverse)
    shift = gl.where(factor == 0.0, -gl.log2(N.to(gl.float32)), 0.0)
    hopper.fence_async_shared()
    barrier()
    if TAIL:
        v2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, num_warps], [16, 8])
        tail_dq = gl.full([TAIL, BLOCK_D], 0.0, gl.float32, v2)
    ds_tile = tiles_of(dtype, 1, BLOCK_K, BLOCK_Q).index(0)
    if TAIL:
        tail_ds = tiles_of(dtype, 1, BLOCK_K, TAIL).index(0)
    for kb in range(K_TILES):
        if RESIDENT:
            k_tile, v_tile = k_tiles.index(kb), v_tiles.index(kb)
        else:
            if kb > 0:
                cp.wait_group(0)
                hopper.fence_async_shared()
                barrier()
                if kb < K_TILES - 1:
                    copy_rows(k_tiles.index((kb + 1) % 2), K, (kb + 1) * BLOCK_K, N, qs_n, D, WIDE)
                    copy_rows(v_tiles.index((kb + 1) % 2), V, (kb + 1) * BLOCK_K, N, qs_n, D, WIDE)
                    cp.commit_group()
            k_tile, v_tile = k_tiles.index(kb % 2), v_tiles.index(kb % 2)
        keys = kb * BLOCK_K + gl.arange(0, BLOCK_K, of_key)
        term = 0.0
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
            zeros = gl.full([BLOCK_K, BLOCK_Q], 0.0, gl.float32, mma)
            s = zeros
            if HAS_BIAS:
                s = as_logits(unpacked(bias, dtype), mma)
            extra = extra_tiles.index(qb).permute((1, 0))
            q_tile, do_tile = q_tiles.index(qb), do_tiles.index(qb)
            s = hopper.warpgroup_mma(
                k_tile, q_tile.permute((1, 0)), s, use_acc=HAS_BIAS, is_async=True
            )
            s = hopper.warpgroup_mma(key_s, extra, s, is_async=True)
            dp = hopper.warpgroup_mma(
                v_tile, do_tile.permute((1, 0)), zeros, use_acc=False, is_async=True
            )
            dp = hopper.warpgroup_mma(key_d, extra, dp, is_async=True)
            if HAS_BIAS:
                last = qb == Q_TILES - 1
                next_k = gl.where(last, kb + 1, kb)
                next_k = gl.where(next_k < K_TILES, next_k, kb) * BLOCK_K
                next_q = gl.where(last, 0, (qb + 1) * BLOCK_Q)
                bias = load_pairs(BIAS, next_k, next_q, N, bs_k, BLOCK_K, PAIRS, wide, PAD)
            # all warps have read ds; loads would sink to the fence below, which would wait
            barrier()
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
            if TAIL:
                dq_tiles.index(qb).store(dq)
            elif kb == K_TILES - 1:
                put(DQ + to, dq * scale, qb * BLOCK_Q, N, gs_n, q_mma, D, WIDE, INTERLEAVED=True)
            else:
                dq_tiles.index(qb).store(dq)
        if TAIL:
            dk, dv, tail_dq = tail_query_grads(
                k_tile, v_tile, tail, tail_extra, tail_ds, term, dk, dv, tail_dq, factor, shift,
                k_mma, HAS_MASK,
            )  # fmt: skip
        else:
            dk, dv = hopper.warpgroup_mma_wait(0, [dk, dv])
        put(DK + to, dk * scale, kb * BLOCK_K, N, gs_n, k_mma, D, WIDE)
        put(DV + to, dv, kb * BLOCK_K, N, gs_n, k_mma, D, WIDE)
    if TAIL:
        tail_key_grads(
            tail, q_tiles, do_tiles, dq_tiles, tail_dq, TERM, LSE, DELTA, DQ + to, DK + to, DV + to,
            N, gs_n, factor, scale, q_mma, D, HAS_MASK, WIDE,
        )  # fmt: skip
