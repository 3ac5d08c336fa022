# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Global column attention, one residue at a time: pooling, attention, gradients.

A column of the MSA has one query a head, a projection of the mean of its sequences, and keys
and values that all heads share: its logits are H numbers a sequence. Every kernel is therefore
bound by reading and writing the MSA once.

Letters: B batch, S sequences, R residues, C channels, H heads, D head width, K = H * D.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def pool_kernel(
    X, MASK, PARTIAL, S, R, C, seqs_each,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """PARTIAL `[splits, B, R, C]`: sum over `seqs_each` sequences of X * MASK."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.arange(0, BLOCK_C)
    split, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    r_in = r < R
    inside = r_in[:, None] & (c < C)[None, :]
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for s in range(split * seqs_each, tl.minimum((split + 1) * seqs_each, S)):
        row = (b * S + s) * R + r
        x = tl.load(X + row[:, None] * C + c[None, :], mask=inside, other=0.0)
        mask = tl.load(MASK + row, mask=r_in, other=0.0)
        total += x.to(tl.float32) * mask.to(tl.float32)[:, None]
    to = PARTIAL + ((split * tl.num_programs(2) + b) * R + r)[:, None] * C + c[None, :]
    tl.store(to, total, mask=inside)


@triton.jit
def pool_grad_kernel(
    DX, MASK, DMEAN, S, R, C,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """DX += MASK * DMEAN `[B, R, C]`, for one sequence."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.arange(0, BLOCK_C)
    s, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    inside = (r < R)[:, None] & (c < C)[None, :]
    row = (b * S + s) * R + r
    pointers = DX + row[:, None] * C + c[None, :]
    mask = tl.load(MASK + row, mask=r < R, other=0.0).to(tl.float32)
    mean = tl.load(DMEAN + (b * R + r)[:, None] * C + c[None, :], mask=inside, other=0.0)
    dx = tl.load(pointers, mask=inside, other=0.0).to(tl.float32) + mask[:, None] * mean.to(
        tl.float32
    )
    tl.store(pointers, dx.to(DX.dtype.element_ty), mask=inside)


@triton.jit
def _column(PTR, b, r, s, S, R, stride, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The `[s, D]` numbers of residue r."""
    d = tl.arange(0, BLOCK_D)
    pointers = PTR + ((b * S + s) * R + r)[:, None] * stride + d[None, :]
    return tl.load(pointers, mask=(s < S)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _logits(q, k, MASK, COUNT, b, r, s, S, R, factor, PRECISION: tl.constexpr):
    """Base-2 logits `[heads, s]`, and which sequences are valid.

    In a column without valid sequences all logits are 0: its log-sum-exp would lose all digits
    if they were large.
    """
    x = tl.dot(q, tl.trans(k), input_precision=PRECISION) * factor
    valid = tl.load(MASK + (b * S + s) * R + r, mask=s < S, other=0.0).to(tl.float32) > 0.5
    masked = tl.where(tl.load(COUNT + b * R + r) > 0.0, -1.0e9, 0.0)
    x = tl.where(valid[None, :], x, masked)
    return tl.where((s < S)[None, :], x, float("-inf")), valid


@triton.jit
def attend_kernel(
    Q, K_, V, MASK, COUNT, OUT, LSE, S, R, H, stride, factor,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_S: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT `[B, R, H, D]` and base-2 LSE `[B, R, H]` of one residue; Q is `[B, R, H, D]`."""
    r, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    h, d = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    hd_in = (h < H)[:, None] & (d < D)[None, :]
    first_head = (b * R + r) * H
    q = tl.load(Q + (first_head + h)[:, None] * D + d[None, :], mask=hd_in, other=0.0)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for first in range(0, S, BLOCK_S):
        s = first + tl.arange(0, BLOCK_S)
        k = _column(K_, b, r, s, S, R, stride, D, BLOCK_D)
        v = _column(V, b, r, s, S, R, stride, D, BLOCK_D)
        x, _ = _logits(q, k, MASK, COUNT, b, r, s, S, R, factor, PRECISION)
        new_top = tl.maximum(top, tl.max(x, 1))
        p = tl.exp2(x - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top
    tl.store(OUT + (first_head + h)[:, None] * D + d[None, :],
             (acc / total[:, None]).to(OUT.dtype.element_ty), mask=hd_in)  # fmt: skip
    tl.store(LSE + first_head + h, top + tl.log2(total), mask=h < H)


@triton.jit
def attend_grad_kernel(
    Q, K_, V, MASK, COUNT, OUT, LSE, DO, DQ, DK, DV, S, R, H, stride, d_stride, factor, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_S: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """DQ, DK and DV of one residue, from the gradient DO `[B, R, H, D]` of OUT.

    The logits of masked sequences do not depend on q and k.
    """
    r, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    h, d = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    hd_in = (h < H)[:, None] & (d < D)[None, :]
    first_head = (b * R + r) * H
    offsets = (first_head + h)[:, None] * D + d[None, :]
    q = tl.load(Q + offsets, mask=hd_in, other=0.0)
    do = tl.load(DO + offsets, mask=hd_in, other=0.0)
    out = tl.load(OUT + offsets, mask=hd_in, other=0.0)
    delta = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
    lse = tl.load(LSE + first_head + h, mask=h < H, other=float("inf"))
    dq = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for first in range(0, S, BLOCK_S):
        s = first + tl.arange(0, BLOCK_S)
        k = _column(K_, b, r, s, S, R, stride, D, BLOCK_D)
        v = _column(V, b, r, s, S, R, stride, D, BLOCK_D)
        x, valid = _logits(q, k, MASK, COUNT, b, r, s, S, R, factor, PRECISION)
        p = tl.exp2(x - lse[:, None])
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        ds = tl.where(valid[None, :], p * (dp - delta[:, None]), 0.0).to(q.dtype)
        dq = tl.dot(ds, k, dq, input_precision=PRECISION)
        dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION) * scale
        dv = tl.dot(tl.trans(p.to(do.dtype)), do, input_precision=PRECISION)
        row = ((b * S + s) * R + r)[:, None] * d_stride + d[None, :]
        inside = (s < S)[:, None] & (d < D)[None, :]
        tl.store(DK + row, dk.to(DK.dtype.element_ty), mask=inside)
        tl.store(DV + row, dv.to(DV.dtype.element_ty), mask=inside)
    tl.store(DQ + offsets, (dq * scale).to(DQ.dtype.element_ty), mask=hd_in)


@triton.jit
def gated_broadcast_grad_kernel(
    DOUT, W, O_, GATE, GATE_BIAS, DGATE, GATED, PARTIAL, SUMS, S, R, K, N, gate_stride, d_stride,
    seqs_each, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From the gradient of the result: of GATE, GATED = sigmoid(..) * O, and of O.

    The last as PARTIAL `[splits, B, R, K]`, summed over `seqs_each` sequences. SUMS
    `[programs, K + N]`: each program's sums of the gate's gradient and of DOUT.
    """
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    split, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    k, n = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_N)
    r_in, k_in, n_in = r < R, k < K, n < N
    rk_in, rn_in = r_in[:, None] & k_in[None, :], r_in[:, None] & n_in[None, :]
    w = tl.load(W + n[:, None] * K + k[None, :], mask=n_in[:, None] & k_in[None, :], other=0.0)
    offsets = (b * R + r)[:, None] * K + k[None, :]
    o = tl.load(O_ + offsets, mask=rk_in, other=0.0).to(tl.float32)
    shift = tl.load(GATE_BIAS + k, mask=k_in, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    sum_gate = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    sum_out = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    for s in range(split * seqs_each, tl.minimum((split + 1) * seqs_each, S)):
        row = (b * S + s) * R + r
        dout = tl.load(DOUT + row[:, None] * N + n[None, :], mask=rn_in, other=0.0).to(w.dtype)
        sum_out += dout.to(tl.float32)
        grad = tl.dot(dout, w, input_precision=PRECISION)
        gate = tl.load(GATE + row[:, None] * gate_stride + k[None, :], mask=rk_in, other=0.0)
        sig = tl.sigmoid(gate.to(tl.float32) + shift[None, :])
        total += grad * sig
        dgate = grad * o * sig * (1.0 - sig)
        sum_gate += dgate
        tl.store(DGATE + row[:, None] * d_stride + k[None, :],
                 dgate.to(DGATE.dtype.element_ty), mask=rk_in)  # fmt: skip
        tl.store(GATED + row[:, None] * K + k[None, :], (sig * o).to(GATED.dtype.element_ty),
                 mask=rk_in)  # fmt: skip
    slab = (split * tl.num_programs(2) + b) * R * K
    tl.store(PARTIAL + slab + r[:, None] * K + k[None, :], total, mask=rk_in)
    program = (b * tl.num_programs(1) + split) * tl.num_programs(0) + tl.program_id(0)
    tl.store(SUMS + program * (K + N) + k, tl.sum(sum_gate, 0), mask=k_in)
    tl.store(SUMS + program * (K + N) + K + n, tl.sum(sum_out, 0), mask=n_in)
