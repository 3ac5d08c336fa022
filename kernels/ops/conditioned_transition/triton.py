# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The last gate of what s conditions, and its gradients.

Letters: M rows, C channels.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def gated_sum_kernel(
    Y, GATE, BIAS, MASK, RES, OUT, M, C,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, HAS_MASK: tl.constexpr, HAS_RES: tl.constexpr,
):  # fmt: skip
    """OUT = RES + MASK * sigmoid(GATE + BIAS) * Y."""
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    inside = row_in[:, None] & c_in[None, :]
    at = rows[:, None] * C + c[None, :]
    gate = tl.load(GATE + at, mask=inside, other=0.0).to(tl.float32)
    gate += tl.load(BIAS + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
    out = tl.sigmoid(gate) * tl.load(Y + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_MASK:
        out *= tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)[:, None]
    if HAS_RES:
        out += tl.load(RES + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def gated_sum_grad_kernel(
    DOUT, Y, GATE, BIAS, MASK, DY, PARTIAL, M, C, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """DY, and GATE becomes its gradient; PARTIAL `[programs, C]`: sums of the gate's rows."""
    c = tl.arange(0, BLOCK_C)
    c_in = c < C
    bias = tl.load(BIAS + c, mask=c_in, other=0.0).to(tl.float32)
    sums = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for step in range(tiles_each):
        rows = (tl.program_id(0) * tiles_each + step) * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = (rows < M)[:, None] & c_in[None, :]
        at = rows.to(tl.int64)[:, None] * C + c[None, :]
        gate = tl.load(GATE + at, mask=inside, other=0.0).to(tl.float32)
        sig = tl.sigmoid(gate + bias[None, :])
        d = tl.load(DOUT + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_MASK:
            d *= tl.load(MASK + rows, mask=rows < M, other=0.0).to(tl.float32)[:, None]
        d *= sig
        y = tl.load(Y + at, mask=inside, other=0.0).to(tl.float32)
        dgate = d * y * (1.0 - sig)
        tl.store(DY + at, d.to(DY.dtype.element_ty), mask=inside)
        tl.store(GATE + at, dgate.to(GATE.dtype.element_ty), mask=inside)
        sums += dgate
    tl.store(PARTIAL + tl.program_id(0).to(tl.int64) * C + c, tl.sum(sums, 0), mask=c_in)
