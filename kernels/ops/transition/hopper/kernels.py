# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""The hidden layer's share of a transition's backward pass on Hopper, in 16 bits, in Gluon.

A program owns some hidden channels and loops over tiles of rows: it recomputes its channels of
the hidden layer and their gradient, and adds to its part of the gradients of the two weights,
which it holds in registers. The hidden layer is never written, its gradient once.

Letters: M rows, C channels, N hidden channels.
"""

from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper, mbarrier
from evofeed.kernels.runtime.hopper_tiles import (
    add_columns,
    bars_of,
    copy_rows,
    fetch,
    mma_layout,
    store_rows,
    store_sums,
    tiles_of,
    zero_sums,
)


@gluon.jit
def _fetch_rows(x_tiles, dy_tiles, x_rows, dy_rows, bars, slot, first, M):
    """Starts the copies of rows from `first` on by the copy engine, if any are below M."""
    x_tile, exists = x_tiles.index(slot), first < M
    mbarrier.expect(bars.index(slot), x_tile.shape[0] * x_tile.shape[1] * 4, pred=exists)
    fetch(x_tile, x_rows, first, 0, bars.index(slot), exists)
    fetch(dy_tiles.index(slot), dy_rows, first, 0, bars.index(slot), exists)


@gluon.jit
def transition_grad_kernel(
    X, DY, x_rows, dy_rows, W1, B1, W2, DHIDDEN, PARTIAL_1, PARTIAL_2, PARTIAL, M,
    C: gl.constexpr, N: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_M: gl.constexpr,
    BY_ENGINE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """DHIDDEN = (DY W2) where X W1^T + B1 > 0, and sums over the program's rows.

    PARTIAL_1 `[splits, N, C]` of DHIDDEN^T X, PARTIAL_2 `[splits, C, N]` of DY^T hidden, PARTIAL
    `[splits, N]` of DHIDDEN. With BY_ENGINE the copy engine loads X and DY.
    """
    dtype: gl.constexpr = X.dtype.element_ty
    mma: gl.constexpr = mma_layout(BLOCK_M, BLOCK_N, num_warps)
    first_mma: gl.constexpr = mma_layout(BLOCK_N, C, num_warps)
    second_mma: gl.constexpr = mma_layout(C, BLOCK_N, num_warps)
    n0 = (gl.program_id(0) % (N // BLOCK_N)) * BLOCK_N
    split, splits = gl.program_id(0) // (N // BLOCK_N), gl.num_programs(0) // (N // BLOCK_N)
    w1_tile = tiles_of(dtype, 1, BLOCK_N, C).index(0)
    w2_tile = tiles_of(dtype, 1, C, BLOCK_N).index(0)
    x_tiles, dy_tiles = tiles_of(dtype, 2, BLOCK_M, C), tiles_of(dtype, 2, BLOCK_M, C)
    hidden_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_N).index(0)
    d_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_N).index(0)
    copy_rows(w1_tile, W1 + n0 * C, 0, BLOCK_N, C)
    copy_rows(w2_tile, W2 + n0, 0, C, N)
    if BY_ENGINE:
        bars = bars_of(2)
        _fetch_rows(x_tiles, dy_tiles, x_rows, dy_rows, bars, 0, split * BLOCK_M, M)
    else:
        copy_rows(x_tiles.index(0), X, split * BLOCK_M, M, C)
        copy_rows(dy_tiles.index(0), DY, split * BLOCK_M, M, C)
    cp.commit_group()
    b1 = gl.load(B1 + n0 + gl.arange(0, BLOCK_N, gl.SliceLayout(0, mma))).to(gl.float32)
    zeros = gl.full([BLOCK_M, BLOCK_N], 0.0, gl.float32, mma)
    dw1 = gl.full([BLOCK_N, C], 0.0, gl.float32, first_mma)
    dw2 = gl.full([C, BLOCK_N], 0.0, gl.float32, second_mma)
    sums = zero_sums(BLOCK_M, BLOCK_N)
    slot, phase = 0, 0
    for tile in range(split, gl.cdiv(M, BLOCK_M), splits):
        after = (tile + splits) * BLOCK_M
        cp.wait_group(0)
        hopper.fence_async_shared()
        barrier()
        if BY_ENGINE:
            _fetch_rows(x_tiles, dy_tiles, x_rows, dy_rows, bars, 1 - slot, after, M)
            mbarrier.wait(bars.index(slot), phase)
        else:
            copy_rows(x_tiles.index(1 - slot), X, after, M, C)
            copy_rows(dy_tiles.index(1 - slot), DY, after, M, C)
            cp.commit_group()
        x_tile, dy_tile = x_tiles.index(slot), dy_tiles.index(slot)
        hidden = hopper.warpgroup_mma(
            x_tile, w1_tile.permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        d = hopper.warpgroup_mma(dy_tile, w2_tile, zeros, use_acc=False, is_async=True)
        hidden = hopper.warpgroup_mma_wait(1, [hidden]) + b1[None, :]
        hidden_tile.store(gl.maximum(hidden, 0.0).to(dtype))
        d = hopper.warpgroup_mma_wait(0, [d])
        d_tile.store(gl.where(hidden > 0.0, d, 0.0).to(dtype))
        hopper.fence_async_shared()
        barrier()
        next_1 = hopper.warpgroup_mma(d_tile.permute((1, 0)), x_tile, dw1, is_async=True)
        next_2 = hopper.warpgroup_mma(dy_tile.permute((1, 0)), hidden_tile, dw2, is_async=True)
        sums = add_columns(sums, store_rows(DHIDDEN + n0, d_tile, tile * BLOCK_M, M, N))
        dw1, dw2 = hopper.warpgroup_mma_wait(0, [next_1, next_2])
        phase ^= slot  # a slot's next copy is another phase of its barrier
        slot = 1 - slot
    cp.wait_group(0)
    PARTIAL_1 += split.to(gl.int64) * N * C
    PARTIAL_2 += split.to(gl.int64) * N * C
    n = n0 + gl.arange(0, BLOCK_N, gl.SliceLayout(1, first_mma))
    c = gl.arange(0, C, gl.SliceLayout(0, first_mma))
    gl.store(PARTIAL_1 + (n[:, None] * C + c[None, :]), dw1)
    n = n0 + gl.arange(0, BLOCK_N, gl.SliceLayout(0, second_mma))
    c = gl.arange(0, C, gl.SliceLayout(1, second_mma))
    gl.store(PARTIAL_2 + (c[:, None] * N + n[None, :]), dw2)
    store_sums(PARTIAL + split * N + n0, sums)
