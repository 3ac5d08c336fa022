# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Matrix products with a layer norm before them, and their gradients.

Everything around an attention or a triangle product is one of these: a tile of
rows is loaded once, normalised in registers, multiplied by all weights, and
stored in the layout the next kernel reads. Only mean and 1/std of each row are
kept for the backward pass.

Letters: M rows, C channels of the input, N output channels, H heads; a matrix
with groups holds its output channels as `[N / GROUP, M, GROUP]`.
"""

from evofeed.kernels.backend import tl, triton

__all__ = [
    "linear_dw_kernel",
    "linear_kernel",
    "ln_linear_dx_kernel",
    "ln_linear_kernel",
    "mlp_kernel",
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
def ln_linear_kernel(
    X, GAMMA, BETA, W, BIAS, MASK, Y, STATS, WB, YB,
    M, C, N, eps, xs_m, xs_c, ys_m, ys_n, ys_group, length, H,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_H: tl.constexpr, RELU: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    PAIR: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Y = act(layer_norm(X) W^T + bias) * mask; with PAIR also the bias YB `[B, H, L, L]`."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    normed, mean, rstd = load_normalised(X, GAMMA, BETA, rows, c, row_in, c_in, xs_m, xs_c, C, eps)
    tl.store(STATS + rows, mean, mask=row_in)
    tl.store(STATS + M + rows, rstd, mask=row_in)
    a = normed.to(W.dtype.element_ty)
    if HAS_MASK:
        mask = tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)
    rows64 = rows.to(tl.int64)
    for first in range(0, N, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        w = tl.load(W + n[:, None] * C + c[None, :],
                    mask=(n < N)[:, None] & c_in[None, :], other=0.0)  # fmt: skip
        y = tl.dot(a, tl.trans(w), input_precision=PRECISION)
        if HAS_BIAS:
            y += tl.load(BIAS + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        if RELU:
            y = tl.maximum(y, 0.0)
        if HAS_MASK:
            y *= mask[:, None]
        inner = first % GROUP + tl.arange(0, BLOCK_N)
        at = (first // GROUP) * ys_group + rows64[:, None] * ys_m + inner[None, :] * ys_n
        tl.store(Y + at, y.to(Y.dtype.element_ty), mask=row_in[:, None] & (n < N)[None, :])
    if PAIR:
        h = tl.arange(0, BLOCK_H)
        w = tl.load(WB + h[:, None] * C + c[None, :],
                    mask=(h < H)[:, None] & c_in[None, :], other=0.0)  # fmt: skip
        y = tl.dot(a, tl.trans(w), input_precision=PRECISION)
        square = length * length
        at = (rows // square).to(tl.int64) * H * square + pair_offset(rows, length, TRANSPOSE)
        tl.store(YB + at[:, None] + h[None, :] * square, y.to(YB.dtype.element_ty),
                 mask=row_in[:, None] & (h < H)[None, :])  # fmt: skip


@triton.jit
def ln_linear_dx_kernel(
    DY, W, X, STATS, GAMMA, RES, DX, PARTIAL,
    M, C, K, ds_m, ds_group, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    HAS_RES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of a layer norm's input through the products behind it, plus the residual's.

    DX = layer_norm_backward(DY W) + RES, and per program the sums for gamma, beta.
    """
    program = tl.program_id(0)
    c = tl.arange(0, BLOCK_C)
    c_in = c < C
    gamma = tl.load(GAMMA + c, mask=c_in, other=0.0).to(tl.float32)
    dgamma = tl.zeros([BLOCK_C], tl.float32)
    dbeta = tl.zeros([BLOCK_C], tl.float32)
    for tile in range(tiles_each):
        rows = (tile * tl.num_programs(0) + program) * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        rows64 = rows.to(tl.int64)
        g = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
        for first in range(0, K, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            inner = first % GROUP + tl.arange(0, BLOCK_K)
            dy = tl.load(
                DY + (first // GROUP) * ds_group + rows64[:, None] * ds_m + inner[None, :],
                mask=row_in[:, None] & (k < K)[None, :], other=0.0)  # fmt: skip
            w = tl.load(W + k[:, None] * C + c[None, :],
                        mask=(k < K)[:, None] & c_in[None, :], other=0.0)  # fmt: skip
            g = tl.dot(dy, w, g, input_precision=PRECISION)
        inside = row_in[:, None] & c_in[None, :]
        flat = rows64[:, None] * C + c[None, :]
        mean = tl.load(STATS + rows, mask=row_in, other=0.0)
        rstd = tl.load(STATS + M + rows, mask=row_in, other=0.0)
        x = tl.load(X + flat, mask=inside, other=0.0).to(tl.float32)
        xhat = tl.where(inside, (x - mean[:, None]) * rstd[:, None], 0.0)
        dgamma += tl.sum(g * xhat, 0)
        dbeta += tl.sum(g, 0)
        g *= gamma[None, :]
        mean_g = tl.sum(g, 1) / C
        mean_gx = tl.sum(g * xhat, 1) / C
        dx = rstd[:, None] * (g - mean_g[:, None] - xhat * mean_gx[:, None])
        if HAS_RES:
            dx += tl.load(RES + flat, mask=inside, other=0.0).to(tl.float32)
        tl.store(DX + flat, dx.to(DX.dtype.element_ty), mask=inside)
    tl.store(PARTIAL + program * 2 * C + c, dgamma, mask=c_in)
    tl.store(PARTIAL + (program * 2 + 1) * C + c, dbeta, mask=c_in)


@triton.jit
def linear_dw_kernel(
    DY, A, W, GATE, STATS, GAMMA, BETA, DROP, PARTIAL_W, PARTIAL_B,
    M, N, C, ds_m, ds_group, as_m, as_c, gs_m, drop_1, drop_2, drop_rows, rows_each,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, GROUP: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, HAS_DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program's share of dW `[N, C]` = DY^T A and db = column sums of DY.

    A is a matrix, or (NORM) the layer norm of one, or (GATED) sigmoid(GATE) * A;
    DY is multiplied by the shared dropout mask first if there is one.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    split = tl.program_id(2)
    n_in, c_in = n < N, c < C
    group = (tl.program_id(0) * BLOCK_N) // GROUP
    inner = (tl.program_id(0) * BLOCK_N) % GROUP + tl.arange(0, BLOCK_N)
    if NORM:
        gamma = tl.load(GAMMA + c, mask=c_in, other=0.0).to(tl.float32)
        beta = tl.load(BETA + c, mask=c_in, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    db = tl.zeros([BLOCK_N], tl.float32)
    last = tl.minimum((split + 1) * rows_each, M)
    for first in range(split * rows_each, last, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        row_in = rows < last
        rows64 = rows.to(tl.int64)
        dy = tl.load(DY + group * ds_group + rows64[:, None] * ds_m + inner[None, :],
                     mask=row_in[:, None] & n_in[None, :], other=0.0)  # fmt: skip
        if HAS_DROP:
            at = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + at[:, None] * N + n[None, :],
                           mask=row_in[:, None] & n_in[None, :], other=0.0)  # fmt: skip
            dy = dy.to(tl.float32) * drop.to(tl.float32)
        dy = dy.to(W.dtype.element_ty)  # W is here only to say in which type products run
        a_in = row_in[:, None] & c_in[None, :]
        a = tl.load(A + rows64[:, None] * as_m + c.to(tl.int64)[None, :] * as_c,
                    mask=a_in, other=0.0)  # fmt: skip
        if NORM:
            mean = tl.load(STATS + rows, mask=row_in, other=0.0)
            rstd = tl.load(STATS + M + rows, mask=row_in, other=0.0)
            normed = (a.to(tl.float32) - mean[:, None]) * rstd[:, None] * gamma[None, :]
            a = normed + beta[None, :]
        if GATED:
            gate = tl.load(GATE + rows64[:, None] * gs_m + c[None, :], mask=a_in, other=0.0)
            a = a.to(tl.float32) * tl.sigmoid(gate.to(tl.float32))
        a = a.to(dy.dtype)
        dw = tl.dot(tl.trans(dy), a, dw, input_precision=PRECISION)
        db += tl.sum(dy.to(tl.float32), 0)
    at = split.to(tl.int64) * N * C + n[:, None] * C + c[None, :]
    tl.store(PARTIAL_W + at, dw, mask=n_in[:, None] & c_in[None, :])
    if tl.program_id(1) == 0:
        tl.store(PARTIAL_B + split * N + n, db, mask=n_in)


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
