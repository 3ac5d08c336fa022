# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Around the matrix products: norms that also make the attention bias, and MLPs.

The large products themselves are cuBLAS's: fused with the norm before them in
one Triton kernel they ran at half its speed (H200, 65536 x 128 to 512: 54 us
against 12 + 28), because the normalised tile must pass through registers.

Letters: M rows, C channels of the input, N output channels, H heads, L pair length.
"""

from evofeed.kernels.runtime.backend import tl, triton

__all__ = [
    "mlp_kernel",
    "column_sum",
    "norm_rows_kernel",
    "relu_grad_kernel",
    "scaled_kernel",
]


@triton.jit
def load_normalised(X, GAMMA, BETA, rows, c, row_in, c_in, xs_m, xs_c, C, eps):
    """A tile of rows, normalised (float32), and mean and 1/std of each."""
    inside = row_in[:, None] & c_in[None, :]
    at = rows.to(tl.int64)[:, None] * xs_m + c.to(tl.int64)[None, :] * xs_c
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
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
def pair_offset(rows, length, TRANSPOSE: tl.constexpr):
    """Where pair (i, j), row i * length + j of a batch entry, lies within one head's map."""
    within = rows % (length * length)
    if TRANSPOSE:
        within = (within % length) * length + within // length
    return within


@triton.jit
def norm_rows_kernel(
    X, GAMMA, BETA, W, Y, STATS, YB, M, C, eps, length, H, pair_scale,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr, KEEP: tl.constexpr,
    PAIR: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Y = layer_norm(X) (with KEEP); with PAIR also the attention bias YB `[B, H, L, L]`."""
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
        square = length * length
        at = (rows // square).to(tl.int64) * H * square + pair_offset(rows, length, TRANSPOSE)
        tl.store(YB + at[:, None] + h.to(tl.int64)[None, :] * square, y.to(YB.dtype.element_ty),
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
    """DY = DOUT * DROP * MASK (with KEEP), and each program's sums of its columns.

    DROP is a shared dropout mask, MASK has a factor for each row, PARTIAL is `[programs, N]`.
    """
    n = tl.arange(0, BLOCK_N)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(tiles_each):
        tile = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = (rows < M)[:, None] & (n < N)[None, :]
        flat = rows.to(tl.int64)[:, None] * N + n[None, :]
        y = tl.load(DOUT + flat, mask=inside, other=0.0).to(tl.float32)
        if HAS_DROP:
            at = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + at[:, None] * N + n[None, :], mask=inside, other=0.0)
            y *= drop.to(tl.float32)
        if HAS_MASK:
            y *= tl.load(MASK + rows, mask=rows < M, other=0.0).to(tl.float32)[:, None]
        if KEEP:
            tl.store(DY + flat, y.to(DY.dtype.element_ty), mask=inside)
        sums += y
    tl.store(PARTIAL + tl.program_id(0).to(tl.int64) * N + n, tl.sum(sums, 0), mask=n < N)


@triton.jit
def relu_grad_kernel(
    DY, W, HIDDEN, Y, PARTIAL, M, N, K, ds_m, ws_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Y = DY W where HIDDEN > 0, else 0; PARTIAL `[tiles, N]`: sums of each tile's columns."""
    tiles_n = tl.cdiv(N, BLOCK_N)  # neighbours share rows of DY, the larger matrix
    tile = tl.program_id(0) // tiles_n
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_in, n_in = rows < M, n < N
    rows64 = rows.to(tl.int64)
    inside = row_in[:, None] & n_in[None, :]
    at = rows64[:, None] * N + n[None, :]
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        a = tl.load(DY + rows64[:, None] * ds_m + k[None, :],
                    mask=row_in[:, None] & (k < K)[None, :], other=0.0)  # fmt: skip
        b = tl.load(W + k.to(tl.int64)[:, None] * ws_k + n[None, :],
                    mask=(k < K)[:, None] & n_in[None, :], other=0.0)  # fmt: skip
        y = tl.dot(a, b, y, input_precision=PRECISION)
    hidden = tl.load(HIDDEN + at, mask=inside, other=0.0)
    y = tl.where(hidden > 0, y, 0.0).to(Y.dtype.element_ty)
    tl.store(Y + at, y, mask=inside)
    tl.store(PARTIAL + tile.to(tl.int64) * N + n, column_sum(y, PRECISION), mask=n_in)


@triton.jit
def mlp_kernel(
    X, GAMMA, BETA, W1, B1, W2, B2, MASK, OUT, STATS, M, C, N, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_RES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT = X + mask * (relu(layer_norm(X) W1^T + b1) W2^T + b2), all in one program."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    normed, mean, rstd = load_normalised(X, GAMMA, BETA, rows, c, row_in, c_in, C, 1, C, eps)
    tl.store(STATS + rows, mean, mask=row_in)
    tl.store(STATS + M + rows, rstd, mask=row_in)
    a = normed.to(W1.dtype.element_ty)
    out = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for first in range(0, N, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        w1 = tl.load(W1 + n[:, None] * C + c[None, :],
                     mask=(n < N)[:, None] & c_in[None, :], other=0.0)  # fmt: skip
        w2 = tl.load(W2 + c[:, None] * N + n[None, :],
                     mask=c_in[:, None] & (n < N)[None, :], other=0.0)  # fmt: skip
        hidden = tl.dot(a, tl.trans(w1), input_precision=PRECISION)
        hidden += tl.load(B1 + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        hidden = tl.maximum(hidden, 0.0).to(w2.dtype)
        out = tl.dot(hidden, tl.trans(w2), out, input_precision=PRECISION)
    out += tl.load(B2 + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
    if HAS_MASK:
        out *= tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)[:, None]
    inside = row_in[:, None] & c_in[None, :]
    at = rows.to(tl.int64)[:, None] * C + c[None, :]
    if HAS_RES:
        out += tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=inside)
