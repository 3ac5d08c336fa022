# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The adaptive norm without its products: norm, gate and shift in one pass, and backward.

Letters: M rows, C channels. GS `[M, 2C]` is the gate's layer before its bias, then the shift.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def _normed(A, rows, c, inside, c_in, C, eps):
    """Rows of A with mean 0 and variance 1, and their 1/std."""
    a = tl.load(A + rows.to(tl.int64)[:, None] * C + c[None, :], mask=inside, other=0.0)
    a = a.to(tl.float32)
    a = tl.where(c_in[None, :], a - (tl.sum(a, 1) / C)[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(a * a, 1) / C + eps)
    return a * rstd[:, None], rstd


@triton.jit
def adaptive_norm_kernel(A, GS, BIAS, OUT, M, C, eps, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """OUT = sigmoid(G + bias) * norm(A) + S."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    c_in = c < C
    inside = (rows < M)[:, None] & c_in[None, :]
    x, _ = _normed(A, rows, c, inside, c_in, C, eps)
    from_g = GS + rows.to(tl.int64)[:, None] * (2 * C) + c[None, :]
    g = tl.load(from_g, mask=inside, other=0.0).to(tl.float32)
    g += tl.load(BIAS + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
    out = tl.sigmoid(g) * x + tl.load(from_g + C, mask=inside, other=0.0).to(tl.float32)
    to = OUT + rows.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(to, out.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def adaptive_norm_grad_kernel(
    DOUT, A, GS, BIAS, RES, DA, DGS, PARTIAL, M, C, eps, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, HAS_RES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """DA, plus RES, and DGS; PARTIAL `[programs, C]`: sums of the gate's rows."""
    c = tl.arange(0, BLOCK_C)
    c_in = c < C
    sums = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for step in tl.range(tiles_each, num_stages=STAGES):
        rows = (step * tl.num_programs(0) + tl.program_id(0)) * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = (rows < M)[:, None] & c_in[None, :]
        x, rstd = _normed(A, rows, c, inside, c_in, C, eps)
        offsets = rows.to(tl.int64)[:, None] * C + c[None, :]
        from_g = GS + rows.to(tl.int64)[:, None] * (2 * C) + c[None, :]
        g = tl.load(from_g, mask=inside, other=0.0).to(tl.float32)
        g += tl.load(BIAS + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
        gate = tl.sigmoid(g)
        dout = tl.load(DOUT + offsets, mask=inside, other=0.0).to(tl.float32)
        dx = dout * gate
        dg = dx * x * (1.0 - gate)
        to_g = DGS + rows.to(tl.int64)[:, None] * (2 * C) + c[None, :]
        tl.store(to_g, dg.to(DGS.dtype.element_ty), mask=inside)
        tl.store(to_g + C, dout.to(DGS.dtype.element_ty), mask=inside)
        sums += dg
        mean_d, mean_dx = tl.sum(dx, 1) / C, tl.sum(dx * x, 1) / C
        dx = rstd[:, None] * (dx - mean_d[:, None] - x * mean_dx[:, None])
        if HAS_RES:
            dx += tl.load(RES + offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(DA + offsets, dx.to(DA.dtype.element_ty), mask=inside)
    tl.store(PARTIAL + tl.program_id(0).to(tl.int64) * C + c, tl.sum(sums, 0), mask=c_in)
