# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Attention of rows a few positions longer than whole tiles, without a bias, on Hopper, in Gluon.

What `forward.py` computes, for columns of an MSA with templates: 128 or 512 sequences are MAIN
positions in tiles, and up to LATE more follow. The late keys are a tile of 16 after the others. The
late queries come last, all logits at once: `mma_v2` takes 16 queries where tensor cores else take
64. Strides, tensors, masks and letters are as in `forward.py`.
"""

from evofeed.kernels.ops.attention.hopper.layouts import (
    as_logits,
    copy_in_turn,
    copy_line,
    copy_rows,
    in_pairs,
    in_turn,
    pairs_layout,
    put,
    row_and_head,
    unpacked,
)
from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper, mma_v2
from evofeed.kernels.runtime.hopper_tiles import flat, mma_layout, tiles_of


@gluon.jit
def late_forward_kernel(
    Q, K, V, TERM, FACTOR, OUT, LSE,
    qs_b, qs_i, qs_n, qs_h, os_b, os_i, os_n, os_h, ts_row, R, H, N, factor,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    TILES: gl.constexpr, LATE: gl.constexpr, HAS_MASK: gl.constexpr, WIDE: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """The output of one row and head, and the log-sum-exp of its logits.

    All keys and values stay in shared memory: TILES tiles of BLOCK_K, and the late ones.
    """
    MAIN: gl.constexpr = TILES * BLOCK_K
    mma: gl.constexpr = mma_layout(BLOCK_Q, BLOCK_K, num_warps)
    tail_mma: gl.constexpr = mma_layout(BLOCK_Q, LATE, num_warps)
    out_mma: gl.constexpr = mma_layout(BLOCK_Q, BLOCK_D, num_warps)
    of_query: gl.constexpr = gl.SliceLayout(1, mma)
    of_tail: gl.constexpr = gl.SliceLayout(1, tail_mma)
    of_out: gl.constexpr = gl.SliceLayout(1, out_mma)
    weights: gl.constexpr = gl.DotOperandLayout(0, out_mma, 2)
    v2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, num_warps], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, v2, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, v2, 2)
    of_late: gl.constexpr = gl.SliceLayout(0, v2)
    PAIRS: gl.constexpr = BLOCK_K // 2
    wide: gl.constexpr = pairs_layout(BLOCK_Q, PAIRS, num_warps)
    row, h = row_and_head(H)
    b, i = (row // R).to(gl.int64), (row % R).to(gl.int64)
    start = (b * qs_b + i * qs_i + h * qs_h) * 8
    qs_n, os_n, ts_row = qs_n * 8, os_n * 8, ts_row * 8
    Q += start
    K += start
    V += start
    OUT += (b * os_b + i * os_i + h * os_h) * 8
    LSE += (row.to(gl.int64) * H + h) * N
    dtype: gl.constexpr = Q.dtype.element_ty
    q_tile = tiles_of(dtype, 1, BLOCK_Q, BLOCK_D).index(0)
    k_tiles = tiles_of(dtype, TILES, BLOCK_K, BLOCK_D)
    v_tiles = tiles_of(dtype, TILES, BLOCK_K, BLOCK_D)
    late = tiles_of(dtype, 3, LATE, BLOCK_D)  # k, v, q
    copy_rows(q_tile, Q, 0, N, qs_n, D, WIDE)
    for each in gl.static_range(TILES):
        copy_in_turn(k_tiles.index(each), K, each * BLOCK_K, N, qs_n, D, WIDE)
        copy_in_turn(v_tiles.index(each), V, each * BLOCK_K, N, qs_n, D, WIDE)
    copy_rows(late.index(0), K, MAIN, N, qs_n, D, WIDE)
    copy_rows(late.index(1), V, MAIN, N, qs_n, D, WIDE)
    copy_rows(late.index(2), Q, MAIN, N, qs_n, D, WIDE)
    tail = MAIN + gl.arange(0, LATE, gl.SliceLayout(0, tail_mma))
    tail_add = gl.where(tail < N, 0.0, -1e30)
    if HAS_MASK:
        factor = gl.load(FACTOR + row)
        terms = gl.allocate_shared_memory(gl.int32, [TILES, PAIRS], flat())
        TERM += row.to(gl.int64) * ts_row
        for each in gl.static_range(TILES):
            copy_line(terms.index(each), in_pairs(TERM), each * PAIRS, ts_row // 2, 1)
        tail_add += gl.load(TERM + tail, mask=tail < N, other=0.0).to(gl.float32)
    cp.commit_group()
    for first in range(0, MAIN, BLOCK_Q):
        cp.wait_group(0)
        hopper.fence_async_shared()
        barrier()
        q = q_tile.load(gl.DotOperandLayout(0, mma, 2))
        barrier()
        copy_rows(q_tile, Q, first + BLOCK_Q, N, qs_n, D, WIDE)
        cp.commit_group()
        top = gl.full([BLOCK_Q], -1e30, gl.float32, of_query)
        total = gl.full([BLOCK_Q], 0.0, gl.float32, of_query)
        acc = gl.full([BLOCK_Q, BLOCK_D], 0.0, gl.float32, out_mma)
        acc = hopper.warpgroup_mma_init(acc)
        for n in range(TILES):
            s = gl.full([BLOCK_Q, BLOCK_K], 0.0, gl.float32, mma)
            if HAS_MASK:
                term = terms.index(n).load(gl.SliceLayout(0, wide))[None, :]
                _, term = gl.broadcast(gl.full([BLOCK_Q, 1], 0, gl.int32, wide), term)
                s = as_logits(unpacked(term, dtype), mma)
            s = hopper.warpgroup_mma(q, k_tiles.index(n).permute((1, 0)), s, is_async=True)
            s, acc = hopper.warpgroup_mma_wait(0, [s, acc])
            new_top = gl.maximum(top, gl.max(s, 1))
            p = gl.exp2(s * factor - (new_top * factor)[:, None])
            shrink = gl.exp2((top - new_top) * factor)
            total = total * shrink + gl.sum(p, 1)
            top = new_top
            acc = acc * gl.convert_layout(shrink, of_out)[:, None]
            p = gl.convert_layout(p.to(dtype), weights)
            acc = hopper.warpgroup_mma(p, v_tiles.index(n), acc, is_async=True)
        tail_s = gl.full([BLOCK_Q, LATE], 0.0, gl.float32, tail_mma) + tail_add[None, :]
        tail_s = hopper.warpgroup_mma(q, late.index(0).permute((1, 0)), tail_s, is_async=True)
        tail_s, acc, q = hopper.warpgroup_mma_wait(0, [tail_s, acc, q])
        new_top = gl.maximum(top, gl.convert_layout(gl.max(tail_s, 1), of_query))
        shrink = gl.exp2((top - new_top) * factor)
        top = new_top * factor
        tail_p = gl.exp2(tail_s * factor - gl.convert_layout(top, of_tail)[:, None])
        tail_p = gl.where((tail < N)[None, :], tail_p, 0.0)
        total = total * shrink + gl.convert_layout(gl.sum(tail_p, 1), of_query)
        acc = acc * gl.convert_layout(shrink, of_out)[:, None]
        tail_p16 = gl.convert_layout(tail_p.to(dtype), weights)
        acc = hopper.warpgroup_mma(tail_p16, late.index(1), acc, is_async=True)
        share = gl.convert_layout(1.0 / total, of_out)
        acc, tail_p16 = hopper.warpgroup_mma_wait(0, [acc, tail_p16])
        put(OUT, acc * share[:, None], first, N, os_n, out_mma, D, WIDE)
        rows = first + gl.arange(0, BLOCK_Q, of_query)
        gl.store(LSE + rows, top + gl.log2(total))
    q = late.index(2).load(left)
    keys, late_keys = in_turn(MAIN, of_late), MAIN + gl.arange(0, LATE, of_late)
    add = gl.full([MAIN], 0.0, gl.float32, of_late)
    late_add = gl.where(late_keys < N, 0.0, -1e30)
    if HAS_MASK:
        add = gl.load(TERM + keys).to(gl.float32)
        late_add += gl.load(TERM + late_keys, mask=late_keys < N, other=0.0).to(gl.float32)
    whole: gl.constexpr = gl.NVMMASharedLayout.get_default_for([MAIN, BLOCK_D], dtype)
    all_keys = k_tiles._reinterpret(dtype, [MAIN, BLOCK_D], whole).permute((1, 0)).load(right)
    s = mma_v2(q, all_keys, gl.full([LATE, MAIN], 0.0, gl.float32, v2) + add[None, :])
    late_s = gl.full([LATE, LATE], 0.0, gl.float32, v2) + late_add[None, :]
    late_s = mma_v2(q, late.index(0).permute((1, 0)).load(right), late_s)
    top = gl.maximum(gl.max(s, 1), gl.max(late_s, 1)) * factor
    p = gl.exp2(s * factor - top[:, None])
    late_p = gl.exp2(late_s * factor - top[:, None])
    late_p = gl.where((late_keys < N)[None, :], late_p, 0.0)
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
