# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""The hidden layer's share of a SwiGLU transition's backward pass on Hopper, in 16 bits, in Gluon.

A program owns some hidden channels and walks over tiles of rows: it rebuilds its channels of
both layers, takes their gradients, which it writes, and adds all to its part of the gradients of
the three weights, which it holds in registers. The hidden layer is never written.

Letters: M rows, C channels, N hidden channels.
"""

from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper
from evofeed.kernels.runtime.hopper_tiles import (
    copy_rows,
    mma_layout,
    sigmoid_exp2,
    store_rows,
    tiles_of,
)

LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def swiglu_weights_kernel(
    X, DY, MASK, WAB, WO, DAB, PARTIAL_A, PARTIAL_B, PARTIAL_O, M,
    C: gl.constexpr, N: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_M: gl.constexpr,
    HAS_MASK: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """DAB `[M, 2N]` from normalised rows X and the result's gradient DY, both `[M, C]`.

    Sums over the program's rows: PARTIAL_A and PARTIAL_B `[splits, N, C]` of dA^T X and dB^T X,
    PARTIAL_O `[splits, C, N]` of DY^T hidden. MASK is a factor of each row of DY.
    """
    dtype: gl.constexpr = X.dtype.element_ty
    mma: gl.constexpr = mma_layout(BLOCK_M, BLOCK_N, num_warps)
    in_mma: gl.constexpr = mma_layout(BLOCK_N, C, num_warps)
    out_mma: gl.constexpr = mma_layout(C, BLOCK_N, num_warps)
    n0 = (gl.program_id(0) % (N // BLOCK_N)) * BLOCK_N
    split, splits = gl.program_id(0) // (N // BLOCK_N), gl.num_programs(0) // (N // BLOCK_N)
    wa_tile, wb_tile = (
        tiles_of(dtype, 1, BLOCK_N, C).index(0),
        tiles_of(dtype, 1, BLOCK_N, C).index(0),
    )
    wo_tile = tiles_of(dtype, 1, C, BLOCK_N).index(0)
    x_tiles, dy_tiles = tiles_of(dtype, 2, BLOCK_M, C), tiles_of(dtype, 2, BLOCK_M, C)
    da_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_N).index(0)
    db_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_N).index(0)
    hidden_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_N).index(0)
    copy_rows(wa_tile, WAB + n0 * C, 0, BLOCK_N, C)
    copy_rows(wb_tile, WAB + (N + n0) * C, 0, BLOCK_N, C)
    copy_rows(wo_tile, WO + n0, 0, C, N)
    copy_rows(x_tiles.index(0), X, split * BLOCK_M, M, C)
    copy_rows(dy_tiles.index(0), DY, split * BLOCK_M, M, C)
    cp.commit_group()
    zeros = gl.full([BLOCK_M, BLOCK_N], 0.0, gl.float32, mma)
    in_zeros = gl.full([BLOCK_N, C], 0.0, gl.float32, in_mma)
    dwa, dwb = in_zeros, in_zeros
    dwo = gl.full([C, BLOCK_N], 0.0, gl.float32, out_mma)
    slot = 0
    for tile in range(split, gl.cdiv(M, BLOCK_M), splits):
        cp.wait_group(0)
        hopper.fence_async_shared()
        barrier()
        x_tile, dy_tile = x_tiles.index(slot), dy_tiles.index(slot)
        wa, wb = wa_tile.permute((1, 0)), wb_tile.permute((1, 0))
        a = hopper.warpgroup_mma(x_tile, wa, zeros, use_acc=False, is_async=True)
        b = hopper.warpgroup_mma(x_tile, wb, zeros, use_acc=False, is_async=True)
        d = hopper.warpgroup_mma(dy_tile, wo_tile, zeros, use_acc=False, is_async=True)
        rows = tile * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
        if HAS_MASK:
            mask = gl.load(MASK + rows, mask=rows < M, other=0.0).to(gl.float32)
        after = (tile + splits) * BLOCK_M
        copy_rows(x_tiles.index(1 - slot), X, after, M, C)
        copy_rows(dy_tiles.index(1 - slot), DY, after, M, C)
        cp.commit_group()
        a = hopper.warpgroup_mma_wait(2, [a])
        sig = sigmoid_exp2(-LOG2E * a)
        silu = a * sig
        slope = sig + silu * (1.0 - sig)
        if HAS_MASK:  # of both factors that DY is multiplied with
            slope, silu = slope * mask[:, None], silu * mask[:, None]
        b = hopper.warpgroup_mma_wait(1, [b])
        hidden_tile.store((silu * b).to(dtype))
        slope *= b
        d = hopper.warpgroup_mma_wait(0, [d])
        da_tile.store((d * slope).to(dtype))
        db_tile.store((d * silu).to(dtype))
        hopper.fence_async_shared()
        barrier()
        next_a = hopper.warpgroup_mma(da_tile.permute((1, 0)), x_tile, dwa, is_async=True)
        next_b = hopper.warpgroup_mma(db_tile.permute((1, 0)), x_tile, dwb, is_async=True)
        next_o = hopper.warpgroup_mma(dy_tile.permute((1, 0)), hidden_tile, dwo, is_async=True)
        store_rows(DAB + n0, da_tile, tile * BLOCK_M, M, 2 * N)
        store_rows(DAB + N + n0, db_tile, tile * BLOCK_M, M, 2 * N)
        dwa, dwb, dwo = hopper.warpgroup_mma_wait(0, [next_a, next_b, next_o])
        slot = 1 - slot
    cp.wait_group(0)
    PARTIAL_A += split.to(gl.int64) * N * C
    PARTIAL_B += split.to(gl.int64) * N * C
    PARTIAL_O += split.to(gl.int64) * N * C
    n = n0 + gl.arange(0, BLOCK_N, gl.SliceLayout(1, in_mma))
    c = gl.arange(0, C, gl.SliceLayout(0, in_mma))
    gl.store(PARTIAL_A + (n[:, None] * C + c[None, :]), dwa)
    gl.store(PARTIAL_B + (n[:, None] * C + c[None, :]), dwb)
    n = n0 + gl.arange(0, BLOCK_N, gl.SliceLayout(0, out_mma))
    c = gl.arange(0, C, gl.SliceLayout(1, out_mma))
    gl.store(PARTIAL_O + (c[:, None] * N + n[None, :]), dwo)
