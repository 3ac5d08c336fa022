# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""A whole transition's forward pass on Hopper, in 16 bits, in Gluon: a warp loads, eight multiply.

What `triton.mlp_kernel` computes. The weights do not fit beside each other in shared memory: they
come in pieces of BLOCK_N hidden channels, asked for by a warp of its own while the others multiply.
The hidden layer never leaves the registers.

Letters: M rows, C channels, N hidden channels.
"""

from evofeed.kernels.runtime.backend import barrier, gl, gluon, hopper, mbarrier, tma
from evofeed.kernels.runtime.hopper_tiles import bars_of, fetch, float32


@gluon.jit
def _load(
    rows, weights, tiles, full, free, M, N: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The warp that loads: tiles of rows, and for each all pieces of both weights."""
    x_tiles, first_tiles, second_tiles = tiles
    C: gl.constexpr = x_tiles.shape[2]
    x_full, w_full = full
    x_free, w_free = free
    slot, phase, stage, turn = 0, 1, 0, 1
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M), gl.num_programs(0)):
        mbarrier.wait(x_free.index(slot), phase)
        mbarrier.expect(x_full.index(slot), BLOCK_M * C * 2)
        fetch(x_tiles.index(slot), rows, tile * BLOCK_M, 0, x_full.index(slot), True)
        for first in range(0, N, BLOCK_N):
            mbarrier.wait(w_free.index(stage), turn)
            bar = w_full.index(stage)
            mbarrier.expect(bar, BLOCK_N * C * 4)
            fetch(first_tiles.index(stage), weights[0], first, 0, bar, True)
            fetch(second_tiles.index(stage), weights[1], 0, first, bar, True)
            stage += 1
            if stage == STAGES:
                stage, turn = 0, turn ^ 1
        phase ^= slot
        slot = 1 - slot


@gluon.jit
def _compute(
    out_rows, tiles, full, free, vectors, MASK, STATS, M, eps, N: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, HAS_MASK: gl.constexpr,
    HAS_RES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The warps that multiply: while one half finishes a piece, the other's products run."""
    x_tiles, first_tiles, second_tiles = tiles
    C: gl.constexpr = x_tiles.shape[2]
    dtype: gl.constexpr = x_tiles.dtype
    x_full, w_full = full
    x_free, w_free = free
    GAMMA, BETA, B1, B2 = vectors
    hidden_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_N, 16])
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, C, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, hidden_mma, 2)
    hidden_left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    of_hidden: gl.constexpr = gl.SliceLayout(0, hidden_mma)
    STEPS: gl.constexpr = N // BLOCK_N
    hidden_zeros = gl.full([BLOCK_M, BLOCK_N], 0.0, gl.float32, hidden_mma)
    zeros = gl.full([BLOCK_M, C], 0.0, gl.float32, mma)
    c = gl.arange(0, C, gl.SliceLayout(0, left))
    slot, phase, stage, turn = 0, 0, 0, 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M), gl.num_programs(0)):
        first = tile * BLOCK_M
        x_tile = x_tiles.index(slot)
        mbarrier.wait(x_full.index(slot), phase)
        x = float32(x_tile.load(left))
        mean = gl.sum(x, 1) / C
        x -= mean[:, None]
        rstd = 1.0 / gl.sqrt(gl.sum(x * x, 1) / C + eps)
        rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, left))
        gl.store(STATS + rows, mean, mask=rows < M)
        gl.store(STATS + M + rows, rstd, mask=rows < M)
        gamma, beta = gl.load(GAMMA + c).to(gl.float32), gl.load(BETA + c).to(gl.float32)
        a = (x * rstd[:, None] * gamma[None, :] + beta[None, :]).to(dtype)
        out = zeros
        mbarrier.wait(w_full.index(stage), turn)
        w1 = first_tiles.index(stage).permute((1, 0))
        h = hopper.warpgroup_mma(a, w1, hidden_zeros, use_acc=False, is_async=True)
        before = stage
        hidden = gl.full([BLOCK_M, BLOCK_N], 0.0, dtype, hidden_left)
        for k in gl.static_range(STEPS):
            h, out, a, hidden = hopper.warpgroup_mma_wait(0, [h, out, a, hidden])
            if k > 0:
                mbarrier.arrive(w_free.index(before), count=1)
            b1 = gl.load(B1 + k * BLOCK_N + gl.arange(0, BLOCK_N, of_hidden)).to(gl.float32)
            hidden = gl.maximum(h + b1[None, :], 0.0).to(dtype)
            hidden = gl.convert_layout(hidden, hidden_left)
            w2 = second_tiles.index(stage).permute((1, 0))
            out = hopper.warpgroup_mma(hidden, w2, out, is_async=True)
            before = stage
            stage += 1
            if stage == STAGES:
                stage, turn = 0, turn ^ 1
            if k == 1:  # the rows before have left by now
                tma.store_wait(0)
                mbarrier.arrive(x_free.index(1 - slot), count=1, pred=tile >= gl.num_programs(0))
            if k + 1 < STEPS:
                mbarrier.wait(w_full.index(stage), turn)
                w1 = first_tiles.index(stage).permute((1, 0))
                h = hopper.warpgroup_mma(a, w1, hidden_zeros, use_acc=False, is_async=True)
        out, hidden = hopper.warpgroup_mma_wait(0, [out, hidden])
        mbarrier.arrive(w_free.index(before), count=1)
        out += gl.load(B2 + gl.arange(0, C, gl.SliceLayout(0, mma))).to(gl.float32)[None, :]
        if HAS_MASK:
            rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
            out *= gl.load(MASK + rows, mask=rows < M, other=0.0).to(gl.float32)[:, None]
        if HAS_RES:
            out += float32(x_tile.load(mma))
        barrier()
        x_tile.store(out.to(dtype))
        hopper.fence_async_shared()
        barrier()
        tma.async_copy_shared_to_global(out_rows, [first, 0], x_tile)
        phase ^= slot
        slot = 1 - slot
    tma.store_wait(0)


@gluon.jit
def transition_kernel(
    GAMMA, BETA, B1, B2, MASK, STATS, x_rows, w1_rows, w2_rows, out_rows, M, eps,
    C: gl.constexpr, N: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, HAS_MASK: gl.constexpr, HAS_RES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out = x + MASK * (relu(layer_norm(x) W1^T + B1) W2^T + B2), and statistics of rows."""
    dtype: gl.constexpr = x_rows.dtype
    tiles = (
        gl.allocate_shared_memory(dtype, [2, BLOCK_M, C], x_rows.layout),
        gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, C], w1_rows.layout),
        gl.allocate_shared_memory(dtype, [STAGES, C, BLOCK_N], w2_rows.layout),
    )
    full, free = (bars_of(2), bars_of(STAGES)), (bars_of(2), bars_of(STAGES))
    vectors = (GAMMA, BETA, B1, B2)
    gl.warp_specialize(
        [
            (_compute, (out_rows, tiles, full, free, vectors, MASK, STATS, M, eps, N, BLOCK_M,
                        BLOCK_N, STAGES, HAS_MASK, HAS_RES, num_warps)),
            (_load, (x_rows, (w1_rows, w2_rows), tiles, full, free, M, N, BLOCK_M, BLOCK_N,
                     STAGES)),
        ],
        [1], [24],
    )  # fmt: skip
