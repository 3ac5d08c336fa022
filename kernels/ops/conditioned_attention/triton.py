# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Gradients behind the gate of an attention whose heads may have any width.

Letters: M rows = B * R * N, H heads, D head width.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def gated_heads_grad_kernel(
    GRAD, O_, GATE, DGATE, GATED, DELTA, M, N, gs_m, dg_m, H: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """From the gradient of sigmoid(GATE) * O that of the gate, and in its place that of O.

    GATED is the product again. DELTA `[M / N, H, N]`: each head's sum of O times its gradient.
    """
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    row_in = rows < M
    inside = row_in[:, None] & (d < D)[None, :]
    at = rows[:, None] * (H * D) + (h * D + d)[None, :]
    grad = tl.load(GRAD + at, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(O_ + at, mask=inside, other=0.0).to(tl.float32)
    from_gate = rows[:, None] * gs_m + (h * D + d)[None, :]
    sig = tl.sigmoid(tl.load(GATE + from_gate, mask=inside, other=0.0).to(tl.float32))
    do = (grad * sig).to(GRAD.dtype.element_ty)
    tl.store(GRAD + at, do, mask=inside)
    tl.store(GATED + at, (sig * o).to(GATED.dtype.element_ty), mask=inside)
    dgate = grad * o * sig * (1.0 - sig)
    to_gate = rows[:, None] * dg_m + (h * D + d)[None, :]
    tl.store(DGATE + to_gate, dgate.to(DGATE.dtype.element_ty), mask=inside)
    delta = tl.sum(do.to(tl.float32) * o, 1)
    tl.store(DELTA + (rows // N * H + h) * N + rows % N, delta, mask=row_in)
