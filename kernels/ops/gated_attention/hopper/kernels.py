# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""The end of a gated attention on Hopper's tensor cores, in 16 bits, in Gluon.

Computes the same as `triton.py`, and in the backward pass the products before and after it, in
persistent programs: each keeps its share of the weight in shared memory and loops over tiles of
rows, with the next tile's copy in flight.

Letters: M rows, K = H * D channels of the attention's output, C channels of the result.
"""

from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper, mbarrier, tma
from evofeed.kernels.runtime.hopper_tiles import (
    add_columns,
    bars_of,
    copy_drop,
    fetch,
    float32,
    lines_of,
    load_drop,
    mma_layout,
    rounded,
    sigmoid_of_half,
    store_sums,
    tiles_of,
    vectors_of,
    zero_sums,
)

HALF = gl.constexpr(0.5)  # of a gate, the argument of `sigmoid_of_half`


@gluon.jit
def _fetch_rows(tiles, sources, column, bars, slot, tile, count, BLOCK_M: gl.constexpr):
    """Starts the copies of a tile of `count` from all sources, the first from column 0 on."""
    BYTES: gl.constexpr = BLOCK_M * 2 * (tiles[0].shape[2] + tiles[1].shape[2])
    exists = tile < count
    bar, row = bars.index(slot), tile * BLOCK_M
    if len(tiles) == 3:
        mbarrier.expect(bar, BYTES + BLOCK_M * 2 * tiles[2].shape[2], pred=exists)
        fetch(tiles[2].index(slot), sources[2], row, column, bar, exists)
    else:
        mbarrier.expect(bar, BYTES, pred=exists)
    fetch(tiles[0].index(slot), sources[0], row, 0, bar, exists)
    fetch(tiles[1].index(slot), sources[1], row, column, bar, exists)


@gluon.jit
def gated_output_kernel(
    GATE_BIAS, BIAS, DROP, o_rows, gate_rows, w_rows, res_rows, out_rows, M, drop_1, drop_2,
    drop_rows,
    K: gl.constexpr, C: gl.constexpr, BLOCK_C: gl.constexpr, BLOCK_M: gl.constexpr,
    HAS_DROP: gl.constexpr, DROP_STEP: gl.constexpr, HAS_RES: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """out = res + DROP * ((sigmoid(gate + GATE_BIAS) * o) w^T + BIAS); BLOCK_C of C a program."""
    dtype: gl.constexpr = o_rows.dtype
    lines: gl.constexpr = lines_of(K, num_warps)
    mma: gl.constexpr = mma_layout(BLOCK_M, BLOCK_C, num_warps)
    PARTS: gl.constexpr = C // BLOCK_C
    c0 = (gl.program_id(0) % PARTS) * BLOCK_C
    program, programs = gl.program_id(0) // PARTS, gl.num_programs(0) // PARTS
    w_tile = tiles_of(dtype, 1, BLOCK_C, K).index(0)
    o_tiles, gate_tiles = tiles_of(dtype, 2, BLOCK_M, K), tiles_of(dtype, 2, BLOCK_M, K)
    res_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_C).index(0)
    bars = bars_of(4)  # two slots, the residual, the weight
    tiles = gl.cdiv(M, BLOCK_M)
    mbarrier.expect(bars.index(3), BLOCK_C * K * 2)
    fetch(w_tile, w_rows, c0, 0, bars.index(3), True)
    row_tiles, sources = (o_tiles, gate_tiles), (o_rows, gate_rows)
    _fetch_rows(row_tiles, sources, 0, bars, 0, program, tiles, BLOCK_M)
    _fetch_rows(row_tiles, sources, 0, bars, 1, program + programs, tiles, BLOCK_M)
    shift = gl.load(GATE_BIAS + gl.arange(0, K, gl.SliceLayout(0, lines))).to(gl.float32) * HALF
    bias = gl.load(BIAS + c0 + gl.arange(0, BLOCK_C, gl.SliceLayout(0, mma))).to(gl.float32)
    zeros = gl.full([BLOCK_M, BLOCK_C], 0.0, gl.float32, mma)
    mbarrier.wait(bars.index(3), 0)
    slot, phase = 0, 0
    for tile in range(program, tiles, programs):
        first = tile * BLOCK_M
        if HAS_DROP:
            rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
            drop = load_drop(
                DROP + c0, rows, first, M, drop_1, drop_2, drop_rows, BLOCK_C, C, DROP_STEP
            )
        mbarrier.wait(bars.index(slot), phase)
        gate = float32(gate_tiles.index(slot).load(lines))
        o_tile = o_tiles.index(slot)
        sig = sigmoid_of_half(gate * HALF + shift[None, :])
        o_tile.store((float32(o_tile.load(lines)) * sig).to(dtype))
        hopper.fence_async_shared()
        tma.store_wait(0)
        barrier()
        if HAS_RES:
            mbarrier.expect(bars.index(2), BLOCK_M * BLOCK_C * 2)
            fetch(res_tile, res_rows, first, c0, bars.index(2), True)
        y = hopper.warpgroup_mma(
            o_tile, w_tile.permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        if HAS_RES:
            mbarrier.wait(bars.index(2), slot)
        y = hopper.warpgroup_mma_wait(0, [y])
        y += bias[None, :]
        if HAS_DROP:
            y *= float32(drop)
        if HAS_RES:
            y += float32(res_tile.load(mma))
        barrier()
        _fetch_rows(row_tiles, sources, 0, bars, slot, tile + 2 * programs, tiles, BLOCK_M)
        res_tile.store(y.to(dtype))
        hopper.fence_async_shared()
        barrier()
        tma.async_copy_shared_to_global(out_rows, [first, c0], res_tile)
        phase ^= slot  # a slot's next copy is another phase of its barrier
        slot = 1 - slot
    tma.store_wait(0)


@gluon.jit
def gated_output_grad_kernel(
    DELTA, DROP, GATE_BIAS, PARTIAL_W, PARTIAL_GATE, PARTIAL_Y,
    d_rows, w_rows, o_rows, gate_rows, do_rows, dgate_rows,
    M, ds_b, ds_i, ds_j, ds_h, I_, J_, drop_1, drop_2, drop_rows,
    K: gl.constexpr, C: gl.constexpr, D: gl.constexpr, BLOCK_K: gl.constexpr,
    BLOCK_M: gl.constexpr, HAS_DROP: gl.constexpr, DROP_STEP: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """From the gradient of the result: of O, of the gate, delta, and sums for the weights.

    A program takes whole heads, BLOCK_K of the K channels. Delta is written as
    `gated_output_grad_kernel` of `triton.py` does. Each program's sums: PARTIAL_W
    `[programs, C, K]` of dy^T gated, PARTIAL_GATE `[programs, K]` of the gate's gradient,
    PARTIAL_Y `[programs, C]` of dy = DROP * d.
    """
    dtype: gl.constexpr = o_rows.dtype
    HEADS: gl.constexpr = BLOCK_K // D
    PARTS: gl.constexpr = K // BLOCK_K
    mma: gl.constexpr = mma_layout(BLOCK_M, BLOCK_K, num_warps)
    w_mma: gl.constexpr = mma_layout(C, BLOCK_K, num_warps)
    y_lines: gl.constexpr = lines_of(C, num_warps)
    heads: gl.constexpr = gl.BlockedLayout([1, 1], [32 // min(HEADS, 8), min(HEADS, 8)],
                                           [num_warps, 1], [0, 1])  # fmt: skip
    part = gl.program_id(0) % PARTS
    k0 = part * BLOCK_K
    program, programs = gl.program_id(0) // PARTS, gl.num_programs(0) // PARTS
    w_tile = tiles_of(dtype, 1, C, BLOCK_K).index(0)
    d_tiles, o_tiles = tiles_of(dtype, 2, BLOCK_M, C), tiles_of(dtype, 2, BLOCK_M, BLOCK_K)
    gate_tiles = tiles_of(dtype, 2, BLOCK_M, BLOCK_K)
    do_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_K).index(0)
    shift = vectors_of(1, BLOCK_K).index(0)
    bars = bars_of(3)  # two slots, the weight
    tiles = gl.cdiv(M, BLOCK_M)
    mbarrier.expect(bars.index(2), C * BLOCK_K * 2)
    fetch(w_tile, w_rows, 0, k0, bars.index(2), True)
    all_tiles, sources = (d_tiles, o_tiles, gate_tiles), (d_rows, o_rows, gate_rows)
    _fetch_rows(all_tiles, sources, k0, bars, 0, program, tiles, BLOCK_M)
    k = gl.arange(0, BLOCK_K, gl.BlockedLayout([1], [32], [num_warps], [0]))
    shift.store(gl.load(GATE_BIAS + k0 + k).to(gl.float32) * HALF)
    if HAS_DROP:
        drop_tile = tiles_of(dtype, 1, BLOCK_M, C).index(0)
        copy_drop(drop_tile, DROP, program * BLOCK_M, M, drop_1, drop_2, drop_rows, DROP_STEP)
        cp.commit_group()
    zeros = gl.full([BLOCK_M, BLOCK_K], 0.0, gl.float32, mma)
    dw = gl.full([C, BLOCK_K], 0.0, gl.float32, w_mma)
    sum_gate, sum_y = zero_sums(BLOCK_M, BLOCK_K), zero_sums(BLOCK_M, C)
    mbarrier.wait(bars.index(2), 0)
    slot, phase = 0, 0
    for tile in range(program, tiles, programs):
        first = tile * BLOCK_M
        d_tile, o_tile, gate_tile = d_tiles.index(slot), o_tiles.index(slot), gate_tiles.index(slot)
        cp.wait_group(0)
        barrier()  # the dropout mask has arrived, and the vector of the gate's bias
        mbarrier.wait(bars.index(slot), phase)
        dy = d_tile.load(y_lines)
        if HAS_DROP:
            dy = (dy.to(gl.float32) * drop_tile.load(y_lines).to(gl.float32)).to(dtype)
            d_tile.store(dy)
        sum_y = add_columns(sum_y, dy)
        tma.store_wait(0)
        hopper.fence_async_shared()
        barrier()
        after = tile + programs
        _fetch_rows(all_tiles, sources, k0, bars, 1 - slot, after, tiles, BLOCK_M)
        if HAS_DROP:
            copy_drop(drop_tile, DROP, after * BLOCK_M, M, drop_1, drop_2, drop_rows, DROP_STEP)
            cp.commit_group()
        grad = hopper.warpgroup_mma(d_tile, w_tile, zeros, use_acc=False, is_async=True)
        o = float32(o_tile.load(mma))
        gate = float32(gate_tile.load(mma))
        sig = sigmoid_of_half(gate * HALF + shift.load(gl.SliceLayout(0, mma))[None, :])
        gated = o * sig
        grad = hopper.warpgroup_mma_wait(0, [grad])
        do = rounded(grad * sig, dtype)
        do_tile.store(do.to(dtype))
        o_tile.store(gated.to(dtype))
        gate_tile.store((grad * gated * (1.0 - sig)).to(dtype))
        hopper.fence_async_shared()
        barrier()
        dw_next = hopper.warpgroup_mma(d_tile.permute((1, 0)), o_tile, dw, is_async=True)
        tma.async_copy_shared_to_global(do_rows, [first, k0], do_tile)
        tma.async_copy_shared_to_global(dgate_rows, [first, k0], gate_tile)
        delta = gl.sum(gl.reshape(do * o, [BLOCK_M, HEADS, D]), 2)
        sum_gate = add_columns(sum_gate, gate_tile.load(lines_of(BLOCK_K, num_warps)))
        m = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, heads))
        h = part * HEADS + gl.arange(0, HEADS, gl.SliceLayout(0, heads))
        i = m // J_
        b = i // I_
        j, i, b = (m - i * J_).to(gl.int64), (i - b * I_).to(gl.int64), b.to(gl.int64)
        to = b * ds_b + i * ds_i + j * ds_j
        gl.store(DELTA + (to[:, None] + h[None, :] * ds_h), gl.convert_layout(delta, heads),
                 mask=(m < M)[:, None])  # fmt: skip
        dw = hopper.warpgroup_mma_wait(0, [dw_next])
        phase ^= slot  # a slot's next copy is another phase of its barrier
        slot = 1 - slot
    tma.store_wait(0)
    cp.wait_group(0)
    c = gl.arange(0, C, gl.SliceLayout(1, w_mma))
    k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, w_mma))
    PARTIAL_W += program.to(gl.int64) * C * K + k0
    gl.store(PARTIAL_W + (c[:, None] * K + k[None, :]), dw)
    store_sums(PARTIAL_GATE + program * K + k0, sum_gate)
    if part == 0:
        store_sums(PARTIAL_Y + program * C, sum_y)
