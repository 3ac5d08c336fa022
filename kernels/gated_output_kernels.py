# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The end of every gated attention: sigmoid gate, output projection, dropout, residual.

Programs keep their weights in shared memory and walk over tiles of rows.

Letters: M rows, K = H * D channels of the attention's output, N channels of the result.
"""

from evofeed.kernels.backend import tl, triton
from evofeed.kernels.projection_kernels import drop_row

__all__ = ["gated_output_grad_kernel", "gated_output_kernel"]


@triton.jit
def gated_output_kernel(
    O_, GATE, GATE_BIAS, W, BIAS, DROP, RES, OUT, M, K, N, gs_m, drop_1, drop_2, drop_rows,
    tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_DROP: tl.constexpr, HAS_RES: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """OUT = RES + DROP * ((sigmoid(GATE + GATE_BIAS) * O) W^T + BIAS)."""
    k = tl.arange(0, BLOCK_K)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k_in, n_in = k < K, n < N
    w = tl.load(W + n[:, None] * K + k[None, :], mask=n_in[:, None] & k_in[None, :], other=0.0)
    for step in tl.range(tiles_each, num_stages=STAGES):
        tile = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        rows64 = rows.to(tl.int64)
        a_in = row_in[:, None] & k_in[None, :]
        o = tl.load(O_ + rows64[:, None] * K + k[None, :], mask=a_in, other=0.0)
        gate = tl.load(GATE + rows64[:, None] * gs_m + k[None, :], mask=a_in, other=0.0)
        shift = tl.load(GATE_BIAS + k, mask=k_in, other=0.0).to(tl.float32)
        open_ = tl.sigmoid(gate.to(tl.float32) + shift[None, :])
        a = (o.to(tl.float32) * open_).to(w.dtype)
        y = tl.dot(a, tl.trans(w), input_precision=PRECISION)
        y += tl.load(BIAS + n, mask=n_in, other=0.0).to(tl.float32)[None, :]
        inside = row_in[:, None] & n_in[None, :]
        if HAS_DROP:
            at = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + at[:, None] * N + n[None, :], mask=inside, other=0.0)
            y *= drop.to(tl.float32)
        flat = rows64[:, None] * N + n[None, :]
        if HAS_RES:
            y += tl.load(RES + flat, mask=inside, other=0.0).to(tl.float32)
        tl.store(OUT + flat, y.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def gated_output_grad_kernel(
    DOUT, DROP, W, O_, GATE, GATE_BIAS, DY, DO, DGATE, GATED, DELTA, PARTIAL,
    M, K, N, gs_m, dg_m, ds_b, ds_i, ds_j, ds_h, I_, J_, drop_1, drop_2, drop_rows, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    HEADS: tl.constexpr, HAS_DROP: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """From the gradient of the result: of O (DO), of the gate, and GATED = sigmoid(..) * O again.

    DY = DOUT * DROP is kept (with KEEP) for the gradient of W. Delta, the sum over each head of
    DO * O, is written at `b * ds_b + i * ds_i + j * ds_j + h * ds_h` for row
    (b * I + i) * J + j, in the order the attention kernels read it. PARTIAL
    `[programs, N + K]`: each program's sums of the columns of DY and of DGATE.
    BLOCK_K is HEADS whole heads.
    """
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    n = tl.arange(0, BLOCK_N)
    k_in, n_in = k < K, n < N
    w = tl.load(W + n[:, None] * K + k[None, :], mask=n_in[:, None] & k_in[None, :], other=0.0)
    first = tl.program_id(1) == 0
    sum_y = tl.zeros([BLOCK_N], tl.float32)
    sum_gate = tl.zeros([BLOCK_K], tl.float32)
    for step in tl.range(tiles_each, num_stages=STAGES):
        tile = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        rows64 = rows.to(tl.int64)
        y_in, inside = row_in[:, None] & n_in[None, :], row_in[:, None] & k_in[None, :]
        y_at = rows64[:, None] * N + n[None, :]
        dout = tl.load(DOUT + y_at, mask=y_in, other=0.0).to(tl.float32)
        if HAS_DROP:
            at = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + at[:, None] * N + n[None, :], mask=y_in, other=0.0)
            dout *= drop.to(tl.float32)
        dy = dout.to(w.dtype)
        if first:
            sum_y += tl.sum(dout, 0)
            if KEEP:
                tl.store(DY + y_at, dy, mask=y_in)
        grad = tl.dot(dy, w, input_precision=PRECISION)
        flat = rows64[:, None] * K + k[None, :]
        o = tl.load(O_ + flat, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(GATE + rows64[:, None] * gs_m + k[None, :], mask=inside, other=0.0)
        shift = tl.load(GATE_BIAS + k, mask=k_in, other=0.0).to(tl.float32)
        open_ = tl.sigmoid(gate.to(tl.float32) + shift[None, :])
        do = (grad * open_).to(DO.dtype.element_ty)
        tl.store(DO + flat, do, mask=inside)
        tl.store(GATED + flat, (open_ * o).to(GATED.dtype.element_ty), mask=inside)
        dgate = grad * o * open_ * (1.0 - open_)
        tl.store(DGATE + rows64[:, None] * dg_m + k[None, :], dgate.to(DGATE.dtype.element_ty),
                 mask=inside)  # fmt: skip
        sum_gate += tl.sum(dgate, 0)
        delta = tl.sum(tl.reshape(do.to(tl.float32) * o, [BLOCK_M, HEADS, D]), 2)
        h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        b, i, j = rows64 // (I_ * J_), (rows64 // J_) % I_, rows64 % J_
        to = DELTA + (b * ds_b + i * ds_i + j * ds_j)[:, None] + h[None, :] * ds_h
        tl.store(to, delta, mask=row_in[:, None] & (h * D < K)[None, :])
    to = PARTIAL + tl.program_id(0) * (N + K)
    if first:
        tl.store(to + n, sum_y, mask=n_in)
    tl.store(to + N + k, sum_gate, mask=k_in)
