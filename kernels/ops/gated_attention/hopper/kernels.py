# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""The end of a gated attention on Hopper's tensor cores, in 16 bits, in Gluon.

What `triton.py` computes, and in the backward pass the products on
either side of it, by programs that stay: each keeps its share of the weight in
shared memory and walks over tiles of rows, the next tile on its way meanwhile.

Letters: M rows, K = H * D channels of the attention's output, C channels of the result.
"""

from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper
from evofeed.kernels.runtime.hopper_tiles import (
    add_columns,
    copy_drop,
    copy_rows,
    float32,
    lines_of,
    load_drop,
    mma_layout,
    no_sums,
    rounded,
    sigmoid_of_half,
    store_rows,
    store_sums,
    tiles_of,
    vectors_of,
)

HALF = gl.constexpr(0.5)  # of a gate: what its sigmoid takes


@gluon.jit
def gated_output_kernel(
    O_, GATE, GATE_BIAS, W, BIAS, DROP, RES, OUT, M, gs_m, drop_1, drop_2, drop_rows,
    K: gl.constexpr, C: gl.constexpr, BLOCK_C: gl.constexpr, BLOCK_M: gl.constexpr,
    HAS_DROP: gl.constexpr, DROP_STEP: gl.constexpr, HAS_RES: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """OUT = RES + DROP * ((sigmoid(GATE + GATE_BIAS) * O) W^T + BIAS); BLOCK_C of C a program."""
    dtype: gl.constexpr = O_.dtype.element_ty
    lines: gl.constexpr = lines_of(K, num_warps)
    mma: gl.constexpr = mma_layout(BLOCK_M, BLOCK_C, num_warps)
    PARTS: gl.constexpr = C // BLOCK_C
    c0 = (gl.program_id(0) % PARTS) * BLOCK_C
    program, programs = gl.program_id(0) // PARTS, gl.num_programs(0) // PARTS
    w_tile = tiles_of(dtype, 1, BLOCK_C, K).index(0)
    o_tiles, gate_tiles = tiles_of(dtype, 2, BLOCK_M, K), tiles_of(dtype, 2, BLOCK_M, K)
    res_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_C).index(0)
    copy_rows(w_tile, W + c0 * K, 0, BLOCK_C, K)
    copy_rows(o_tiles.index(0), O_, program * BLOCK_M, M, K)
    copy_rows(gate_tiles.index(0), GATE, program * BLOCK_M, M, gs_m)
    cp.commit_group()
    shift = gl.load(GATE_BIAS + gl.arange(0, K, gl.SliceLayout(0, lines))).to(gl.float32) * HALF
    bias = gl.load(BIAS + c0 + gl.arange(0, BLOCK_C, gl.SliceLayout(0, mma))).to(gl.float32)
    zeros = gl.full([BLOCK_M, BLOCK_C], 0.0, gl.float32, mma)
    slot = 0
    for tile in range(program, gl.cdiv(M, BLOCK_M), programs):
        first = tile * BLOCK_M
        if HAS_DROP:
            rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
            drop = load_drop(
                DROP + c0, rows, first, M, drop_1, drop_2, drop_rows, BLOCK_C, C, DROP_STEP
            )
        cp.wait_group(0)
        barrier()
        if HAS_RES:
            copy_rows(res_tile, RES + c0, first, M, C)
        cp.commit_group()
        copy_rows(o_tiles.index(1 - slot), O_, first + programs * BLOCK_M, M, K)
        copy_rows(gate_tiles.index(1 - slot), GATE, first + programs * BLOCK_M, M, gs_m)
        cp.commit_group()
        gate = float32(gate_tiles.index(slot).load(lines))
        o_tile = o_tiles.index(slot)
        sig = sigmoid_of_half(gate * HALF + shift[None, :])
        o_tile.store((float32(o_tile.load(lines)) * sig).to(dtype))
        hopper.fence_async_shared()
        cp.wait_group(1)
        barrier()
        y = hopper.warpgroup_mma(
            o_tile, w_tile.permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        y = hopper.warpgroup_mma_wait(0, [y])
        y += bias[None, :]
        if HAS_DROP:
            y *= float32(drop)
        if HAS_RES:
            y += float32(res_tile.load(mma))
        barrier()
        res_tile.store(y.to(dtype))
        barrier()
        store_rows(OUT + c0, res_tile, first, M, C)
        slot = 1 - slot
    cp.wait_group(0)


@gluon.jit
def gated_output_grad_kernel(
    DOUT, DROP, W, O_, GATE, GATE_BIAS, DO, DGATE, DELTA, PARTIAL_W, PARTIAL_GATE, PARTIAL_Y,
    M, gs_m, dg_m, ds_b, ds_i, ds_j, ds_h, I_, J_, drop_1, drop_2, drop_rows,
    K: gl.constexpr, C: gl.constexpr, D: gl.constexpr, BLOCK_K: gl.constexpr,
    BLOCK_M: gl.constexpr, HAS_DROP: gl.constexpr, DROP_STEP: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """From the gradient of the result: of O, of the gate, delta, and sums for the weights.

    A program takes whole heads, BLOCK_K of the K channels. Delta is written as
    `gated_output_kernels.gated_output_grad_kernel` does. Each program's sums: PARTIAL_W
    `[programs, C, K]` of dy^T gated, PARTIAL_GATE `[programs, K]` of DGATE, PARTIAL_Y
    `[programs, C]` of dy = DROP * DOUT.
    """
    dtype: gl.constexpr = O_.dtype.element_ty
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
    k = gl.arange(0, BLOCK_K, gl.BlockedLayout([1], [32], [num_warps], [0]))
    shift.store(gl.load(GATE_BIAS + k0 + k).to(gl.float32) * HALF)
    copy_rows(w_tile, W + k0, 0, C, K)
    copy_rows(d_tiles.index(0), DOUT, program * BLOCK_M, M, C)
    copy_rows(o_tiles.index(0), O_ + k0, program * BLOCK_M, M, K)
    copy_rows(gate_tiles.index(0), GATE + k0, program * BLOCK_M, M, gs_m)
    if HAS_DROP:
        drop_tile = tiles_of(dtype, 1, BLOCK_M, C).index(0)
        copy_drop(drop_tile, DROP, program * BLOCK_M, M, drop_1, drop_2, drop_rows, DROP_STEP)
    cp.commit_group()
    zeros = gl.full([BLOCK_M, BLOCK_K], 0.0, gl.float32, mma)
    dw = gl.full([C, BLOCK_K], 0.0, gl.float32, w_mma)
    sum_gate, sum_y = no_sums(BLOCK_M, BLOCK_K), no_sums(BLOCK_M, C)
    slot = 0
    for tile in range(program, gl.cdiv(M, BLOCK_M), programs):
        first = tile * BLOCK_M
        cp.wait_group(0)
        barrier()
        after, free = first + programs * BLOCK_M, 1 - slot
        copy_rows(d_tiles.index(free), DOUT, after, M, C)
        copy_rows(o_tiles.index(free), O_ + k0, after, M, K)
        copy_rows(gate_tiles.index(free), GATE + k0, after, M, gs_m)
        cp.commit_group()
        d_tile, o_tile, gate_tile = d_tiles.index(slot), o_tiles.index(slot), gate_tiles.index(slot)
        dy = d_tile.load(y_lines)
        if HAS_DROP:
            dy = (dy.to(gl.float32) * drop_tile.load(y_lines).to(gl.float32)).to(dtype)
            d_tile.store(dy)
        sum_y = add_columns(sum_y, dy)
        hopper.fence_async_shared()
        barrier()
        if HAS_DROP:
            copy_drop(drop_tile, DROP, after, M, drop_1, drop_2, drop_rows, DROP_STEP)
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
        delta = gl.sum(gl.reshape(do * o, [BLOCK_M, HEADS, D]), 2)
        store_rows(DO + k0, do_tile, first, M, K)
        sum_gate = add_columns(sum_gate, store_rows(DGATE + k0, gate_tile, first, M, dg_m))
        m = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, heads))
        h = part * HEADS + gl.arange(0, HEADS, gl.SliceLayout(0, heads))
        i = m // J_
        b = i // I_
        j, i, b = (m - i * J_).to(gl.int64), (i - b * I_).to(gl.int64), b.to(gl.int64)
        to = b * ds_b + i * ds_i + j * ds_j
        gl.store(DELTA + (to[:, None] + h[None, :] * ds_h), gl.convert_layout(delta, heads),
                 mask=(m < M)[:, None])  # fmt: skip
        dw = hopper.warpgroup_mma_wait(0, [dw_next])
        slot = 1 - slot
    cp.wait_group(0)
    c = gl.arange(0, C, gl.SliceLayout(1, w_mma))
    n = gl.arange(0, BLOCK_K, gl.SliceLayout(0, w_mma))
    PARTIAL_W += program.to(gl.int64) * C * K + k0
    gl.store(PARTIAL_W + (c[:, None] * K + n[None, :]), dw)
    store_sums(PARTIAL_GATE + program * K + k0, sum_gate)
    if part == 0:
        store_sums(PARTIAL_Y + program * C, sum_y)
