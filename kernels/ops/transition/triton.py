# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The transition's kernels: the whole forward pass up to 128 channels, and the relu's gradient.

Letters: M rows, C channels, N hidden channels.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.projection_kernels import column_sum, load_normalised


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
