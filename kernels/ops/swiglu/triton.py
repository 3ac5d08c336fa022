# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The SwiGLU transition's kernels: the whole forward pass up to 128 channels, and its hidden layer.

Letters: M rows, C channels, N hidden channels. AB `[M, 2N]` is the gate's layer, then the value's.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.projection_kernels import load_normalised


@triton.jit
def swiglu_mlp_kernel(
    X, GAMMA, BETA, WA, WB, WO, MASK, OUT, STATS, M, C, N, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_RES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT = X + mask * (silu(layer_norm(X) WA^T) * (layer_norm(X) WB^T)) WO^T in one program."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    normed, mean, rstd = load_normalised(X, GAMMA, BETA, rows, c, row_in, c_in, C, 1, C, eps)
    tl.store(STATS + rows, mean, mask=row_in)
    tl.store(STATS + M + rows, rstd, mask=row_in)
    x = normed.to(WA.dtype.element_ty)
    out = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for first in range(0, N, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        inside = (n < N)[:, None] & c_in[None, :]
        wa = tl.load(WA + n[:, None] * C + c[None, :], mask=inside, other=0.0)
        a = tl.dot(x, tl.trans(wa), input_precision=PRECISION)
        wb = tl.load(WB + n[:, None] * C + c[None, :], mask=inside, other=0.0)
        b = tl.dot(x, tl.trans(wb), input_precision=PRECISION)
        wo = tl.load(WO + c[:, None] * N + n[None, :],
                     mask=c_in[:, None] & (n < N)[None, :], other=0.0)  # fmt: skip
        hidden = (a * tl.sigmoid(a) * b).to(wo.dtype)
        out = tl.dot(hidden, tl.trans(wo), out, input_precision=PRECISION)
    if HAS_MASK:
        out *= tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)[:, None]
    inside = row_in[:, None] & c_in[None, :]
    at = rows.to(tl.int64)[:, None] * C + c[None, :]
    if HAS_RES:
        out += tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_kernel(AB, HIDDEN, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """HIDDEN `[M, N]` = silu(A) * B."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    rows = (tl.program_id(0) // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows < M)[:, None] & (n < N)[None, :]
    at = rows.to(tl.int64)[:, None] * N + n[None, :]
    from_a = rows.to(tl.int64)[:, None] * (2 * N) + n[None, :]
    a = tl.load(AB + from_a, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(AB + from_a + N, mask=inside, other=0.0).to(tl.float32)
    tl.store(HIDDEN + at, (a * tl.sigmoid(a) * b).to(HIDDEN.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_grad_kernel(
    DY, WO, AB, DAB, HIDDEN, M, N, C, dy_m,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the gradient DY of the result: that of A and of B in DAB, and HIDDEN again.

    The hidden layer's own gradient, DY WO, is never written.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)  # neighbours share rows of DY
    rows = (tl.program_id(0) // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_in, n_in = rows < M, n < N
    rows64 = rows.to(tl.int64)[:, None]
    inside = row_in[:, None] & n_in[None, :]
    d = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, C, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        dy = tl.load(DY + rows64 * dy_m + c[None, :],
                     mask=row_in[:, None] & (c < C)[None, :], other=0.0)  # fmt: skip
        wo = tl.load(WO + c[:, None] * N + n[None, :],
                     mask=(c < C)[:, None] & n_in[None, :], other=0.0)  # fmt: skip
        d = tl.dot(dy, wo, d, input_precision=PRECISION)
    from_a = rows64 * (2 * N) + n[None, :]
    a = tl.load(AB + from_a, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(AB + from_a + N, mask=inside, other=0.0).to(tl.float32)
    sig = tl.sigmoid(a)
    silu = a * sig
    kind = DAB.dtype.element_ty
    tl.store(DAB + from_a, (d * b * (sig + silu * (1.0 - sig))).to(kind), mask=inside)
    tl.store(DAB + from_a + N, (d * silu).to(kind), mask=inside)
    tl.store(HIDDEN + rows64 * N + n[None, :], (silu * b).to(kind), mask=inside)


@triton.jit
def swiglu_backward_kernel(
    DOUT, X, STATS, GAMMA, BETA, WA, WB, WO, MASK, DX, DY, NORMED, DAB, HIDDEN, PARTIAL, M, C, N,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_RES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """DX of the whole transition in one program; its hidden layer is rebuilt in parts of BLOCK_N.

    Writes what the weights' gradients are products of: DY = MASK * DOUT, the normalised rows, the
    gradient of A and B in DAB, and HIDDEN. PARTIAL `[programs, 2C]`: sums for the norm.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    rows64 = rows.to(tl.int64)[:, None]
    inside = row_in[:, None] & c_in[None, :]
    at = rows64 * C + c[None, :]
    mean = tl.load(STATS + rows, mask=row_in, other=0.0)
    rstd = tl.load(STATS + M + rows, mask=row_in, other=0.0)
    gamma = tl.load(GAMMA + c, mask=c_in, other=0.0).to(tl.float32)
    beta = tl.load(BETA + c, mask=c_in, other=0.0).to(tl.float32)
    kind = WO.dtype.element_ty
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    x = ((x - mean[:, None]) * rstd[:, None] * gamma[None, :] + beta[None, :]).to(kind)
    dy = tl.load(DOUT + at, mask=inside, other=0.0)
    if HAS_MASK:
        dy = (
            dy.to(tl.float32) * tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)[:, None]
        )
    dy = dy.to(kind)
    tl.store(DY + at, dy, mask=inside)
    tl.store(NORMED + at, x, mask=inside)
    dx = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for first in range(0, N, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        n_in = n < N
        of_c = n_in[:, None] & c_in[None, :]
        wa = tl.load(WA + n[:, None] * C + c[None, :], mask=of_c, other=0.0)
        wb = tl.load(WB + n[:, None] * C + c[None, :], mask=of_c, other=0.0)
        wo = tl.load(WO + c[:, None] * N + n[None, :],
                     mask=c_in[:, None] & n_in[None, :], other=0.0)  # fmt: skip
        a = tl.dot(x, tl.trans(wa), input_precision=PRECISION)
        b = tl.dot(x, tl.trans(wb), input_precision=PRECISION)
        d = tl.dot(dy, wo, input_precision=PRECISION)
        sig = tl.sigmoid(a)
        silu = a * sig
        da = (d * b * (sig + silu * (1.0 - sig))).to(kind)
        db = (d * silu).to(kind)
        kept = row_in[:, None] & n_in[None, :]
        from_a = rows64 * (2 * N) + n[None, :]
        tl.store(DAB + from_a, da, mask=kept)
        tl.store(DAB + from_a + N, db, mask=kept)
        tl.store(HIDDEN + rows64 * N + n[None, :], (silu * b).to(kind), mask=kept)
        dx = tl.dot(da, wa, dx, input_precision=PRECISION)
        dx = tl.dot(db, wb, dx, input_precision=PRECISION)
    x_hat = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    x_hat = tl.where(c_in[None, :], (x_hat - mean[:, None]) * rstd[:, None], 0.0)
    sums = PARTIAL + tl.program_id(0).to(tl.int64) * 2 * C + c
    tl.store(sums, tl.sum(dx * x_hat, 0), mask=c_in)
    tl.store(sums + C, tl.sum(dx, 0), mask=c_in)
    dx *= gamma[None, :]
    mean_d, mean_dx = tl.sum(dx, 1) / C, tl.sum(dx * x_hat, 1) / C
    dx = rstd[:, None] * (dx - mean_d[:, None] - x_hat * mean_dx[:, None])
    if HAS_RES:
        dx += tl.load(DOUT + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=inside)
