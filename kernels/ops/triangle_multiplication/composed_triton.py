# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels between the products of a triangle multiplication when cuBLAS computes all of them.

Gates, norms of channels-first tensors, and their gradients: each kernel reads and writes its data
once. Letters: M = B * R * R pairs, C channels of the pair representation, E hidden channels.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.projection_kernels import load_normalised


@triton.jit
def _projection_and_gate(P, BIAS, rows, row_in, half, e, E, p_m):
    """Pointers to both in P `[M, 4E]`, and their values; P is a, a's gate, b, b's gate."""
    n = half * 2 * E + e
    pointers = (P + rows.to(tl.int64)[:, None] * p_m) + n[None, :]
    inside = row_in[:, None] & (e < E)[None, :]
    p = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(pointers + E, mask=inside, other=0.0).to(tl.float32)
    p += tl.load(BIAS + n, mask=e < E, other=0.0).to(tl.float32)[None, :]
    g += tl.load(BIAS + n + E, mask=e < E, other=0.0).to(tl.float32)[None, :]
    return pointers, inside, p, g


@triton.jit
def gated_columns_kernel(
    P, BIAS, MASK, AB, count, start, M, E, p_m, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """AB `[2, E, M]` = mask * sigmoid(gate) * projection, of `count` pairs from `start` on."""
    parts = tl.cdiv(E, BLOCK_E)
    tile, part = tl.program_id(0) // (2 * parts), tl.program_id(0) % (2 * parts)
    half = part // parts
    e = (part - half * parts) * BLOCK_E + tl.arange(0, BLOCK_E)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row_in = rows < count
    _, inside, p, g = _projection_and_gate(P, BIAS, rows, row_in, half, e, E, p_m)
    mask = tl.load(MASK + start + rows, mask=row_in, other=0.0).to(tl.float32)
    to = (AB + (half * E + e).to(tl.int64)[None, :] * M) + (start + rows)[:, None]
    tl.store(to, (p * tl.sigmoid(g) * mask[:, None]).to(AB.dtype.element_ty), mask=inside)


@triton.jit
def gated_columns_grad_kernel(
    P, BIAS, MASK, DAB, PARTIAL, M, E, p_m, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Replaces P by its gradient, from DAB `[2, E, M]`; PARTIAL `[tiles, 4E]`: sums of its rows."""
    parts = tl.cdiv(E, BLOCK_E)
    tile, part = tl.program_id(0) // (2 * parts), tl.program_id(0) % (2 * parts)
    half = part // parts
    e = (part - half * parts) * BLOCK_E + tl.arange(0, BLOCK_E)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row_in = rows < M
    pointers, inside, p, g = _projection_and_gate(P, BIAS, rows, row_in, half, e, E, p_m)
    mask = tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)
    from_ab = (DAB + (half * E + e).to(tl.int64)[None, :] * M) + rows[:, None]
    dy = tl.load(from_ab, mask=inside, other=0.0).to(tl.float32) * mask[:, None]
    sig = tl.sigmoid(g)
    dp = dy * sig
    dg = dp * p * (1.0 - sig)
    tl.store(pointers, dp.to(P.dtype.element_ty), mask=inside)
    tl.store(pointers + E, dg.to(P.dtype.element_ty), mask=inside)
    sums = PARTIAL + tile.to(tl.int64) * 4 * E + half * 2 * E + e
    tl.store(sums, tl.sum(dp, 0), mask=e < E)
    tl.store(sums + E, tl.sum(dg, 0), mask=e < E)


@triton.jit
def norm_columns_kernel(
    XT, GAMMA, BETA, Y, STATS, M, E, eps, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Y `[M, E]` = layer_norm of X, which is channels first, `[E, M]`."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    e = tl.arange(0, BLOCK_E)
    row_in, e_in = rows < M, e < E
    xn, mean, rstd = load_normalised(XT, GAMMA, BETA, rows, e, row_in, e_in, 1, M, E, eps)
    tl.store(STATS + rows, mean, mask=row_in)
    tl.store(STATS + M + rows, rstd, mask=row_in)
    to = (Y + rows.to(tl.int64)[:, None] * E) + e[None, :]
    tl.store(to, xn.to(Y.dtype.element_ty), mask=row_in[:, None] & e_in[None, :])


@triton.jit
def norm_columns_grad_kernel(
    DY, XT, STATS, GAMMA, PARTIAL, M, E, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Replaces DY by the gradient of X, both `[E, M]`.

    PARTIAL `[programs, 2E]`: sums for GAMMA and the offset.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    e = tl.arange(0, BLOCK_E)
    row_in, e_in = rows < M, e < E
    inside = row_in[:, None] & e_in[None, :]
    across = e.to(tl.int64)[None, :] * M + rows[:, None]
    mean = tl.load(STATS + rows, mask=row_in, other=0.0)
    rstd = tl.load(STATS + M + rows, mask=row_in, other=0.0)
    x = tl.load(XT + across, mask=inside, other=0.0).to(tl.float32)
    xhat = tl.where(inside, (x - mean[:, None]) * rstd[:, None], 0.0)
    dy = tl.load(DY + across, mask=inside, other=0.0).to(tl.float32)
    sums = PARTIAL + tl.program_id(0).to(tl.int64) * 2 * E + e
    tl.store(sums, tl.sum(dy * xhat, 0), mask=e_in)
    tl.store(sums + E, tl.sum(dy, 0), mask=e_in)
    dy *= tl.load(GAMMA + e, mask=e_in, other=0.0).to(tl.float32)[None, :]
    mean_d, mean_dx = tl.sum(dy, 1) / E, tl.sum(dy * xhat, 1) / E
    dx = rstd[:, None] * (dy - mean_d[:, None] - xhat * mean_dx[:, None])
    tl.store(DY + across, dx.to(DY.dtype.element_ty), mask=inside)
