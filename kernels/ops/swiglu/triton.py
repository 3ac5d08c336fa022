# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The SwiGLU transition's kernels: the forward pass up to 128 channels, or its hidden layer.

Letters: M rows, C channels, N hidden channels.
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
def swiglu_kernel(
    LAYERS, HIDDEN, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, THIRD: tl.constexpr,
):  # fmt: skip
    """HIDDEN `[M, N]` = silu(A) * B (* E) of LAYERS `[M, 2N or 3N]`, which are A, B (and E)."""
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows < M)[:, None] & (n < N)[None, :]
    from_a = LAYERS + rows[:, None] * ((3 if THIRD else 2) * N) + n[None, :]
    a = tl.load(from_a, mask=inside, other=0.0).to(tl.float32)
    hidden = a * tl.sigmoid(a) * tl.load(from_a + N, mask=inside, other=0.0).to(tl.float32)
    if THIRD:
        hidden *= tl.load(from_a + 2 * N, mask=inside, other=0.0).to(tl.float32)
    to = HIDDEN + rows[:, None] * N + n[None, :]
    tl.store(to, hidden.to(HIDDEN.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_grad_kernel(
    LAYERS, DHIDDEN, DLAYERS, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, THIRD: tl.constexpr,
):  # fmt: skip
    """DLAYERS, while the hidden layer's gradient becomes the hidden layer again."""
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows < M)[:, None] & (n < N)[None, :]
    first = rows[:, None] * ((3 if THIRD else 2) * N) + n[None, :]
    from_a, to_a = LAYERS + first, DLAYERS + first
    at = DHIDDEN + rows[:, None] * N + n[None, :]
    a = tl.load(from_a, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(from_a + N, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    kind = DLAYERS.dtype.element_ty
    sig = tl.sigmoid(a)
    silu = a * sig
    hidden = silu * b
    if THIRD:
        e = tl.load(from_a + 2 * N, mask=inside, other=0.0).to(tl.float32)
        tl.store(to_a + 2 * N, (d * hidden).to(kind), mask=inside)
        hidden *= e
        d *= e
    tl.store(to_a, (d * b * (sig + silu * (1.0 - sig))).to(kind), mask=inside)
    tl.store(to_a + N, (d * silu).to(kind), mask=inside)
    tl.store(at, hidden.to(DHIDDEN.dtype.element_ty), mask=inside)
