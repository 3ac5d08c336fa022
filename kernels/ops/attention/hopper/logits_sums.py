# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
# mypy: disable-error-code="assignment,attr-defined"
"""Gradients of q and of the bias from those of the logits, on Hopper's tensor cores, in Gluon.

A program owns a tile of queries of one head with all keys, and walks over rows that share the
bias: dq of a row is one product, and what it adds up is its share of the bias's gradient. It waits
for memory, so a row's tiles are asked for some rows ahead. Rows are taken in turn, the first ones
first: `logits_backward.py` has written those last. Equal bits every run.
Strides and letters are as in `forward.py`.
"""

from evofeed.kernels.ops.attention.hopper.layouts import copy_rows, copying, put
from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper
from evofeed.kernels.runtime.hopper_tiles import float32, mma_layout, tiles_of


@gluon.jit
def _copy_row(
    memory, slot, DS, K, i, ds_i, qs_i, qs_n, N, TILES: gl.constexpr, D: gl.constexpr,
    WIDE: gl.constexpr,
):  # fmt: skip
    """Starts the copy of what one row brings: gradients of logits of some queries, and keys."""
    ds_tiles, k_tiles = memory
    BLOCK_K: gl.constexpr = ds_tiles.shape[1]
    BLOCK_Q: gl.constexpr = ds_tiles.shape[2]
    layout: gl.constexpr = copying(BLOCK_Q, gl.num_warps())
    k = gl.arange(0, BLOCK_K, gl.SliceLayout(1, layout))
    q = gl.arange(0, BLOCK_Q, gl.SliceLayout(0, layout))
    i = i.to(gl.int64)
    at = DS + i * ds_i + (k[:, None] * BLOCK_Q + q[None, :])
    for n in gl.static_range(TILES):
        cp.async_copy_global_to_shared(ds_tiles.index(slot * TILES + n), at + n * BLOCK_K * BLOCK_Q)
        tile = k_tiles.index(slot * TILES + n)
        copy_rows(tile, K + i * qs_i, n * BLOCK_K, N, qs_n, D, WIDE)


@gluon.jit
def logits_sums_kernel(
    DS, K, DQ, PARTIAL_DB,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, R, H, N, splits, scale,
    D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    TILES: gl.constexpr, STAGES: gl.constexpr, WIDE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """dq of each `splits`-th row, and their share in the bias's gradient, for 64 queries."""
    layout: gl.constexpr = copying(BLOCK_Q, num_warps)
    q_mma: gl.constexpr = mma_layout(BLOCK_Q, BLOCK_D, num_warps)
    q0 = gl.program_id(0) * BLOCK_Q
    h = gl.program_id(1).to(gl.int64)
    b, split = (gl.program_id(2) // splits).to(gl.int64), gl.program_id(2) % splits
    K += (b * qs_b + h * qs_h) * 8
    DQ += (b * gs_b + h * gs_h) * 8
    qs_i, qs_n = qs_i.to(gl.int64) * 8, qs_n * 8
    gs_i, gs_n = gs_i.to(gl.int64) * 8, gs_n * 8
    square = N.to(gl.int64) * (N // 8 * 8)  # N is a multiple of 64: copies are 16 bytes wide
    DS += (b * R * H + h) * square + q0 * N
    ds_i = H * square
    dtype: gl.constexpr = K.dtype.element_ty
    ds_tiles = tiles_of(dtype, STAGES * TILES, BLOCK_K, BLOCK_Q)
    k_tiles = tiles_of(dtype, STAGES * TILES, BLOCK_K, BLOCK_D)
    memory = (ds_tiles, k_tiles)
    db = ()
    for _ in gl.static_range(TILES):
        nothing = gl.full([BLOCK_K, BLOCK_Q], 0.0, gl.float32, layout)
        db = db + (nothing,)  # noqa: RUF005 - Gluon knows no starred tuples
    for stage in gl.static_range(STAGES - 1):
        each = split + stage * splits
        if each < R:
            _copy_row(memory, stage, DS, K, each, ds_i, qs_i, qs_n, N, TILES, D, WIDE)
        cp.commit_group()
    slot = 0
    for i in range(split, R, splits):
        cp.wait_group(STAGES - 2)
        barrier()
        hopper.fence_async_shared()
        ahead = i + (STAGES - 1) * splits
        if ahead < R:
            free = (slot + STAGES - 1) % STAGES
            _copy_row(memory, free, DS, K, ahead, ds_i, qs_i, qs_n, N, TILES, D, WIDE)
        cp.commit_group()
        dq = gl.full([BLOCK_Q, BLOCK_D], 0.0, gl.float32, q_mma)
        for n in gl.static_range(TILES):
            ds = ds_tiles.index(slot * TILES + n).permute((1, 0))
            dq = hopper.warpgroup_mma(ds, k_tiles.index(slot * TILES + n), dq, is_async=True)
        more = ()
        for n in gl.static_range(TILES):
            ds = ds_tiles.index(slot * TILES + n).load(layout)
            more = more + (db[n] + float32(ds),)  # noqa: RUF005
        db = more
        dq = hopper.warpgroup_mma_wait(0, [dq])
        put(DQ + i.to(gl.int64) * gs_i, dq * scale, q0, N, gs_n, q_mma, D, WIDE)
        slot = (slot + 1) % STAGES
    PARTIAL_DB += ((b * splits + split) * gl.num_programs(1) + h) * square
    lines: gl.constexpr = gl.BlockedLayout([4, 1], [32, 1], [1, num_warps], [0, 1])
    k = gl.arange(0, BLOCK_K, gl.SliceLayout(1, lines))
    q = q0 + gl.arange(0, BLOCK_Q, gl.SliceLayout(0, lines))
    for n in gl.static_range(TILES):
        to = PARTIAL_DB + (q[None, :] * N + (n * BLOCK_K + k[:, None]))
        gl.store(to, gl.convert_layout(db[n], lines))
