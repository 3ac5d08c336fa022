# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""A SwiGLU transition on Hopper's tensor cores, in 16 bits, in Gluon.

A program of the forward kernel computes a tile of rows from norm to residual, with the weights in
parts: one part's product runs while the hidden channels of the part before are computed in
registers, the operands of the last product. In the backward pass a program owns some hidden
channels and loops over tiles of rows: it recomputes its channels of both layers, writes their
gradients, and adds to its part of the gradients of the three weights, which it holds in registers.
The hidden layer is never written.

Both layers are one product: WAB `[2N, C]` holds eight rows of the gate's layer, the same eight of
the value's, and so on (`in_eights`), so a thread holds both factors of a hidden channel.

Letters: M rows, C channels, N hidden channels.
"""

from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper
from evofeed.kernels.runtime.hopper_tiles import (
    copy_rows,
    lines_of,
    mma_layout,
    sigmoid_of_half,
    store_rows,
    tiles_of,
)


@gluon.jit
def _gate_and_value(ab, layout: gl.constexpr):
    """The gate's and the value's columns of a product with WAB."""
    ROWS: gl.constexpr = ab.shape[0]
    COLS: gl.constexpr = ab.shape[1] // 2
    x = gl.permute(gl.reshape(ab, [ROWS, COLS // 8, 2, 8]), (0, 1, 3, 2))
    a, b = gl.split(x)
    a = gl.convert_layout(gl.reshape(a, [ROWS, COLS]), layout, assert_trivial=True)
    b = gl.convert_layout(gl.reshape(b, [ROWS, COLS]), layout, assert_trivial=True)
    return a, b


@gluon.jit
def _interleaved(a, b, layout: gl.constexpr):
    """The inverse of `_gate_and_value`."""
    ROWS: gl.constexpr = a.shape[0]
    COLS: gl.constexpr = a.shape[1]
    x = gl.join(gl.reshape(a, [ROWS, COLS // 8, 8]), gl.reshape(b, [ROWS, COLS // 8, 8]))
    x = gl.reshape(gl.permute(x, (0, 1, 3, 2)), [ROWS, 2 * COLS])
    return gl.convert_layout(x, layout, assert_trivial=True)


@gluon.jit
def swiglu_rows_kernel(
    X, GAMMA, BETA, WAB, WO, MASK, OUT, STATS, M, eps,
    C: gl.constexpr, N: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_M: gl.constexpr,
    HAS_MASK: gl.constexpr, HAS_RES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """OUT = X + mask * (silu(layer_norm(X) WA^T) * (layer_norm(X) WB^T)) WO^T; also the statistics.

    N / BLOCK_N is even: parts of the weights alternate between two buffers, also across tiles.
    """
    dtype: gl.constexpr = X.dtype.element_ty
    lines: gl.constexpr = lines_of(C, num_warps)
    mma: gl.constexpr = mma_layout(BLOCK_M, BLOCK_N, num_warps)
    ab_mma: gl.constexpr = mma_layout(BLOCK_M, 2 * BLOCK_N, num_warps)
    out_mma: gl.constexpr = mma_layout(BLOCK_M, C, num_warps)
    operand: gl.constexpr = gl.DotOperandLayout(0, out_mma, 2)
    PARTS: gl.constexpr = N // BLOCK_N
    raw_tiles, x_tile = tiles_of(dtype, 2, BLOCK_M, C), tiles_of(dtype, 1, BLOCK_M, C).index(0)
    wab_tiles, wo_tiles = tiles_of(dtype, 2, 2 * BLOCK_N, C), tiles_of(dtype, 2, C, BLOCK_N)
    program, programs = gl.program_id(0), gl.num_programs(0)
    ab_zeros = gl.full([BLOCK_M, 2 * BLOCK_N], 0.0, gl.float32, ab_mma)
    c = gl.arange(0, C, gl.SliceLayout(0, lines))
    copy_rows(raw_tiles.index(0), X, program * BLOCK_M, M, C)
    copy_rows(wab_tiles.index(0), WAB, 0, 2 * BLOCK_N, C)
    copy_rows(wab_tiles.index(1), WAB + 2 * BLOCK_N * C, 0, 2 * BLOCK_N, C)
    copy_rows(wo_tiles.index(0), WO, 0, C, N)
    cp.commit_group()
    slot = 0
    for tile in range(program, gl.cdiv(M, BLOCK_M), programs):
        first = tile * BLOCK_M
        cp.wait_group(0)
        barrier()
        raw = raw_tiles.index(slot)
        x = raw.load(lines).to(gl.float32)
        mean = gl.sum(x, 1) / C
        x -= mean[:, None]
        rstd = 1.0 / gl.sqrt(gl.sum(x * x, 1) / C + eps)
        gamma, beta = gl.load(GAMMA + c).to(gl.float32), gl.load(BETA + c).to(gl.float32)
        x_tile.store((x * rstd[:, None] * gamma[None, :] + beta[None, :]).to(dtype))
        rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, lines))
        gl.store(STATS + rows, mean, mask=rows < M)
        gl.store(STATS + M + rows, rstd, mask=rows < M)
        hopper.fence_async_shared()
        barrier()
        out = gl.full([BLOCK_M, C], 0.0, gl.float32, out_mma)
        hidden = out
        ab = hopper.warpgroup_mma(
            x_tile, wab_tiles.index(0).permute((1, 0)), ab_zeros, use_acc=False, is_async=True
        )
        for part in gl.static_range(PARTS):
            cp.wait_group(0)
            if part == 0:
                ab = hopper.warpgroup_mma_wait(0, [ab])
            else:
                ab, out, _ = hopper.warpgroup_mma_wait(0, [ab, out, hidden])
            hopper.fence_async_shared()
            barrier()
            if part + 1 < PARTS:
                ab_next = hopper.warpgroup_mma(
                    x_tile, wab_tiles.index((part + 1) % 2).permute((1, 0)), ab_zeros,
                    use_acc=False, is_async=True,
                )  # fmt: skip
            after = (part + 2) % PARTS * 2 * BLOCK_N * C
            copy_rows(wab_tiles.index(part % 2), WAB + after, 0, 2 * BLOCK_N, C)
            copy_rows(wo_tiles.index((part + 1) % 2), WO + (part + 1) % PARTS * BLOCK_N, 0, C, N)
            if part == PARTS - 1:
                copy_rows(raw_tiles.index(1 - slot), X, first + programs * BLOCK_M, M, C)
            cp.commit_group()
            a, b = _gate_and_value(ab, mma)
            hidden = gl.convert_layout((a * sigmoid_of_half(0.5 * a) * b).to(dtype), operand)
            out = hopper.warpgroup_mma(
                hidden, wo_tiles.index(part % 2).permute((1, 0)), out, is_async=True
            )
            if part + 1 < PARTS:
                ab = ab_next
        out, _ = hopper.warpgroup_mma_wait(0, [out, hidden])
        if HAS_MASK:
            rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, out_mma))
            out *= gl.load(MASK + rows, mask=rows < M, other=0.0).to(gl.float32)[:, None]
        if HAS_RES:
            out += raw.load(out_mma).to(gl.float32)
        barrier()
        x_tile.store(out.to(dtype))
        barrier()
        store_rows(OUT, x_tile, first, M, C)
        barrier()
        slot = 1 - slot
    cp.wait_group(0)


@gluon.jit
def swiglu_weights_kernel(
    X, DY, MASK, WAB, WO, DAB, PARTIAL_AB, PARTIAL_O, M,
    C: gl.constexpr, N: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_M: gl.constexpr,
    HAS_MASK: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """DAB `[M, 2N]` from normalised rows X and the result's gradient DY, both `[M, C]`.

    Sums over the program's rows: PARTIAL_AB `[splits, 2N, C]` of DAB^T X, PARTIAL_O
    `[splits, C, N]` of DY^T hidden. MASK is a factor of each row of DY.
    """
    dtype: gl.constexpr = X.dtype.element_ty
    mma: gl.constexpr = mma_layout(BLOCK_M, BLOCK_N, num_warps)
    ab_mma: gl.constexpr = mma_layout(BLOCK_M, 2 * BLOCK_N, num_warps)
    in_mma: gl.constexpr = mma_layout(2 * BLOCK_N, C, num_warps)
    out_mma: gl.constexpr = mma_layout(C, BLOCK_N, num_warps)
    n0 = (gl.program_id(0) % (N // BLOCK_N)) * BLOCK_N
    split, splits = gl.program_id(0) // (N // BLOCK_N), gl.num_programs(0) // (N // BLOCK_N)
    wab_tile = tiles_of(dtype, 1, 2 * BLOCK_N, C).index(0)
    wo_tile = tiles_of(dtype, 1, C, BLOCK_N).index(0)
    x_tiles, dy_tiles = tiles_of(dtype, 2, BLOCK_M, C), tiles_of(dtype, 2, BLOCK_M, C)
    dab_tile = tiles_of(dtype, 1, BLOCK_M, 2 * BLOCK_N).index(0)
    hidden_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_N).index(0)
    copy_rows(wab_tile, WAB + 2 * n0 * C, 0, 2 * BLOCK_N, C)
    copy_rows(wo_tile, WO + n0, 0, C, N)
    copy_rows(x_tiles.index(0), X, split * BLOCK_M, M, C)
    copy_rows(dy_tiles.index(0), DY, split * BLOCK_M, M, C)
    cp.commit_group()
    ab_zeros = gl.full([BLOCK_M, 2 * BLOCK_N], 0.0, gl.float32, ab_mma)
    zeros = gl.full([BLOCK_M, BLOCK_N], 0.0, gl.float32, mma)
    dwab = gl.full([2 * BLOCK_N, C], 0.0, gl.float32, in_mma)
    dwo = gl.full([C, BLOCK_N], 0.0, gl.float32, out_mma)
    rows = split * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
    if HAS_MASK:  # prefetched: after this tile's products it would be waited for
        next_mask = gl.load(MASK + rows, mask=rows < M, other=0.0)
    slot = 0
    for tile in range(split, gl.cdiv(M, BLOCK_M), splits):
        cp.wait_group(0)
        hopper.fence_async_shared()
        barrier()
        x_tile, dy_tile = x_tiles.index(slot), dy_tiles.index(slot)
        ab = hopper.warpgroup_mma(
            x_tile, wab_tile.permute((1, 0)), ab_zeros, use_acc=False, is_async=True
        )
        d = hopper.warpgroup_mma(dy_tile, wo_tile, zeros, use_acc=False, is_async=True)
        after = (tile + splits) * BLOCK_M
        copy_rows(x_tiles.index(1 - slot), X, after, M, C)
        copy_rows(dy_tiles.index(1 - slot), DY, after, M, C)
        cp.commit_group()
        ab = hopper.warpgroup_mma_wait(1, [ab])
        a, b = _gate_and_value(ab, mma)
        sig = sigmoid_of_half(0.5 * a)
        silu = a * sig
        slope = (sig + silu * (1.0 - sig)) * b
        if HAS_MASK:  # for both factors of DY
            mask = next_mask.to(gl.float32)[:, None]
            slope, silu = slope * mask, silu * mask
        hidden_tile.store((silu * b).to(dtype))
        d = hopper.warpgroup_mma_wait(0, [d])
        dab_tile.store(_interleaved((d * slope).to(dtype), (d * silu).to(dtype), ab_mma))
        hopper.fence_async_shared()
        barrier()
        next_ab = hopper.warpgroup_mma(dab_tile.permute((1, 0)), x_tile, dwab, is_async=True)
        next_o = hopper.warpgroup_mma(dy_tile.permute((1, 0)), hidden_tile, dwo, is_async=True)
        if HAS_MASK:
            rows += splits * BLOCK_M
            next_mask = gl.load(MASK + rows, mask=rows < M, other=0.0)
        store_rows(DAB + 2 * n0, dab_tile, tile * BLOCK_M, M, 2 * N)
        dwab, dwo = hopper.warpgroup_mma_wait(0, [next_ab, next_o])
        slot = 1 - slot
    cp.wait_group(0)
    PARTIAL_AB += split.to(gl.int64) * 2 * N * C
    PARTIAL_O += split.to(gl.int64) * N * C
    n = 2 * n0 + gl.arange(0, 2 * BLOCK_N, gl.SliceLayout(1, in_mma))
    c = gl.arange(0, C, gl.SliceLayout(0, in_mma))
    gl.store(PARTIAL_AB + (n[:, None] * C + c[None, :]), dwab)
    n = n0 + gl.arange(0, BLOCK_N, gl.SliceLayout(0, out_mma))
    c = gl.arange(0, C, gl.SliceLayout(1, out_mma))
    gl.store(PARTIAL_O + (c[:, None] * N + n[None, :]), dwo)
