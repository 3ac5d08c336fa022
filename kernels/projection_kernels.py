# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Around the matrix products: norms that also make the attention bias, weight gradients, MLPs.

The large products themselves are cuBLAS's: fused with the norm before them in
one Triton kernel they ran at half its speed (H200, 65536 x 128 to 512: 54 us
against 12 + 28), because the normalised tile must pass through registers.

Letters: M rows, C channels of the input, N output channels, H heads, L pair length.
"""

from evofeed.kernels.backend import tl, triton

__all__ = [
    "linear_dw_kernel",
    "linear_kernel",
    "mlp_kernel",
    "norm_rows_kernel",
    "sum_splits_kernel",
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
        tl.store(YB + at[:, None] + h[None, :] * square, y.to(YB.dtype.element_ty),
                 mask=row_in[:, None] & (h < H)[None, :])  # fmt: skip


@triton.jit
def linear_dw_kernel(
    DY, A, PARTIAL, M, N, C, ds_m, as_m, rows_each,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program's share of DY^T A `[N, C]`, and after it of the column sums of DY `[N]`."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    split = tl.program_id(2)
    n_in, c_in = n < N, c < C
    ones = tl.full([BLOCK_M, 16], 1.0, A.dtype.element_ty)
    dw = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    db = tl.zeros([BLOCK_N, 16], tl.float32)
    last = tl.minimum((split + 1) * rows_each, M)
    for first in range(split * rows_each, last, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        row_in = (rows < last)[:, None]
        rows64 = rows.to(tl.int64)[:, None]
        dy = tl.load(DY + rows64 * ds_m + n[None, :], mask=row_in & n_in[None, :], other=0.0)
        a = tl.load(A + rows64 * as_m + c[None, :], mask=row_in & c_in[None, :], other=0.0)
        dw = tl.dot(tl.trans(dy), a, dw, input_precision=PRECISION)
        db = tl.dot(tl.trans(dy), ones, db, input_precision=PRECISION)
    start = PARTIAL + split.to(tl.int64) * N * (C + 1)
    tl.store(start + n[:, None] * C + c[None, :], dw, mask=n_in[:, None] & c_in[None, :])
    if tl.program_id(1) == 0:  # all sixteen columns are the same
        tl.store(start + N * C + n, tl.max(db, 1), mask=n_in)


@triton.jit
def sum_splits_kernel(
    PARTIAL, OUT, SIZE, splits, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr
):  # fmt: skip
    """OUT = sum of the splits, always in the same order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    total = tl.zeros([BLOCK_S, BLOCK], tl.float32)
    for first in range(0, splits, BLOCK_S):
        split = first + tl.arange(0, BLOCK_S)
        from_ = (PARTIAL + split.to(tl.int64)[:, None] * SIZE) + at[None, :]
        total += tl.load(from_, mask=(split < splits)[:, None] & inside[None, :], other=0.0)
    tl.store(OUT + at, tl.sum(total, 0).to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def drop_row(rows, drop_1, drop_2, drop_rows):
    """Row of the shared dropout mask for each row of the tensor.

    The tensor is `[B, I, J, C]`, its row (b * I + i) * J + j. Rowwise dropout is
    shared over i: drop_1 = I * J, drop_2 = 1, drop_rows = J. Columnwise over j:
    drop_1 = I * J, drop_2 = J, drop_rows = I.
    """
    return (rows // drop_1) * drop_rows + (rows // drop_2) % drop_rows


@triton.jit
def linear_kernel(
    A, B, BIAS, HIDDEN, Y, M, N, K, as_m, bs_k, bs_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, RELU_GRAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Y = A B (+ bias), kept only where HIDDEN > 0 with RELU_GRAD."""
    tiles_n = tl.cdiv(N, BLOCK_N)  # neighbours share rows of A, the larger matrix
    rows = (tl.program_id(0) // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_in, n_in = rows < M, n < N
    rows64 = rows.to(tl.int64)
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        a = tl.load(A + rows64[:, None] * as_m + k[None, :],
                    mask=row_in[:, None] & (k < K)[None, :], other=0.0)  # fmt: skip
        b = tl.load(B + k[:, None] * bs_k + n[None, :] * bs_n,
                    mask=(k < K)[:, None] & n_in[None, :], other=0.0)  # fmt: skip
        y = tl.dot(a, b, y, input_precision=PRECISION)
    if HAS_BIAS:
        y += tl.load(BIAS + n, mask=n_in, other=0.0).to(tl.float32)[None, :]
    inside = row_in[:, None] & n_in[None, :]
    at = rows64[:, None] * N + n[None, :]
    if RELU_GRAD:
        hidden = tl.load(HIDDEN + at, mask=inside, other=0.0)
        y = tl.where(hidden > 0, y, 0.0)
    tl.store(Y + at, y.to(Y.dtype.element_ty), mask=inside)


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
