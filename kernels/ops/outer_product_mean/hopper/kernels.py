# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""The outer product and its projection on Hopper's tensor cores, in 16 bits, in Gluon.

Letters: S sequences, L residues i here, R residues j, E = 32 channels of a projection (c of i, e of
j), N output channels, M = L * R pairs.
"""

from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper, mbarrier, tma
from evofeed.kernels.runtime.hopper_tiles import (
    add_columns,
    bars_of,
    fetch,
    float32,
    lines_of,
    mma_layout,
    no_sums,
    store_sums,
    tiles_of,
)

CHUNK = gl.constexpr(128)  # sequences of a product
TAIL = gl.constexpr(16)  # sequences behind them
ROWS = gl.constexpr(64)  # residues i of a tile
PAIR = gl.constexpr(2)  # residues j of a group of warps
GROUPS = gl.constexpr(2)


@gluon.jit
def _load(
    a_rows, b_rows, w_rows, tiles, full, free, L, R, E: gl.constexpr, HAS_TAIL: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The warp that loads: for each tile its columns of b, then c by c a's rows and the weight."""
    a_tiles, a_tails, w_tiles, b_tiles, b_tails = tiles
    N: gl.constexpr = w_tiles.shape[2]
    WIDE: gl.constexpr = PAIR * E
    LONG: gl.constexpr = CHUNK + (TAIL if HAS_TAIL else 0)
    x_full, b_full = full
    x_free, b_free = free
    downs = gl.cdiv(L, ROWS)
    stage, turn, phase = 0, 1, 1
    for tile in range(gl.program_id(0), downs * gl.cdiv(R, GROUPS * PAIR), gl.num_programs(0)):
        i, j = tile % downs * ROWS, tile // downs * (GROUPS * PAIR)
        mbarrier.wait(b_free.index(0), phase)
        bar = b_full.index(0)
        mbarrier.expect(bar, GROUPS * LONG * WIDE * 2)
        for g in gl.static_range(GROUPS):
            fetch(b_tiles.index(g), b_rows[0], 0, (j + g * PAIR) * E, bar, True)
            if HAS_TAIL:
                fetch(b_tails.index(g), b_rows[1], CHUNK, (j + g * PAIR) * E, bar, True)
        phase ^= 1
        for c in range(E):
            mbarrier.wait(x_free.index(stage), turn)
            bar = x_full.index(stage)
            mbarrier.expect(bar, LONG * ROWS * 2 + E * N * 2)
            fetch(a_tiles.index(stage), a_rows[0], 0, c * L + i, bar, True)
            if HAS_TAIL:
                fetch(a_tails.index(stage), a_rows[1], CHUNK, c * L + i, bar, True)
            fetch(w_tiles.index(stage), w_rows, c * E, 0, bar, True)
            stage += 1
            if stage == STAGES:
                stage, turn = 0, turn ^ 1


@gluon.jit
def _outer(tiles, stage, zeros, GROUP: gl.constexpr, HAS_TAIL: gl.constexpr):
    """Starts the outer product of one c: `[i, (j, e)]`."""
    a_tiles, a_tails, _, b_tiles, b_tails = tiles
    a = a_tiles.index(stage).permute((1, 0))
    h = hopper.warpgroup_mma(a, b_tiles.index(GROUP), zeros, use_acc=False, is_async=True)
    if HAS_TAIL:
        a = a_tails.index(stage).permute((1, 0))
        h = hopper.warpgroup_mma(a, b_tails.index(GROUP), h, is_async=True)
    return h


@gluon.jit
def _finish(out, tile, bar, phase, BIAS, NORM, out_rows, i, j, L, R):
    """Bias, mean and residual of the 64 pairs (i, j), and their way out."""
    N: gl.constexpr = tile.shape[1]
    mma: gl.constexpr = out.type.layout
    rows = i + gl.arange(0, ROWS, gl.SliceLayout(1, mma))
    n = gl.arange(0, N, gl.SliceLayout(0, mma))
    there = (rows < L) & (j < R)
    norm = gl.load(NORM + (rows * R + j), mask=there, other=1.0)
    out = (out + gl.load(BIAS + n).to(gl.float32)[None, :]) * (1.0 / norm)[:, None]
    mbarrier.wait(bar, phase)
    out += float32(tile.load(mma))
    tile.store(out.to(tile.dtype))
    hopper.fence_async_shared()
    barrier()
    tma.async_copy_shared_to_global(out_rows, [i, j * N], tile)


@gluon.jit
def _compute(
    BIAS, NORM, res_rows, out_rows, outer_rows, tiles, own, full, free, res_bars, L, R,
    E: gl.constexpr, GROUP: gl.constexpr, HAS_TAIL: gl.constexpr, KEEP: gl.constexpr,
    STAGES: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    """Four warps: two residues j of a tile; a c's product is the left side of the next product."""
    w_tiles = tiles[2]
    hidden_tiles, out_tiles = own
    N: gl.constexpr = w_tiles.shape[2]
    dtype: gl.constexpr = w_tiles.dtype
    WIDE: gl.constexpr = PAIR * E
    hidden_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 16])
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    x_full, b_full = full
    x_free, b_free = free
    hidden_tile = hidden_tiles.index(GROUP)
    hidden_zeros = gl.full([ROWS, WIDE], 0.0, gl.float32, hidden_mma)
    zeros = gl.full([ROWS, N], 0.0, gl.float32, mma)
    downs = gl.cdiv(L, ROWS)
    stage, turn, phase = 0, 0, 0
    for tile in range(gl.program_id(0), downs * gl.cdiv(R, GROUPS * PAIR), gl.num_programs(0)):
        i, j = tile % downs * ROWS, tile // downs * (GROUPS * PAIR) + GROUP * PAIR
        tma.store_wait(0)
        barrier()
        for k in gl.static_range(PAIR):
            bar = res_bars.index(GROUP * PAIR + k)
            mbarrier.expect(bar, ROWS * N * 2)
            fetch(out_tiles.index(GROUP * PAIR + k), res_rows, i, (j + k) * N, bar, True)
        mbarrier.wait(b_full.index(0), phase)
        out0, out1 = zeros, zeros
        for first in range(0, E, TOGETHER):
            mbarrier.wait(x_full.index(stage), turn)
            h = _outer(tiles, stage, hidden_zeros, GROUP, HAS_TAIL)
            before = stage
            left0 = gl.full([ROWS, E], 0.0, dtype, left)
            left1 = left0
            for k in gl.static_range(TOGETHER):
                h, out0, out1, left0, left1 = hopper.warpgroup_mma_wait(
                    0, [h, out0, out1, left0, left1]
                )
                if k > 0:
                    mbarrier.arrive(x_free.index(before), count=1)
                hidden = h.to(dtype)
                halves = gl.permute(gl.reshape(hidden, [ROWS, PAIR, E]), (0, 2, 1))
                left0, left1 = gl.split(halves)
                left0, left1 = gl.convert_layout(left0, left), gl.convert_layout(left1, left)
                w = w_tiles.index(stage)
                out0 = hopper.warpgroup_mma(left0, w, out0, is_async=True)
                out1 = hopper.warpgroup_mma(left1, w, out1, is_async=True)
                before = stage
                stage += 1
                if stage == STAGES:
                    stage, turn = 0, turn ^ 1
                if k + 1 < TOGETHER:
                    mbarrier.wait(x_full.index(stage), turn)
                    h = _outer(tiles, stage, hidden_zeros, GROUP, HAS_TAIL)
                if KEEP:
                    tma.store_wait(0)
                    barrier()
                    hidden_tile.store(hidden)
                    hopper.fence_async_shared()
                    barrier()
                    column = ((first + k) * R + j) * E
                    tma.async_copy_shared_to_global(outer_rows, [i, column], hidden_tile)
            out0, out1, left0, left1 = hopper.warpgroup_mma_wait(0, [out0, out1, left0, left1])
            mbarrier.arrive(x_free.index(before), count=1)
        mbarrier.arrive(b_free.index(0), count=1)
        of_out = out_tiles.index(GROUP * PAIR), out_tiles.index(GROUP * PAIR + 1)
        bars = res_bars.index(GROUP * PAIR), res_bars.index(GROUP * PAIR + 1)
        _finish(out0, of_out[0], bars[0], phase, BIAS, NORM, out_rows, i, j, L, R)
        _finish(out1, of_out[1], bars[1], phase, BIAS, NORM, out_rows, i, j + 1, L, R)
        phase ^= 1
    tma.store_wait(0)


@gluon.jit
def outer_forward_kernel(
    BIAS, NORM, a_rows, a_last, b_rows, b_last, w_rows, res_rows, out_rows, outer_rows, L, R,
    E: gl.constexpr, N: gl.constexpr, HAS_TAIL: gl.constexpr, KEEP: gl.constexpr,
    STAGES: gl.constexpr, TOGETHER: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out[i, j] = res + (sum over c, e of outer W + BIAS) / NORM, and `outer`, if KEEP.

    outer[i, c, j, e] is the sum over s of a b. Rows: a `[S, (c, i)]`, b `[S, (j, e)]`, W
    `[(c, e), N]`, res and out `[L, R * N]`, outer `[L, (c, j, e)]`.
    """
    dtype: gl.constexpr = a_rows.dtype
    WIDE: gl.constexpr = PAIR * E
    tiles = (
        tiles_of(dtype, STAGES, CHUNK, ROWS), tiles_of(dtype, STAGES, TAIL, ROWS),
        tiles_of(dtype, STAGES, E, N), tiles_of(dtype, GROUPS, CHUNK, WIDE),
        tiles_of(dtype, GROUPS, TAIL, WIDE),
    )  # fmt: skip
    own = (tiles_of(dtype, GROUPS, ROWS, WIDE), tiles_of(dtype, GROUPS * PAIR, ROWS, N))
    full = (bars_of(STAGES), bars_of(1))
    free = (bars_of(STAGES, GROUPS), bars_of(1, GROUPS))  # both groups must have read it
    res_bars = bars_of(GROUPS * PAIR)
    gl.warp_specialize(
        [
            (_compute, (BIAS, NORM, res_rows, out_rows, outer_rows, tiles, own, full, free,
                        res_bars, L, R, E, 0, HAS_TAIL, KEEP, STAGES, TOGETHER)),
            (_compute, (BIAS, NORM, res_rows, out_rows, outer_rows, tiles, own, full, free,
                        res_bars, L, R, E, 1, HAS_TAIL, KEEP, STAGES, TOGETHER)),
            (_load, ((a_rows, a_last), (b_rows, b_last), w_rows, tiles, full, free, L, R, E,
                     HAS_TAIL, STAGES)),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip


@gluon.jit
def _store_outer(DOUTER, y, first, c0, M, R, E: gl.constexpr):
    """Stores rows `first` and on of `[(i, j), (c, e)]`, 128 x 128, as `[i, c, j, e]` from c0 on.

    The columns of y are in the order in which a thread has eight neighbouring e: 16 bytes.
    """
    ROWS: gl.constexpr = y.shape[0]
    WIDE: gl.constexpr = y.shape[1]
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [0, 64], [8, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0], [64, 0]], [], [ROWS, WIDE],
    )  # fmt: skip
    y = gl.permute(gl.reshape(y, [ROWS, WIDE // 32, 4, 4, 2]), (0, 1, 3, 2, 4))
    y = gl.convert_layout(gl.reshape(y, [ROWS, WIDE]), layout, assert_trivial=False)
    m = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    ce = gl.arange(0, WIDE, gl.SliceLayout(0, layout))
    i, j = m // R, m % R
    start = (i.to(gl.int64) * E + c0) * R * E + j * E
    to = DOUTER + (start[:, None] + (ce // E * (R * E) + ce % E)[None, :])
    gl.store(to, y, mask=(m < M)[:, None])


@gluon.jit
def outer_dproject_kernel(
    NORM, W, DSCALED, DOUTER, PARTIAL, d_rows, M, R,
    E: gl.constexpr, N: gl.constexpr, PARTS: gl.constexpr, BLOCK_M: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """DSCALED = d / NORM and DOUTER[i, :, j, :] = DSCALED[i, j] W^T; W is `[(c, e), N]`.

    A program keeps its share of the weight. PARTIAL `[programs, N]`: each one's sums of d / NORM.
    The weight's rows are kept in an order in which a thread finds eight neighbouring e.
    """
    dtype: gl.constexpr = d_rows.dtype
    SHARE: gl.constexpr = E * E // PARTS
    WIDE: gl.constexpr = 128
    lines: gl.constexpr = lines_of(N, num_warps)
    of_line: gl.constexpr = gl.SliceLayout(1, lines)
    mma: gl.constexpr = mma_layout(BLOCK_M, WIDE, num_warps)
    left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    part = gl.program_id(0) % PARTS
    program, programs = gl.program_id(0) // PARTS, gl.num_programs(0) // PARTS
    w_tiles = tiles_of(dtype, SHARE // WIDE, WIDE, N)
    d_tiles = tiles_of(dtype, 2, BLOCK_M, N)
    bars = bars_of(2)
    tiles = gl.cdiv(M, BLOCK_M)
    for slot in gl.static_range(2):
        there = program + slot * programs < tiles
        mbarrier.expect(bars.index(slot), BLOCK_M * N * 2, pred=there)
        row = (program + slot * programs) * BLOCK_M
        fetch(d_tiles.index(slot), d_rows, row, 0, bars.index(slot), there)
    row = gl.arange(0, WIDE, of_line)
    n = gl.arange(0, N, gl.SliceLayout(0, lines))
    e = (row // 2) % 4 * 8 + row // 8 % 4 * 2 + row % 2
    source = W + (part * SHARE * N + ((row // 32 * 32 + e)[:, None] * N + n[None, :]))
    for group in gl.static_range(SHARE // WIDE):
        cp.async_copy_global_to_shared(w_tiles.index(group), source + group * WIDE * N)
    cp.commit_group()
    zeros = gl.full([BLOCK_M, WIDE], 0.0, gl.float32, mma)
    sums = no_sums(BLOCK_M, N)
    cp.wait_group(0)
    hopper.fence_async_shared()
    barrier()
    slot, phase = 0, 0
    for tile in range(program, tiles, programs):
        first = tile * BLOCK_M
        d_tile = d_tiles.index(slot)
        rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, left))
        factor = 1.0 / gl.load(NORM + rows, mask=rows < M, other=1.0)
        mbarrier.wait(bars.index(slot), phase)
        scaled = (float32(d_tile.load(left)) * factor[:, None]).to(dtype)
        if part == 0:
            line = first + gl.arange(0, BLOCK_M, of_line)
            of_lines = 1.0 / gl.load(NORM + line, mask=line < M, other=1.0)
            x = float32(d_tile.load(lines)) * of_lines[:, None]
            to = DSCALED + gl.to_tensor(first).to(gl.int64) * N
            at = gl.arange(0, BLOCK_M, of_line)[:, None] * N + n[None, :]
            gl.store(to + at, x.to(dtype), mask=(line < M)[:, None])
            sums = add_columns(sums, x)
        barrier()
        after = tile + 2 * programs
        there = after < tiles
        mbarrier.expect(bars.index(slot), BLOCK_M * N * 2, pred=there)
        fetch(d_tile, d_rows, after * BLOCK_M, 0, bars.index(slot), there)
        for group in gl.static_range(SHARE // WIDE):
            w = w_tiles.index(group).permute((1, 0))
            y = hopper.warpgroup_mma(scaled, w, zeros, use_acc=False, is_async=True)
            y, scaled = hopper.warpgroup_mma_wait(0, [y, scaled])
            c0 = part * (SHARE // E) + group * (WIDE // E)
            _store_outer(DOUTER, y.to(dtype), first, c0, M, R, E)
        phase ^= slot
        slot = 1 - slot
    if part == 0:
        store_sums(PARTIAL + program * N, sums)
