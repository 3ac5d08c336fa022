# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Attention with a remainder of a few positions after the full tiles, without a bias, in Gluon.

The parts of `forward.py` and `backward.py` for columns of an MSA with templates: 128 or 512
sequences are MAIN positions in tiles, followed by a tail of up to TAIL more. The tail keys are a
tile of 16 after the others. The tail queries come last, with all logits at once: `mma_v2` takes 16
queries where tensor cores otherwise take 64. With log-sum-exp and delta known, pairs of a query
and a key are independent: in the backward pass the tail queries are a tile of 16 for each key
block; the tail keys come last, 16 rows of logits by `mma_v2`, and add their share to dq when it is
written.
"""

from evofeed.kernels.ops.attention.hopper.layouts import interleaved, key_extra, put
from evofeed.kernels.runtime.backend import barrier, gl, gluon, hopper, mma_v2
from evofeed.kernels.runtime.hopper_tiles import mma_layout, tiles_of


@gluon.jit
def tail_mask(
    TERM, N, MAIN: gl.constexpr, TAIL: gl.constexpr, layout: gl.constexpr, HAS_MASK: gl.constexpr
):
    """Terms added to the tail keys' logits, and which of these keys exist."""
    keys = MAIN + gl.arange(0, TAIL, layout)
    add = gl.where(keys < N, 0.0, -1e30)
    if HAS_MASK:
        add += gl.load(TERM + keys, mask=keys < N, other=0.0).to(gl.float32)
    return add, keys < N


@gluon.jit
def add_tail_keys(q, top, total, acc, tail, add, inside, factor, out_mma: gl.constexpr):
    """Maximum logit times `factor`, sum, output and 1 / sum of a query tile, with the tail keys."""
    TAIL: gl.constexpr = tail.shape[1]
    of_query: gl.constexpr = top.type.layout
    tail_mma: gl.constexpr = add.type.layout.parent
    of_out: gl.constexpr = gl.SliceLayout(1, out_mma)
    tail_s = gl.full([top.shape[0], TAIL], 0.0, gl.float32, tail_mma) + add[None, :]
    tail_s = hopper.warpgroup_mma(q, tail.index(0).permute((1, 0)), tail_s, is_async=True)
    tail_s, acc, q = hopper.warpgroup_mma_wait(0, [tail_s, acc, q])
    new_top = gl.maximum(top, gl.convert_layout(gl.max(tail_s, 1), of_query))
    shrink = gl.exp2((top - new_top) * factor)
    top = new_top * factor
    tail_p = gl.exp2(tail_s * factor - gl.convert_layout(top, gl.SliceLayout(1, tail_mma))[:, None])
    tail_p = gl.where(inside[None, :], tail_p, 0.0)
    total = total * shrink + gl.convert_layout(gl.sum(tail_p, 1), of_query)
    acc = acc * gl.convert_layout(shrink, of_out)[:, None]
    tail_p16 = gl.convert_layout(tail_p.to(q.dtype), gl.DotOperandLayout(0, out_mma, 2))
    acc = hopper.warpgroup_mma(tail_p16, tail.index(1), acc, is_async=True)
    share = gl.convert_layout(1.0 / total, of_out)
    acc, tail_p16 = hopper.warpgroup_mma_wait(0, [acc, tail_p16])
    return top, total, acc, share


@gluon.jit
def attend_tail_queries(
    tail, k_tiles, v_tiles, TERM, OUT, LSE, N, os_n, factor, D: gl.constexpr,
    HAS_MASK: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Writes the output of the tail queries, and the log-sum-exp of their logits."""
    TAIL: gl.constexpr = tail.shape[1]
    TILES: gl.constexpr = k_tiles.shape[0]
    BLOCK_K: gl.constexpr = k_tiles.shape[1]
    BLOCK_D: gl.constexpr = k_tiles.shape[2]
    MAIN: gl.constexpr = TILES * BLOCK_K
    dtype: gl.constexpr = tail.dtype
    v2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, gl.num_warps()], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, v2, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, v2, 2)
    of_tail: gl.constexpr = gl.SliceLayout(0, v2)
    q = tail.index(2).load(left)
    add = gl.full([MAIN], 0.0, gl.float32, of_tail)
    if HAS_MASK:
        add = gl.load(TERM + interleaved(MAIN, of_tail)).to(gl.float32)
    tail_add, inside = tail_mask(TERM, N, MAIN, TAIL, of_tail, HAS_MASK)
    all_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([MAIN, BLOCK_D], dtype)
    all_keys = k_tiles._reinterpret(dtype, [MAIN, BLOCK_D], all_layout).permute((1, 0)).load(right)
    s = mma_v2(q, all_keys, gl.full([TAIL, MAIN], 0.0, gl.float32, v2) + add[None, :])
    tail_s = gl.full([TAIL, TAIL], 0.0, gl.float32, v2) + tail_add[None, :]
    tail_s = mma_v2(q, tail.index(0).permute((1, 0)).load(right), tail_s)
    top = gl.maximum(gl.max(s, 1), gl.max(tail_s, 1)) * factor
    p = gl.exp2(s * factor - top[:, None])
    tail_p = gl.exp2(tail_s * factor - top[:, None])
    tail_p = gl.where(inside[None, :], tail_p, 0.0)
    total = gl.sum(p, 1) + gl.sum(tail_p, 1)
    p_tile = tiles_of(dtype, 1, TAIL, MAIN).index(0)  # where the keys were
    p_tile.store(p.to(dtype))
    tail_p16 = gl.convert_layout(tail_p.to(dtype), left)
    acc = gl.full([TAIL, BLOCK_D], 0.0, gl.float32, v2)
    acc = mma_v2(tail_p16, tail.index(1).load(right), acc)
    for n in gl.static_range(TILES):
        part = p_tile.slice(n * BLOCK_K, BLOCK_K, 1).load(left)
        acc = mma_v2(part, v_tiles.index(n).load(right), acc)
    put(OUT, acc * (1.0 / total)[:, None], MAIN, N, os_n, v2, D, WIDE)
    rows = MAIN + gl.arange(0, TAIL, gl.SliceLayout(1, v2))
    gl.store(LSE + rows, top + gl.log2(total), mask=rows < N)


@gluon.jit
def tail_query_grads(
    k_tile, v_tile, tail, extra, ds_tile, term, dk, dv, dq, factor, shift, k_mma: gl.constexpr,
    HAS_MASK: gl.constexpr,
):  # fmt: skip
    """dk and dv of a key block and dq of the tail queries, with the gradients of both added."""
    BLOCK_K: gl.constexpr = k_tile.shape[0]
    dtype: gl.constexpr = tail.dtype
    t_mma: gl.constexpr = mma_layout(BLOCK_K, tail.shape[1], gl.num_warps())
    of_tail: gl.constexpr = gl.DotOperandLayout(0, t_mma, 2)
    operand: gl.constexpr = gl.DotOperandLayout(0, k_mma, 2)
    left: gl.constexpr = gl.DotOperandLayout(0, dq.type.layout, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, dq.type.layout, 2)
    tail_zeros = gl.full([BLOCK_K, tail.shape[1]], 0.0, gl.float32, t_mma)
    tail_term = 0.0
    if HAS_MASK:
        tail_term = gl.convert_layout(term, gl.SliceLayout(1, of_tail))
    tail_key_s = key_extra(tail_term, BLOCK_K, 0, of_tail, dtype, HAS_MASK)
    tail_key_d = key_extra(tail_term, BLOCK_K, 4, of_tail, dtype, False)
    q_tail, do_tail = tail.index(0), tail.index(1)
    queries, outputs = q_tail.permute((1, 0)), do_tail.permute((1, 0))
    columns = extra.permute((1, 0))
    tail_s = hopper.warpgroup_mma(k_tile, queries, tail_zeros, use_acc=False, is_async=True)
    tail_s = hopper.warpgroup_mma(tail_key_s, columns, tail_s, is_async=True)
    tail_dp = hopper.warpgroup_mma(v_tile, outputs, tail_zeros, use_acc=False, is_async=True)
    tail_dp = hopper.warpgroup_mma(tail_key_d, columns, tail_dp, is_async=True)
    dk, dv, tail_s, tail_dp, tail_key_s, tail_key_d = hopper.warpgroup_mma_wait(
        0, [dk, dv, tail_s, tail_dp, tail_key_s, tail_key_d]
    )
    tail_p = gl.exp2(tail_s * factor + shift)
    tail_p16 = gl.convert_layout(tail_p.to(dtype), operand)
    tail_d = (tail_p * tail_dp).to(dtype)
    ds_tile.store(tail_d)
    tail_d16 = gl.convert_layout(tail_d, operand)
    dv = hopper.warpgroup_mma(tail_p16, do_tail, dv, is_async=True)
    dk = hopper.warpgroup_mma(tail_d16, q_tail, dk, is_async=True)
    dv, dk, tail_p16, tail_d16 = hopper.warpgroup_mma_wait(0, [dv, dk, tail_p16, tail_d16])
    barrier()
    dq = mma_v2(ds_tile.permute((1, 0)).load(left), k_tile.load(right), dq)
    return dk, dv, dq


@gluon.jit
def tail_key_grads(
    tail, q_tiles, do_tiles, dq_tiles, tail_dq, TERM, LSE, DELTA, DQ, DK, DV, N, gs_n, factor,
    scale, q_mma: gl.constexpr, D: gl.constexpr, HAS_MASK: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Writes dk and dv of the tail keys, and dq of all queries."""
    TAIL: gl.constexpr = tail.shape[1]
    Q_TILES: gl.constexpr = q_tiles.shape[0]
    BLOCK_Q: gl.constexpr = q_tiles.shape[1]
    BLOCK_D: gl.constexpr = q_tiles.shape[2]
    MAIN: gl.constexpr = Q_TILES * BLOCK_Q
    dtype: gl.constexpr = tail.dtype
    v2: gl.constexpr = tail_dq.type.layout
    left: gl.constexpr = gl.DotOperandLayout(0, v2, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, v2, 2)
    of_k: gl.constexpr = gl.SliceLayout(1, v2)
    of_q: gl.constexpr = gl.SliceLayout(0, v2)
    q_tail, do_tail, k_tail = tail.index(0), tail.index(1), tail.index(2)
    k_left, v_left = k_tail.load(left), tail.index(3).load(left)
    add, inside = tail_mask(TERM, N, MAIN, TAIL, of_k, HAS_MASK)
    inside = inside[:, None]
    key_p, key_ds = tiles_of(dtype, Q_TILES, 16, BLOCK_Q), tiles_of(dtype, Q_TILES, 16, BLOCK_Q)
    corners = tiles_of(dtype, 2, 16, 16)
    queries = MAIN + gl.arange(0, 16, of_q)
    lse = gl.load(LSE + queries, mask=queries < N, other=0.0)
    delta = gl.load(DELTA + queries, mask=queries < N, other=0.0)
    corner = gl.full([16, 16], 0.0, gl.float32, v2)
    s = mma_v2(k_left, q_tail.permute((1, 0)).load(right), corner + add[:, None])
    dp = mma_v2(v_left, do_tail.permute((1, 0)).load(right), corner)
    p = gl.where(inside, gl.exp2(s * factor - lse[None, :]), 0.0)
    corners.index(0).store(p.to(dtype))
    corners.index(1).store((p * (dp - delta[None, :])).to(dtype))
    none = gl.full([16, BLOCK_Q], 0.0, gl.float32, v2)
    for qb in gl.static_range(Q_TILES):
        q_tile, do_tile = q_tiles.index(qb), do_tiles.index(qb)
        positions = qb * BLOCK_Q + interleaved(BLOCK_Q, of_q)
        lse, delta = gl.load(LSE + positions), gl.load(DELTA + positions)
        s = mma_v2(k_left, q_tile.permute((1, 0)).load(right), none + add[:, None])
        dp = mma_v2(v_left, do_tile.permute((1, 0)).load(right), none)
        p = gl.where(inside, gl.exp2(s * factor - lse[None, :]), 0.0)
        key_p.index(qb).store(p.to(dtype))
        key_ds.index(qb).store((p * (dp - delta[None, :])).to(dtype))
    hopper.fence_async_shared()
    barrier()
    nothing = gl.full([16, BLOCK_D], 0.0, gl.float32, v2)
    dv = mma_v2(corners.index(0).load(left), do_tail.load(right), nothing)
    dk = mma_v2(corners.index(1).load(left), q_tail.load(right), nothing)
    corner_ds = corners.index(1).permute((1, 0)).load(left)
    tail_dq = mma_v2(corner_ds, k_tail.load(right), tail_dq)
    for qb in gl.static_range(Q_TILES):
        ds, dq = key_ds.index(qb), dq_tiles.index(qb).load(q_mma)
        dq = hopper.warpgroup_mma(ds.permute((1, 0)), k_tail, dq, is_async=True)
        dv = mma_v2(key_p.index(qb).load(left), do_tiles.index(qb).load(right), dv)
        dk = mma_v2(ds.load(left), q_tiles.index(qb).load(right), dk)
        dq = hopper.warpgroup_mma_wait(0, [dq])
        put(DQ, dq * scale, qb * BLOCK_Q, N, gs_n, q_mma, D, WIDE, INTERLEAVED=True)
    put(DK, dk * scale, MAIN, N, gs_n, v2, D, WIDE)
    put(DV, dv, MAIN, N, gs_n, v2, D, WIDE)
    put(DQ, tail_dq * scale, MAIN, N, gs_n, v2, D, WIDE)
