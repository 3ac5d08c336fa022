# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The gradient of a transition's hidden layer.

Letters: M rows, K channels, N hidden channels.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.projection_kernels import column_sum


@triton.jit
def relu_grad_kernel(
    DY, W, HIDDEN, Y, PARTIAL, M, N, K, ds_m, ws_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Y = DY W where HIDDEN > 0, else 0; PARTIAL `[tiles, N]`: sums of each tile's columns."""
    tiles_n = tl.cdiv(N, BLOCK_N)  # adjacent programs share rows of DY, the larger matrix
    tile = tl.program_id(0) // tiles_n
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_in, n_in = rows < M, n < N
    rows64 = rows.to(tl.int64)
    inside = row_in[:, None] & n_in[None, :]
    offsets = rows64[:, None] * N + n[None, :]
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        a = tl.load(DY + rows64[:, None] * ds_m + k[None, :],
                    mask=row_in[:, None] & (k < K)[None, :], other=0.0)  # fmt: skip
        b = tl.load(W + k.to(tl.int64)[:, None] * ws_k + n[None, :],
                    mask=(k < K)[:, None] & n_in[None, :], other=0.0)  # fmt: skip
        y = tl.dot(a, b, y, input_precision=PRECISION)
    hidden = tl.load(HIDDEN + offsets, mask=inside, other=0.0)
    y = tl.where(hidden > 0, y, 0.0).to(Y.dtype.element_ty)
    tl.store(Y + offsets, y, mask=inside)
    tl.store(PARTIAL + tile.to(tl.int64) * N + n, column_sum(y, PRECISION), mask=n_in)
