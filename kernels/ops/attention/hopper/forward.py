# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""softmax(scale * (q k^T + bias), masked) v on Hopper's tensor cores, in 16 bits, in Gluon.

Computes the same as `forward_kernel` of `triton.py`, with layouts chosen by hand.
Heads are narrow, so a score costs two products of 32 numbers and a dozen other
instructions: the speed depends on their number, and on no warp waiting for another.
A program's keys and values stay in shared memory and the bias is loaded to registers:
between two query tiles warps wait only for products.

All strides are in units of 8 numbers: copies are 16 bytes wide. Tensors, masks
and letters are as in `triton.py`; N queries and N keys. Rows may have a tail of up to TAIL
positions after the full tiles, like columns of an MSA with templates: see `tail.py`.
"""

from evofeed.kernels.ops.attention.hopper.layouts import (
    as_logits,
    copy_rows,
    copy_vector,
    in_pairs,
    interleaved,
    load_pairs,
    pairs_layout,
    put,
    row_and_head,
    sum_of_pairs,
    unpacked,
)
from evofeed.kernels.ops.attention.hopper.tail import add_tail_keys, attend_tail_queries, tail_mask
from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper
from evofeed.kernels.runtime.hopper_tiles import flat, mma_layout, tiles_of


@gluon.jit
def forward_kernel(
    Q, K, V, BIAS, TERM, FACTOR, OUT, LSE,
    qs_b, qs_i, qs_n, qs_h, os_b, os_i, os_n, os_h, bs_b, bs_h, bs_q, ts_row, R, H, N, factor,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    TILES: gl.constexpr, TAIL: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_MASK: gl.constexpr,
    PAD: gl.constexpr, WIDE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The output of one row and head, and the log-sum-exp of its logits.

    All its keys and values stay in shared memory: TILES tiles of BLOCK_K, and those of the tail if
    TAIL is not 0, then without a bias. 16 queries a warp.
    """
    MAIN: gl.constexpr = TILES * BLOCK_K
    mma: gl.constexpr = mma_layout(BLOCK_Q, BLOCK_K, num_warps)
    of_query: gl.constexpr = gl.SliceLayout(1, mma)
    out_mma: gl.constexpr = mma_layout(BLOCK_Q, BLOCK_D, num_warps)
    PAIRS: gl.constexpr = BLOCK_K // 2
    wide: gl.constexpr = pairs_layout(BLOCK_Q, PAIRS, num_warps)
    row, h = row_and_head(H)
    b, i = (row // R).to(gl.int64), (row % R).to(gl.int64)
    start = (b * qs_b + i * qs_i + h * qs_h) * 8
    bs_q = bs_q * 8 if HAS_BIAS else 0
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
    copy_rows(q_tile, Q, 0, N, qs_n, D, WIDE)
    for kb in gl.static_range(TILES):
        copy_rows(k_tiles.index(kb), K, kb * BLOCK_K, N, qs_n, D, WIDE, INTERLEAVED=True)
        copy_rows(v_tiles.index(kb), V, kb * BLOCK_K, N, qs_n, D, WIDE, INTERLEAVED=True)
    if TAIL:
        tail = tiles_of(dtype, 3, TAIL, BLOCK_D)
        copy_rows(tail.index(0), K, MAIN, N, qs_n, D, WIDE)
        copy_rows(tail.index(1), V, MAIN, N, qs_n, D, WIDE)
        copy_rows(tail.index(2), Q, MAIN, N, qs_n, D, WIDE)
    if HAS_BIAS:
        BIAS = in_pairs(BIAS + (b * bs_b + h * bs_h) * 8)
        bias = load_pairs(BIAS, 0, 0, N, bs_q, BLOCK_Q, PAIRS, wide, PAD)
    if HAS_MASK:
        factor = gl.load(FACTOR + row)
        terms = gl.allocate_shared_memory(gl.int32, [TILES, PAIRS], flat())
        TERM += row.to(gl.int64) * ts_row
        for kb in gl.static_range(TILES):
            copy_vector(terms.index(kb), in_pairs(TERM), kb * PAIRS, ts_row // 2, 1)
    if TAIL:
        of_tail: gl.constexpr = gl.SliceLayout(0, mma_layout(BLOCK_Q, TAIL, num_warps))
        tail_add, tail_in = tail_mask(TERM, N, MAIN, TAIL, of_tail, HAS_MASK)
    cp.commit_group()
    for first in range(0, MAIN if TAIL else N, BLOCK_Q):
        cp.wait_group(0)
        hopper.fence_async_shared()
        barrier()
        q = q_tile.load(gl.DotOperandLayout(0, mma, 2))
        barrier()
        copy_rows(q_tile, Q, first + BLOCK_Q, N, qs_n, D, WIDE)
        cp.commit_group()
        # finite, so that times a factor of 0 it is 0
        top = gl.full([BLOCK_Q], -1e30, gl.float32, of_query)
        total = gl.full([BLOCK_Q], 0.0, gl.float32, of_query)
        acc = gl.full([BLOCK_Q, BLOCK_D], 0.0, gl.float32, out_mma)
        acc = hopper.warpgroup_mma_init(acc)
        for n in range(TILES):
            s = gl.full([BLOCK_Q, BLOCK_K], 0.0, gl.float32, mma)
            if HAS_MASK:
                term = terms.index(n).load(gl.SliceLayout(0, wide))[None, :]
                if HAS_BIAS:
                    s = as_logits(sum_of_pairs(bias, term, dtype), mma)
                else:
                    _, term = gl.broadcast(gl.full([BLOCK_Q, 1], 0, gl.int32, wide), term)
                    s = as_logits(unpacked(term, dtype), mma)
            elif HAS_BIAS:
                s = as_logits(unpacked(bias, dtype), mma)
            if HAS_BIAS:
                last = n == TILES - 1
                next_q = gl.where(last & (first + BLOCK_Q < N), first + BLOCK_Q, first)
                next_k = gl.where(last, 0, (n + 1) * BLOCK_K)
                bias = load_pairs(BIAS, next_q, next_k, N, bs_q, BLOCK_Q, PAIRS, wide, PAD)
            s = hopper.warpgroup_mma(q, k_tiles.index(n).permute((1, 0)), s, is_async=True)
            s, acc = hopper.warpgroup_mma_wait(0, [s, acc])
            if PAD:
                inside = n * BLOCK_K + interleaved(BLOCK_K, gl.SliceLayout(0, mma)) < N
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
        if TAIL:
            top, total, acc, share = add_tail_keys(
                q, top, total, acc, tail, tail_add, tail_in, factor, out_mma
            )
        else:
            acc, top = hopper.warpgroup_mma_wait(0, [acc]), top * factor
            share = gl.convert_layout(1.0 / total, gl.SliceLayout(1, out_mma))
        put(OUT, acc * share[:, None], first, N, os_n, out_mma, D, WIDE)
        rows = first + gl.arange(0, BLOCK_Q, of_query)
        gl.store(LSE + rows, top + gl.log2(total), mask=None if TAIL else rows < N)
    if TAIL:
        attend_tail_queries(
            tail, k_tiles, v_tiles, TERM, OUT, LSE, N, os_n, factor, D, HAS_MASK, WIDE
        )
