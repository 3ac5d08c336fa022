# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""What a conditioned transition does beside its products and its norm: hidden layer, last gate.

Letters: M rows, N hidden channels, C channels.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def conditioned_hidden_kernel(
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
def conditioned_hidden_grad_kernel(
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
