# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""The gated projections of a triangle multiplication on Hopper: a warp loads, two groups multiply.

Computes the same as Triton's `triangle_in_kernel`. All weights stay in shared memory; each group
of four warps has separate tiles of pairs, so that one's products run while the other finishes. A
tile is normalised in registers, from where tensor cores read it.

Letters: M pairs, C channels of the pairs, E hidden channels.
"""

from evofeed.kernels.runtime.backend import barrier, gl, gluon, hopper, mbarrier, tma
from evofeed.kernels.runtime.hopper_tiles import (
    bars_of,
    fetch,
    float32,
    load_vector,
    tanh,
    tiles_of,
    vectors_of,
)

GROUPS = gl.constexpr(2)


@gluon.jit
def _load(z_rows, w_rows, z_tiles, w_tiles, bars, M):
    """The warp that loads: the weights, then a tile for each group in turn."""
    BLOCK_M: gl.constexpr = z_tiles.shape[1]
    E: gl.constexpr = w_tiles.shape[1]
    C: gl.constexpr = w_tiles.shape[2]
    full, free, w_full = bars
    bar, turn = w_full.index(0), 1
    mbarrier.expect(bar, 4 * E * C * 2)
    for n in gl.static_range(4):
        fetch(w_tiles.index(n), w_rows, n * E, 0, bar, True)
    programs, tiles = gl.num_programs(0) * GROUPS, gl.cdiv(M, BLOCK_M)
    for start in range(gl.program_id(0) * GROUPS, tiles, programs):
        for g in gl.static_range(GROUPS):
            bar, exists = full.index(g), start + g < tiles
            mbarrier.wait(free.index(g), turn)
            mbarrier.expect(bar, BLOCK_M * C * 2, pred=exists)
            fetch(z_tiles.index(g), z_rows, (start + g) * BLOCK_M, 0, bar, exists)
        turn ^= 1


@gluon.jit
def _compute(
    MASK, STATS, ab_rows, z_tiles, w_tiles, ab_tiles, vectors, bars, M, eps, GROUP: gl.constexpr
):
    """A group of four warps: norm, projections and gates of every GROUPS-th tile."""
    BLOCK_M: gl.constexpr = z_tiles.shape[1]
    E: gl.constexpr = w_tiles.shape[1]
    C: gl.constexpr = w_tiles.shape[2]
    dtype: gl.constexpr = z_tiles.dtype
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, E, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    of_c: gl.constexpr = gl.SliceLayout(0, left)
    of_e: gl.constexpr = gl.SliceLayout(0, mma)
    norm, biases = vectors
    full, free, w_full = bars
    z_tile, ab_tile = z_tiles.index(GROUP), ab_tiles.index(GROUP)
    zeros = gl.full([BLOCK_M, E], 0.0, gl.float32, mma)
    mbarrier.wait(w_full.index(0), 0)
    phase = 0
    programs = gl.num_programs(0) * GROUPS
    for tile in range(gl.program_id(0) * GROUPS + GROUP, gl.cdiv(M, BLOCK_M), programs):
        first = tile * BLOCK_M
        mask_rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
        half = gl.load(MASK + mask_rows, mask=mask_rows < M, other=0.0).to(gl.float32) * 0.5
        mbarrier.wait(full.index(GROUP), phase)
        z = float32(z_tile.load(left))
        mean = gl.sum(z, 1) / C
        z -= mean[:, None]
        mbarrier.arrive(free.index(GROUP), count=1)
        rstd = 1.0 / gl.sqrt(gl.sum(z * z, 1) / C + eps)
        rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, left))
        gl.store(STATS + rows, mean, mask=rows < M)
        gl.store(STATS + M + rows, rstd, mask=rows < M)
        gamma, beta = norm.index(0).load(of_c), norm.index(1).load(of_c)
        z = (z * rstd[:, None] * gamma[None, :] + beta[None, :]).to(dtype)
        for k in gl.static_range(2):  # a, b
            wp = w_tiles.index(2 * k).permute((1, 0))
            wg = w_tiles.index(2 * k + 1).permute((1, 0))
            g = hopper.warpgroup_mma(z, wg, zeros, use_acc=False, is_async=True)
            p = hopper.warpgroup_mma(z, wp, zeros, use_acc=False, is_async=True)
            g, p, z = hopper.warpgroup_mma_wait(0, [g, p, z])
            of_p, of_g = biases.index(2 * k).load(of_e), biases.index(2 * k + 1).load(of_e)
            gate = tanh(g * 0.5 + of_g[None, :]) * half[:, None] + half[:, None]
            y = ((p + of_p[None, :]) * gate).to(dtype)
            tma.store_wait(0)
            barrier()
            ab_tile.permute((1, 0)).store(y)
            hopper.fence_async_shared()
            barrier()
            tma.async_copy_shared_to_global(ab_rows, [k * E, first], ab_tile)
        phase ^= 1
    tma.store_wait(0)


@gluon.jit
def triangle_projections_kernel(
    GAMMA, BETA, BIAS, MASK, STATS, z_rows, w_rows, ab_rows, M, eps,
    C: gl.constexpr, E: gl.constexpr, BLOCK_M: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """ab `[2 E, M]` = mask * sigmoid(gate) * projection of the normalised pairs, and statistics.

    The weights `[4 E, C]` are four blocks: a's projection, a's gate, b's projection, b's gate.
    """
    dtype: gl.constexpr = z_rows.dtype
    z_tiles, w_tiles = tiles_of(dtype, GROUPS, BLOCK_M, C), tiles_of(dtype, 4, E, C)
    ab_tiles = tiles_of(dtype, GROUPS, E, BLOCK_M)
    bars = (bars_of(GROUPS), bars_of(GROUPS), bars_of(1))  # tiles full, tiles free, weights full
    norm, biases = vectors_of(2, C), vectors_of(4, E)
    load_vector(norm.index(0), GAMMA, 1.0)
    load_vector(norm.index(1), BETA, 1.0)
    for n in gl.static_range(2):
        load_vector(biases.index(2 * n), BIAS + 2 * n * E, 1.0)
        load_vector(biases.index(2 * n + 1), BIAS + (2 * n + 1) * E, 0.5)  # tanh takes half
    vectors = (norm, biases)
    gl.warp_specialize(
        [
            (_compute, (MASK, STATS, ab_rows, z_tiles, w_tiles, ab_tiles, vectors, bars, M, eps,
                        0)),
            (_compute, (MASK, STATS, ab_rows, z_tiles, w_tiles, ab_tiles, vectors, bars, M, eps,
                        1)),
            (_load, (z_rows, w_rows, z_tiles, w_tiles, bars, M)),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip
