# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Attention of rows a few positions longer than whole tiles, without a bias, on Hopper, in Gluon.

What `forward.py` and `backward.py` do besides, for columns of an MSA with templates: 128 or 512
sequences are MAIN positions in tiles, and up to LATE more follow. The late keys are a tile of 16
after the others. The late queries come last, all logits at once: `mma_v2` takes 16 queries where
tensor cores else take 64. With log-sum-exp and delta known, pairs of a query and a key are
independent: in the backward pass the late queries are a tile of 16 beside each key block; the late
keys come last, 16 rows of logits that `mma_v2` makes, and add their share of dq where it is
written.
"""

from evofeed.kernels.ops.attention.hopper.layouts import in_turn, key_extra, put
from evofeed.kernels.runtime.backend import barrier, gl, gluon, hopper, mma_v2
from evofeed.kernels.runtime.hopper_tiles import mma_layout, tiles_of


@gluon.jit
def late_mask(
    TERM, N, MAIN: gl.constexpr, LATE: gl.constexpr, layout: gl.constexpr, HAS_MASK: gl.constexpr
):
    """What is added to the late keys' logits, and which of these keys there are."""
    keys = MAIN + gl.arange(0, LATE, layout)
    add = gl.where(keys < N, 0.0, -1e30)
    if HAS_MASK:
        add += gl.load(TERM + keys, mask=keys < N, other=0.0).to(gl.float32)
    return add, keys < N


@gluon.jit
def late_keys(q, top, total, acc, late, add, inside, factor, out_mma: gl.constexpr):
    """Largest logit times `factor`, sum, output and 1 / sum of a query tile, with late keys."""
    LATE: gl.constexpr = late.shape[1]
    of_query: gl.constexpr = top.type.layout
    tail_mma: gl.constexpr = add.type.layout.parent
    of_out: gl.constexpr = gl.SliceLayout(1, out_mma)
    tail_s = gl.full([top.shape[0], LATE], 0.0, gl.float32, tail_mma) + add[None, :]
    tail_s = hopper.warpgroup_mma(q, late.index(0).permute((1, 0)), tail_s, is_async=True)
    tail_s, acc, q = hopper.warpgroup_mma_wait(0, [tail_s, acc, q])
    new_top = gl.maximum(top, gl.convert_layout(gl.max(tail_s, 1), of_query))
    shrink = gl.exp2((top - new_top) * factor)
    top = new_top * factor
    tail_p = gl.exp2(tail_s * factor - gl.convert_layout(top, gl.SliceLayout(1, tail_mma))[:, None])
    tail_p = gl.where(inside[None, :], tail_p, 0.0)
    total = total * shrink + gl.convert_layout(gl.sum(tail_p, 1), of_query)
    acc = acc * gl.convert_layout(shrink, of_out)[:, None]
    tail_p16 = gl.convert_layout(tail_p.to(q.dtype), gl.DotOperandLayout(0, out_mma, 2))
    acc = hopper.warpgroup_mma(tail_p16, late.index(1), acc, is_async=True)
    share = gl.convert_layout(1.0 / total, of_out)
    acc, tail_p16 = hopper.warpgroup_mma_wait(0, [acc, tail_p16])
    return top, total, acc, share


@gluon.jit
def late_queries(
    late, k_tiles, v_tiles, TERM, OUT, LSE, N, os_n, factor, D: gl.constexpr,
    HAS_MASK: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Writes the output of the late queries, and the log-sum-exp of their logits."""
    LATE: gl.constexpr = late.shape[1]
    TILES: gl.constexpr = k_tiles.shape[0]
    BLOCK_K: gl.constexpr = k_tiles.shape[1]
    BLOCK_D: gl.constexpr = k_tiles.shape[2]
    MAIN: gl.constexpr = TILES * BLOCK_K
    dtype: gl.constexpr = late.dtype
    v2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, gl.num_warps()], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, v2, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, v2, 2)
    of_late: gl.constexpr = gl.SliceLayout(0, v2)
    q = late.index(2).load(left)
    add = gl.full([MAIN], 0.0, gl.float32, of_late)
    if HAS_MASK:
        add = gl.load(TERM + in_turn(MAIN, of_late)).to(gl.float32)
    late_add, inside = late_mask(TERM, N, MAIN, LATE, of_late, HAS_MASK)
    whole: gl.constexpr = gl.NVMMASharedLayout.get_default_for([MAIN, BLOCK_D], dtype)
    all_keys = k_tiles._reinterpret(dtype, [MAIN, BLOCK_D], whole).permute((1, 0)).load(right)
    s = mma_v2(q, all_keys, gl.full([LATE, MAIN], 0.0, gl.float32, v2) + add[None, :])
    late_s = gl.full([LATE, LATE], 0.0, gl.float32, v2) + late_add[None, :]
    late_s = mma_v2(q, late.index(0).permute((1, 0)).load(right), late_s)
    top = gl.maximum(gl.max(s, 1), gl.max(late_s, 1)) * factor
    p = gl.exp2(s * factor - top[:, None])
    late_p = gl.exp2(late_s * factor - top[:, None])
    late_p = gl.where(inside[None, :], late_p, 0.0)
    total = gl.sum(p, 1) + gl.sum(late_p, 1)
    p_tile = tiles_of(dtype, 1, LATE, MAIN).index(0)  # where the keys were
    p_tile.store(p.to(dtype))
    late_p16 = gl.convert_layout(late_p.to(dtype), left)
    acc = gl.full([LATE, BLOCK_D], 0.0, gl.float32, v2)
    acc = mma_v2(late_p16, late.index(1).load(right), acc)
    for n in gl.static_range(TILES):
        part = p_tile.slice(n * BLOCK_K, BLOCK_K, 1).load(left)
        acc = mma_v2(part, v_tiles.index(n).load(right), acc)
    put(OUT, acc * (1.0 / total)[:, None], MAIN, N, os_n, v2, D, WIDE)
    rows = MAIN + gl.arange(0, LATE, gl.SliceLayout(1, v2))
    gl.store(LSE + rows, top + gl.log2(total), mask=rows < N)


@gluon.jit
def grads_of_late_queries(
    k_tile, v_tile, late, extra, ds_tile, term, dk, dv, dq, factor, shift, k_mma: gl.constexpr,
    HAS_MASK: gl.constexpr,
):  # fmt: skip
    """dk and dv of a key block, and dq of the late queries, with what both give; all are done."""
    BLOCK_K: gl.constexpr = k_tile.shape[0]
    dtype: gl.constexpr = late.dtype
    t_mma: gl.constexpr = mma_layout(BLOCK_K, late.shape[1], gl.num_warps())
    of_tail: gl.constexpr = gl.DotOperandLayout(0, t_mma, 2)
    operand: gl.constexpr = gl.DotOperandLayout(0, k_mma, 2)
    left: gl.constexpr = gl.DotOperandLayout(0, dq.type.layout, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, dq.type.layout, 2)
    late_zeros = gl.full([BLOCK_K, late.shape[1]], 0.0, gl.float32, t_mma)
    late_term = 0.0
    if HAS_MASK:
        late_term = gl.convert_layout(term, gl.SliceLayout(1, of_tail))
    late_key_s = key_extra(late_term, BLOCK_K, 0, of_tail, dtype, HAS_MASK)
    late_key_d = key_extra(late_term, BLOCK_K, 4, of_tail, dtype, False)
    q_late, do_late = late.index(0), late.index(1)
    queries, outputs = q_late.permute((1, 0)), do_late.permute((1, 0))
    columns = extra.permute((1, 0))
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
    ds_tile.store(late_d)
    late_d16 = gl.convert_layout(late_d, operand)
    dv = hopper.warpgroup_mma(late_p16, do_late, dv, is_async=True)
    dk = hopper.warpgroup_mma(late_d16, q_late, dk, is_async=True)
    dv, dk, late_p16, late_d16 = hopper.warpgroup_mma_wait(0, [dv, dk, late_p16, late_d16])
    barrier()
    dq = mma_v2(ds_tile.permute((1, 0)).load(left), k_tile.load(right), dq)
    return dk, dv, dq


@gluon.jit
def grads_of_late_keys(
    late, q_tiles, do_tiles, dq_tiles, late_dq, TERM, LSE, DELTA, DQ, DK, DV, N, gs_n, factor,
    scale, q_mma: gl.constexpr, D: gl.constexpr, HAS_MASK: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Writes dk and dv of the late keys, and dq of all queries."""
    LATE: gl.constexpr = late.shape[1]
    Q_TILES: gl.constexpr = q_tiles.shape[0]
    BLOCK_Q: gl.constexpr = q_tiles.shape[1]
    BLOCK_D: gl.constexpr = q_tiles.shape[2]
    MAIN: gl.constexpr = Q_TILES * BLOCK_Q
    dtype: gl.constexpr = late.dtype
    v2: gl.constexpr = late_dq.type.layout
    left: gl.constexpr = gl.DotOperandLayout(0, v2, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, v2, 2)
    of_k: gl.constexpr = gl.SliceLayout(1, v2)
    of_q: gl.constexpr = gl.SliceLayout(0, v2)
    q_late, do_late, k_late = late.index(0), late.index(1), late.index(2)
    k_left, v_left = k_late.load(left), late.index(3).load(left)
    add, inside = late_mask(TERM, N, MAIN, LATE, of_k, HAS_MASK)
    inside = inside[:, None]
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
        put(DQ, dq * scale, qb * BLOCK_Q, N, gs_n, q_mma, D, WIDE, IN_TURN=True)
    put(DK, dk * scale, MAIN, N, gs_n, v2, D, WIDE)
    put(DV, dv, MAIN, N, gs_n, v2, D, WIDE)
    put(DQ, late_dq * scale, MAIN, N, gs_n, v2, D, WIDE)
