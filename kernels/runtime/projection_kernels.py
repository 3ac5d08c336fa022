# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels around matrix products: norms that also compute the attention bias, dropout and masks.

The large products are cuBLAS's: fused with the norm before them in one Triton kernel they ran at
half its speed (H200, 65536 x 128 to 512: 54 us against 12 + 28), because the normalised tile must
pass through registers.

Letters: M rows, C channels of the input, N output channels, H heads, L pair length.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def load_normalised(X, GAMMA, BETA, rows, c, row_in, c_in, xs_m, xs_c, C, eps):
    """A tile of normalised rows (float32), with mean and 1/std of each."""
    inside = row_in[:, None] & c_in[None, :]
    offsets = rows.to(tl.int64)[:, None] * xs_m + c.to(tl.int64)[None, :] * xs_c
    x = tl.load(X + offsets, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / C
    centred = tl.where(c_in[None, :], x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / C + eps)
    gamma = tl.load(GAMMA + c, mask=c_in, other=0.0).to(tl.float32)
    beta = tl.load(BETA + c, mask=c_in, other=0.0).to(tl.float32)
    return centred * rstd[:, None] * gamma[None, :] + beta[None, :], mean, rstd


@triton.jit
def column_sum(x, PRECISION: tl.constexpr):
    """Sums of the columns of a tile, as a product with ones.

    After a product a thread holds few of a column's numbers; adding them across threads
    costs more than this (H200: 18 us of 88 for 32768 x 1024).
    """
    ones = tl.full([16, x.shape[0]], 1.0, x.dtype)
    return tl.max(tl.dot(ones, x, input_precision=PRECISION), 0)  # sixteen equal rows


@triton.jit
def pair_offset(rows, length, size, TRANSPOSE: tl.constexpr):
    """Offset in one head's map of pair (i, j), which is row i * length + j of a sample's `size`.

    With TRANSPOSE the map is `[j, i]`.
    """
    within = rows % size
    if TRANSPOSE:
        within = (within % length) * (size // length) + within // length
    return within


@triton.jit
def norm_rows_kernel(
    X, GAMMA, BETA, W, Y, STATS, YB, M, C, eps, length, size, H, pair_scale,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr, KEEP: tl.constexpr,
    PAIR: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Y = layer_norm(X) with KEEP, and the attention bias YB `[B, H, I, J]` with PAIR.

    I * J = size, J = length; with TRANSPOSE it is `[B, H, J, I]`.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    normed, mean, rstd = load_normalised(X, GAMMA, BETA, rows, c, row_in, c_in, C, 1, C, eps)
    tl.store(STATS + rows, mean, mask=row_in)
    tl.store(STATS + M + rows, rstd, mask=row_in)
    if KEEP:
        to = Y + rows.to(tl.int64)[:, None] * C + c[None, :]
        tl.store(to, normed.to(Y.dtype.element_ty), mask=row_in[:, None] & c_in[None, :])
    if PAIR:
        h = tl.arange(0, BLOCK_H)
        w = tl.load(W + h[:, None] * C + c[None, :],
                    mask=(h < H)[:, None] & c_in[None, :], other=0.0)  # fmt: skip
        y = tl.dot(normed.to(w.dtype), tl.trans(w), input_precision=PRECISION) * pair_scale
        offsets = (rows // size).to(tl.int64) * H * size + pair_offset(
            rows, length, size, TRANSPOSE
        )
        tl.store(YB + offsets[:, None] + h.to(tl.int64)[None, :] * size, y.to(YB.dtype.element_ty),
                 mask=row_in[:, None] & (h < H)[None, :])  # fmt: skip


@triton.jit
def drop_row(rows, drop_1, drop_2, drop_rows):
    """Row of the shared dropout mask for each row of the tensor.

    The tensor is `[B, I, J, C]`, its row (b * I + i) * J + j. Rowwise dropout is
    shared over i: drop_1 = I * J, drop_2 = 1, drop_rows = J. Columnwise over j:
    drop_1 = I * J, drop_2 = J, drop_rows = I.
    """
    return (rows // drop_1) * drop_rows + (rows // drop_2) % drop_rows


@triton.jit
def scaled_kernel(
    DOUT, DROP, MASK, DY, PARTIAL, M, N, drop_1, drop_2, drop_rows, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_DROP: tl.constexpr,
    HAS_MASK: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """DY = DOUT * DROP * MASK with KEEP, and each program's sums of its columns.

    DROP is a shared dropout mask, MASK has a factor for each row, PARTIAL is `[programs, N]`.
    """
    n = tl.arange(0, BLOCK_N)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(tiles_each):
        tile = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = (rows < M)[:, None] & (n < N)[None, :]
        offsets = rows.to(tl.int64)[:, None] * N + n[None, :]
        y = tl.load(DOUT + offsets, mask=inside, other=0.0).to(tl.float32)
        if HAS_DROP:
            mask_rows = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + mask_rows[:, None] * N + n[None, :], mask=inside, other=0.0)
            y *= drop.to(tl.float32)
        if HAS_MASK:
            y *= tl.load(MASK + rows, mask=rows < M, other=0.0).to(tl.float32)[:, None]
        if KEEP:
            tl.store(DY + offsets, y.to(DY.dtype.element_ty), mask=inside)
        sums += y
    tl.store(PARTIAL + tl.program_id(0).to(tl.int64) * N + n, tl.sum(sums, 0), mask=n < N)
