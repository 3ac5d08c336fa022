# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Attention over few positions and without a bias on Hopper's tensor cores, in 16 bits, in Gluon.

What `forward.py` computes, for rows of 129 to 144 positions: an MSA's columns of 128 sequences and
up to 16 templates. All logits of a query are there at once, so no maximum runs along, and the keys
beyond 128 are a tile of 16 and not of 64. Strides, tensors, masks and letters are as in
`forward.py`.
"""

from evofeed.kernels.ops.attention.hopper.layouts import (
    as_logits,
    copy_in_turn,
    copy_line,
    copy_rows,
    in_pairs,
    pairs_layout,
    put,
    unpacked,
)
from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper
from evofeed.kernels.runtime.hopper_tiles import flat, mma_layout, tiles_of


@gluon.jit
def short_forward_kernel(
    Q, K, V, TERM, FACTOR, OUT, LSE,
    qs_b, qs_i, qs_n, qs_h, os_b, os_i, os_n, os_h, ts_row, R, H, N, factor,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, MAIN: gl.constexpr,
    TAIL: gl.constexpr, HAS_MASK: gl.constexpr, WIDE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The output of one row and head, and the log-sum-exp of its logits.

    Its N positions are MAIN and up to TAIL more.
    """
    mma: gl.constexpr = mma_layout(BLOCK_Q, MAIN, num_warps)
    tail_mma: gl.constexpr = mma_layout(BLOCK_Q, TAIL, num_warps)
    out_mma: gl.constexpr = mma_layout(BLOCK_Q, BLOCK_D, num_warps)
    of_query: gl.constexpr = gl.SliceLayout(1, mma)
    of_tail: gl.constexpr = gl.SliceLayout(1, tail_mma)
    weights: gl.constexpr = gl.DotOperandLayout(0, out_mma, 2)
    wide: gl.constexpr = pairs_layout(BLOCK_Q, MAIN // 2, num_warps)
    row, h = gl.program_id(0), gl.program_id(1).to(gl.int64)
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
    k_tile = tiles_of(dtype, 1, MAIN, BLOCK_D).index(0)
    v_tile = tiles_of(dtype, 1, MAIN, BLOCK_D).index(0)
    copy_rows(q_tile, Q, 0, N, qs_n, D, WIDE)
    copy_in_turn(k_tile, K, 0, N, qs_n, D, WIDE)
    copy_in_turn(v_tile, V, 0, N, qs_n, D, WIDE)
    late_k = tiles_of(dtype, 1, TAIL, BLOCK_D).index(0)
    late_v = tiles_of(dtype, 1, TAIL, BLOCK_D).index(0)
    copy_rows(late_k, K, MAIN, N, qs_n, D, WIDE)
    copy_rows(late_v, V, MAIN, N, qs_n, D, WIDE)
    late = MAIN + gl.arange(0, TAIL, gl.SliceLayout(0, tail_mma))
    late_term = gl.where(late < N, 0.0, -1e30)
    if HAS_MASK:
        factor = gl.load(FACTOR + row)
        terms = gl.allocate_shared_memory(gl.int32, [MAIN // 2], flat())
        TERM += row.to(gl.int64) * ts_row
        copy_line(terms, in_pairs(TERM), 0, ts_row // 2, 1)
        late_term += gl.load(TERM + late, mask=late < N, other=0.0).to(gl.float32)
    cp.commit_group()
    for first in range(0, N, BLOCK_Q):
        cp.wait_group(0)
        hopper.fence_async_shared()
        barrier()
        q = q_tile.load(gl.DotOperandLayout(0, mma, 2))
        barrier()
        copy_rows(q_tile, Q, first + BLOCK_Q, N, qs_n, D, WIDE)
        cp.commit_group()
        s = gl.full([BLOCK_Q, MAIN], 0.0, gl.float32, mma)
        if HAS_MASK:
            pairs = terms.load(gl.SliceLayout(0, wide))[None, :]
            _none, pairs = gl.broadcast(gl.full([BLOCK_Q, 1], 0, gl.int32, wide), pairs)
            s = as_logits(unpacked(pairs, dtype), mma)
        s = hopper.warpgroup_mma(q, k_tile.permute((1, 0)), s, is_async=True)
        late_s = gl.full([BLOCK_Q, TAIL], 0.0, gl.float32, tail_mma) + late_term[None, :]
        late_s = hopper.warpgroup_mma(q, late_k.permute((1, 0)), late_s, is_async=True)
        s, late_s, q = hopper.warpgroup_mma_wait(0, [s, late_s, q])
        top = gl.maximum(gl.max(s, 1), gl.convert_layout(gl.max(late_s, 1), of_query))
        top = gl.maximum(top, -1e30) * factor  # finite, so that a factor of 0 makes it 0
        p = gl.exp2(s * factor - top[:, None])
        total = gl.sum(p, 1)
        p16 = gl.convert_layout(p.to(dtype), weights)
        acc = gl.full([BLOCK_Q, BLOCK_D], 0.0, gl.float32, out_mma)
        acc = hopper.warpgroup_mma(p16, v_tile, acc, use_acc=False, is_async=True)
        late_p = gl.exp2(late_s * factor - gl.convert_layout(top, of_tail)[:, None])
        late_p = gl.where((late < N)[None, :], late_p, 0.0)
        total += gl.convert_layout(gl.sum(late_p, 1), of_query)
        late_p16 = gl.convert_layout(late_p.to(dtype), weights)
        acc = hopper.warpgroup_mma(late_p16, late_v, acc, is_async=True)
        acc, p16, late_p16 = hopper.warpgroup_mma_wait(0, [acc, p16, late_p16])
        share = gl.convert_layout(1.0 / total, gl.SliceLayout(1, out_mma))
        put(OUT, acc * share[:, None], first, N, os_n, out_mma, D, WIDE)
        rows = first + gl.arange(0, BLOCK_Q, of_query)
        gl.store(LSE + rows, top + gl.log2(total), mask=rows < N)
