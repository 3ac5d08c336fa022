# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Attention of every pair to a few templates: one pass over keys and values each way.

Letters: M pairs of a sample, T templates, H heads, D head width.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def _places(M, H: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr):
    """Sample, pairs of this program, where their numbers are in `[M, H, D]`, which exist."""
    b = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    h, d = tl.arange(0, H), tl.arange(0, D)
    at = (
        m.to(tl.int64)[:, None, None] * (H * D) + h[None, :, None] * D + d[None, None, :]
    )  # fmt: skip
    return b, m, at, (m < M)[:, None, None]


@triton.jit
def template_attention_kernel(
    Q, K, V, BIAS, OUT, LSE, M, T, scale,
    H: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """OUT `[B, M, H, D]` and LSE `[B, M, H]` from Q `[B, M, H, D]`, K and V `[B, T, M, H, D]`."""
    b, m, at, inside = _places(M, H, D, BLOCK_M)
    q = tl.load(Q + b * M * (H * D) + at, mask=inside, other=0.0).to(tl.float32) * scale
    most = tl.full([BLOCK_M, H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M, H], tl.float32)
    out = tl.zeros([BLOCK_M, H, D], tl.float32)
    for t in range(T):
        start = (b * T + t) * M * (H * D)
        k = tl.load(K + start + at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(V + start + at, mask=inside, other=0.0).to(tl.float32)
        logit = tl.sum(q * k, 2)
        if HAS_BIAS:
            logit += tl.load(BIAS + b * T + t).to(tl.float32)
        higher = tl.maximum(most, logit)
        kept, weight = tl.exp(most - higher), tl.exp(logit - higher)
        total = total * kept + weight
        out = out * kept[:, :, None] + weight[:, :, None] * v
        most = higher
    out /= total[:, :, None]
    tl.store(OUT + b * M * (H * D) + at, out.to(OUT.dtype.element_ty), mask=inside)
    h = tl.arange(0, H)
    lse = LSE + b * M * H + (m.to(tl.int64)[:, None] * H + h[None, :])
    tl.store(lse, most + tl.log(total), mask=(m < M)[:, None])


@triton.jit
def template_attention_grad_kernel(
    DOUT, OUT, LSE, Q, K, V, BIAS, DQ, DK, DV, M, T, scale,
    H: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """DQ, DK and DV, shaped as Q, K and V."""
    b, m, at, inside = _places(M, H, D, BLOCK_M)
    of_sample = b * M * (H * D)
    q = tl.load(Q + of_sample + at, mask=inside, other=0.0).to(tl.float32) * scale
    dout = tl.load(DOUT + of_sample + at, mask=inside, other=0.0).to(tl.float32)
    out = tl.load(OUT + of_sample + at, mask=inside, other=0.0).to(tl.float32)
    h = tl.arange(0, H)
    lse = LSE + b * M * H + (m.to(tl.int64)[:, None] * H + h[None, :])
    lse = tl.load(lse, mask=(m < M)[:, None], other=0.0)
    delta = tl.sum(dout * out, 2)
    dq = tl.zeros([BLOCK_M, H, D], tl.float32)
    for t in range(T):
        start = (b * T + t) * M * (H * D)
        k = tl.load(K + start + at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(V + start + at, mask=inside, other=0.0).to(tl.float32)
        logit = tl.sum(q * k, 2)
        if HAS_BIAS:
            logit += tl.load(BIAS + b * T + t).to(tl.float32)
        weight = tl.exp(logit - lse)
        dlogit = weight * (tl.sum(dout * v, 2) - delta)
        dq += dlogit[:, :, None] * k
        dk, dv = dlogit[:, :, None] * q, weight[:, :, None] * dout
        tl.store(DK + start + at, dk.to(DK.dtype.element_ty), mask=inside)
        tl.store(DV + start + at, dv.to(DV.dtype.element_ty), mask=inside)
    tl.store(DQ + of_sample + at, (dq * scale).to(DQ.dtype.element_ty), mask=inside)
