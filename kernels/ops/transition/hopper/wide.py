# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""A transition's forward pass at 256 channels on Hopper, in 16 bits, in Gluon.

As `forward.py`, but registers have no room for the rows beside the result: normalised rows are
in shared memory, where the residual takes their place for a tile's end.

Letters: M rows, C channels, N hidden channels.
"""

from evofeed.kernels.runtime.backend import barrier, gl, gluon, hopper, mbarrier, tma
from evofeed.kernels.runtime.hopper_tiles import bars_of, fetch, float32, lines_of

FULL = gl.constexpr(0)  # of the rows' barriers: the rows are there,
FREE = gl.constexpr(1)  # there is room for the next,
AGAIN = gl.constexpr(2)  # they are there once more


@gluon.jit
def _load(
    rows, weights, tiles, x_bars, bars, M, N: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The warp that loads: tiles of rows, and for each all pieces of both weights."""
    x_tile, first_tiles, second_tiles = tiles
    C: gl.constexpr = x_tile.shape[1]
    full, free = bars
    phase, stage, turn = 1, 0, 1
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M), gl.num_programs(0)):
        mbarrier.wait(x_bars.index(FREE), phase)
        mbarrier.expect(x_bars.index(FULL), BLOCK_M * C * 2)
        fetch(x_tile, rows, tile * BLOCK_M, 0, x_bars.index(FULL), True)
        for first in range(0, N, BLOCK_N):
            mbarrier.wait(free.index(stage), turn)
            bar = full.index(stage)
            mbarrier.expect(bar, BLOCK_N * C * 4)
            fetch(first_tiles.index(stage), weights[0], first, 0, bar, True)
            fetch(second_tiles.index(stage), weights[1], 0, first, bar, True)
            stage += 1
            if stage == STAGES:
                stage, turn = 0, turn ^ 1
        phase ^= 1


@gluon.jit
def _compute(
    rows, out_rows, normed_rows, tiles, x_bars, bars, vectors, STATS, M, eps, N: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, KEEP: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """The warps that multiply: while one half finishes a piece, the other's products run."""
    x_tile, first_tiles, second_tiles = tiles
    C: gl.constexpr = x_tile.shape[1]
    dtype: gl.constexpr = x_tile.dtype
    full, free = bars
    GAMMA, BETA, B1, B2 = vectors
    lines: gl.constexpr = lines_of(C, num_warps)
    hidden_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_N, 16])
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, C, 16])
    hidden_left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    of_hidden: gl.constexpr = gl.SliceLayout(0, hidden_mma)
    STEPS: gl.constexpr = N // BLOCK_N
    hidden_zeros = gl.full([BLOCK_M, BLOCK_N], 0.0, gl.float32, hidden_mma)
    zeros = gl.full([BLOCK_M, C], 0.0, gl.float32, mma)
    c = gl.arange(0, C, gl.SliceLayout(0, lines))
    phase, stage, turn = 0, 0, 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M), gl.num_programs(0)):
        first = tile * BLOCK_M
        mbarrier.wait(x_bars.index(FULL), phase)
        x = float32(x_tile.load(lines))
        mean = gl.sum(x, 1) / C
        x -= mean[:, None]
        rstd = 1.0 / gl.sqrt(gl.sum(x * x, 1) / C + eps)
        gamma, beta = gl.load(GAMMA + c).to(gl.float32), gl.load(BETA + c).to(gl.float32)
        x_tile.store((x * rstd[:, None] * gamma[None, :] + beta[None, :]).to(dtype))
        hopper.fence_async_shared()
        barrier()
        m = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, lines))
        gl.store(STATS + m, mean, mask=m < M)
        gl.store(STATS + M + m, rstd, mask=m < M)
        if KEEP:
            tma.async_copy_shared_to_global(normed_rows, [first, 0], x_tile)
        out = zeros
        mbarrier.wait(full.index(stage), turn)
        w1 = first_tiles.index(stage).permute((1, 0))
        h = hopper.warpgroup_mma(x_tile, w1, hidden_zeros, use_acc=False, is_async=True)
        before = stage
        hidden = gl.full([BLOCK_M, BLOCK_N], 0.0, dtype, hidden_left)
        for k in gl.static_range(STEPS):
            h, out, hidden = hopper.warpgroup_mma_wait(0, [h, out, hidden])
            if k > 0:
                mbarrier.arrive(free.index(before), count=1)
            b1 = gl.load(B1 + k * BLOCK_N + gl.arange(0, BLOCK_N, of_hidden)).to(gl.float32)
            hidden = gl.maximum(h + b1[None, :], 0.0).to(dtype)
            hidden = gl.convert_layout(hidden, hidden_left)
            w2 = second_tiles.index(stage).permute((1, 0))
            out = hopper.warpgroup_mma(hidden, w2, out, is_async=True)
            before = stage
            stage += 1
            if stage == STAGES:
                stage, turn = 0, turn ^ 1
            if k + 1 < STEPS:
                mbarrier.wait(full.index(stage), turn)
                w1 = first_tiles.index(stage).permute((1, 0))
                h = hopper.warpgroup_mma(x_tile, w1, hidden_zeros, use_acc=False, is_async=True)
            else:
                tma.store_wait(0)
                barrier()  # nobody reads the normalised rows any more
                mbarrier.expect(x_bars.index(AGAIN), BLOCK_M * C * 2)
                fetch(x_tile, rows, first, 0, x_bars.index(AGAIN), True)
        out, hidden = hopper.warpgroup_mma_wait(0, [out, hidden])
        mbarrier.arrive(free.index(before), count=1)
        out += gl.load(B2 + gl.arange(0, C, gl.SliceLayout(0, mma))).to(gl.float32)[None, :]
        mbarrier.wait(x_bars.index(AGAIN), phase)
        out += float32(x_tile.load(mma))
        barrier()
        x_tile.store(out.to(dtype))
        hopper.fence_async_shared()
        barrier()
        tma.async_copy_shared_to_global(out_rows, [first, 0], x_tile)
        tma.store_wait(0)
        mbarrier.arrive(x_bars.index(FREE), count=1)
        phase ^= 1


@gluon.jit
def transition_wide_kernel(
    GAMMA, BETA, B1, B2, STATS, x_rows, w1_rows, w2_rows, out_rows, normed_rows, M, eps,
    C: gl.constexpr, N: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, KEEP: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out = x + relu(normed W1^T + B1) W2^T + B2, statistics of rows, and with KEEP normed."""
    dtype: gl.constexpr = x_rows.dtype
    tiles = (
        gl.allocate_shared_memory(dtype, [BLOCK_M, C], x_rows.layout),
        gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, C], w1_rows.layout),
        gl.allocate_shared_memory(dtype, [STAGES, C, BLOCK_N], w2_rows.layout),
    )
    x_bars, bars = bars_of(3), (bars_of(STAGES), bars_of(STAGES))
    vectors = (GAMMA, BETA, B1, B2)
    gl.warp_specialize(
        [
            (_compute, (x_rows, out_rows, normed_rows, tiles, x_bars, bars, vectors, STATS, M, eps,
                        N, BLOCK_M, BLOCK_N, STAGES, KEEP, num_warps)),
            (_load, (x_rows, (w1_rows, w2_rows), tiles, x_bars, bars, M, N, BLOCK_M, BLOCK_N,
                     STAGES)),
        ],
        [1], [24],
    )  # fmt: skip
