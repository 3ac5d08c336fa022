# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The end of every gated attention: sigmoid gate, output projection, dropout, residual.

Letters: M rows, K = H * D channels of the attention's output, N channels of the result.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.projection_kernels import drop_row


@triton.jit
def gated_output_kernel(
    O_, GATE, GATE_BIAS, W, BIAS, DROP, RES, OUT, M, K, N, gs_m, drop_1, drop_2, drop_rows, size,
    residues, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_DROP: tl.constexpr, HAS_RES: tl.constexpr, OF_RESIDUE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT = RES + DROP * ((sigmoid(GATE + GATE_BIAS) * O) W^T + BIAS).

    OF_RESIDUE: O has a row for each of an MSA's `residues`, not for each of its `size` positions.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    row_in, k_in = rows < M, k < K
    rows64 = rows.to(tl.int64)
    a_in = row_in[:, None] & k_in[None, :]
    o_rows = rows64 // size * residues + rows64 % residues if OF_RESIDUE else rows64
    o = tl.load(O_ + o_rows[:, None] * K + k[None, :], mask=a_in, other=0.0).to(tl.float32)
    gate = tl.load(GATE + rows64[:, None] * gs_m + k[None, :], mask=a_in, other=0.0)
    gate = gate.to(tl.float32) + tl.load(GATE_BIAS + k, mask=k_in, other=0.0).to(tl.float32)
    a = (o * tl.sigmoid(gate)).to(W.dtype.element_ty)
    for first in range(0, N, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        n_in = n < N
        w = tl.load(W + n[:, None] * K + k[None, :],
                    mask=n_in[:, None] & k_in[None, :], other=0.0)  # fmt: skip
        y = tl.dot(a, tl.trans(w), input_precision=PRECISION)
        y += tl.load(BIAS + n, mask=n_in, other=0.0).to(tl.float32)[None, :]
        inside = row_in[:, None] & n_in[None, :]
        if HAS_DROP:
            mask_rows = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + mask_rows[:, None] * N + n[None, :], mask=inside, other=0.0)
            y *= drop.to(tl.float32)
        flat = rows64[:, None] * N + n[None, :]
        if HAS_RES:
            y += tl.load(RES + flat, mask=inside, other=0.0).to(tl.float32)
        tl.store(OUT + flat, y.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def gated_output_grad_kernel(
    GRAD, O_, GATE, GATE_BIAS, DO, DGATE, GATED, DELTA, PARTIAL, M, K, gs_m, dg_m, ds_b, ds_i,
    ds_j, ds_h, I_, J_,
    BLOCK_M: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """From the gradient of GATED = sigmoid(GATE + GATE_BIAS) * O: dO, the gate's, GATED, delta.

    Delta, the sum over each head of dO * O, is written to
    `b * ds_b + i * ds_i + j * ds_j + h * ds_h` for row (b * I + i) * J + j, the order of the
    attention kernels. PARTIAL `[programs, K]`: each program's sums of the gate's gradient, if
    it has a bias. A program computes HEADS whole heads; dO may be GRAD.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n, first = tl.arange(0, HEADS * BLOCK_D), tl.program_id(1) * HEADS
    k = first * D + n
    k_in = k < K
    if D != BLOCK_D:
        k = (first + n // BLOCK_D) * D + n % BLOCK_D
        k_in = (k < K) & (n % BLOCK_D < D)
    row_in = rows < M
    inside = row_in[:, None] & k_in[None, :]
    rows64 = rows.to(tl.int64)
    flat = rows64[:, None] * K + k[None, :]
    grad = tl.load(GRAD + flat, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(O_ + flat, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(GATE + rows64[:, None] * gs_m + k[None, :], mask=inside, other=0.0)
    gate = gate.to(tl.float32)
    if GATE_BIAS is not None:
        gate += tl.load(GATE_BIAS + k, mask=k_in, other=0.0).to(tl.float32)[None, :]
    sig = tl.sigmoid(gate)
    do = (grad * sig).to(DO.dtype.element_ty)
    tl.store(DO + flat, do, mask=inside)
    tl.store(GATED + flat, (sig * o).to(GATED.dtype.element_ty), mask=inside)
    dgate = grad * o * sig * (1.0 - sig)
    tl.store(DGATE + rows64[:, None] * dg_m + k[None, :], dgate.to(DGATE.dtype.element_ty),
             mask=inside)  # fmt: skip
    if GATE_BIAS is not None:
        tl.store(PARTIAL + tl.program_id(0).to(tl.int64) * K + k, tl.sum(dgate, 0), mask=k_in)
    delta = tl.sum(tl.reshape(do.to(tl.float32) * o, [BLOCK_M, HEADS, BLOCK_D]), 2)
    h = first + tl.arange(0, HEADS)
    b, i, j = rows64 // (I_ * J_), (rows64 // J_) % I_, rows64 % J_
    offsets = b * ds_b + i * ds_i + j * ds_j
    tl.store(DELTA + offsets[:, None] + h.to(tl.int64)[None, :] * ds_h, delta,
             mask=row_in[:, None] & (h * D < K)[None, :])  # fmt: skip
