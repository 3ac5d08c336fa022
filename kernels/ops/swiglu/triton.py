# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The hidden layer of a SwiGLU transition, and the gradients of its layers.

Letters: M rows, N hidden channels.
"""

from evofeed.kernels.runtime.backend import tl, triton


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
    """DLAYERS; DHIDDEN is overwritten by the hidden layer."""
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows < M)[:, None] & (n < N)[None, :]
    first = rows[:, None] * ((3 if THIRD else 2) * N) + n[None, :]
    from_a, to_a = LAYERS + first, DLAYERS + first
    to_hidden = DHIDDEN + rows[:, None] * N + n[None, :]
    a = tl.load(from_a, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(from_a + N, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(to_hidden, mask=inside, other=0.0).to(tl.float32)
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
    tl.store(to_hidden, hidden.to(DHIDDEN.dtype.element_ty), mask=inside)
