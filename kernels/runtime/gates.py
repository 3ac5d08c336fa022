# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The gate after a product by cuBLAS: sigmoid, biases, dropout, mask and residual in one pass.

Letters: M rows, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import Drop, padded
from evofeed.kernels.runtime.projection_kernels import drop_row

TILE_SIZE = 4096  # numbers
TILES_EACH = 4  # tiles of a program of the backward pass


@triton.jit
def _load_gated(Y, Y_BIAS, GATE, GATE_BIAS, offsets, gate_offsets, c, c_in, inside):
    """Y with its bias, and the sigmoid of the gate with its bias."""
    y = tl.load(Y + offsets, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(GATE + gate_offsets, mask=inside, other=0.0).to(tl.float32)
    if Y_BIAS is not None:
        y += tl.load(Y_BIAS + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
    if GATE_BIAS is not None:
        gate += tl.load(GATE_BIAS + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
    return y, tl.sigmoid(gate)


@triton.jit
def _scaled(x, DROP, MASK, rows, c, row_in, inside, C, drop_1, drop_2, drop_rows):
    """x times the dropout mask and each row's factor."""
    if DROP is not None:
        offsets = drop_row(rows, drop_1, drop_2, drop_rows).to(tl.int64)[:, None] * C + c[None, :]
        x *= tl.load(DROP + offsets, mask=inside, other=0.0).to(tl.float32)
    if MASK is not None:
        x *= tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)[:, None]
    return x


@triton.jit
def gated_kernel(
    Y, Y_BIAS, GATE, GATE_BIAS, DROP, MASK, RES, OUT, M, C, gate_m, drop_1, drop_2, drop_rows,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """OUT = RES + MASK * DROP * sigmoid(GATE + GATE_BIAS) * (Y + Y_BIAS); None is left out."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    inside = row_in[:, None] & c_in[None, :]
    offsets = rows.to(tl.int64)[:, None] * C + c[None, :]
    gate_offsets = rows.to(tl.int64)[:, None] * gate_m + c[None, :]
    y, gate = _load_gated(Y, Y_BIAS, GATE, GATE_BIAS, offsets, gate_offsets, c, c_in, inside)
    out = _scaled(gate * y, DROP, MASK, rows, c, row_in, inside, C, drop_1, drop_2, drop_rows)
    if RES is not None:
        out += tl.load(RES + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + offsets, out.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def gated_grad_kernel(
    DOUT, Y, Y_BIAS, GATE, GATE_BIAS, DROP, MASK, DY, PARTIAL, M, C, gate_m, drop_1, drop_2,
    drop_rows, tiles_each, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Writes DY, which may be Y, and replaces GATE by its gradient.

    PARTIAL `[programs, C]`: sums of the gate's rows; with Y_BIAS `[programs, 2C]`, DY's first.
    """
    c = tl.arange(0, BLOCK_C)
    c_in = c < C
    sum_y = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    sum_gate = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for step in range(tiles_each):
        rows = (tl.program_id(0) * tiles_each + step) * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        inside = row_in[:, None] & c_in[None, :]
        offsets = rows.to(tl.int64)[:, None] * C + c[None, :]
        gate_offsets = rows.to(tl.int64)[:, None] * gate_m + c[None, :]
        y, gate = _load_gated(Y, Y_BIAS, GATE, GATE_BIAS, offsets, gate_offsets, c, c_in, inside)
        dout = tl.load(DOUT + offsets, mask=inside, other=0.0).to(tl.float32)
        dout = _scaled(dout, DROP, MASK, rows, c, row_in, inside, C, drop_1, drop_2, drop_rows)
        dy = dout * gate
        dgate = dy * y * (1.0 - gate)
        tl.store(DY + offsets, dy.to(DY.dtype.element_ty), mask=inside)
        tl.store(GATE + gate_offsets, dgate.to(GATE.dtype.element_ty), mask=inside)
        if Y_BIAS is not None:
            sum_y += dy
        sum_gate += dgate
    to = PARTIAL + tl.program_id(0).to(tl.int64) * (1 if Y_BIAS is None else 2) * C + c
    if Y_BIAS is not None:
        tl.store(to, tl.sum(sum_y, 0), mask=c_in)
        to += C
    tl.store(to, tl.sum(sum_gate, 0), mask=c_in)


def gated(
    y: Tensor, gate: Tensor, out: Tensor, *, y_bias: Tensor | None = None,
    gate_bias: Tensor | None = None, drop: Drop | None = None, mask: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Fills out with mask * drop * sigmoid(gate + gate_bias) * (y + y_bias), plus the residual.

    Args:
        y: `[M, C]`; out and the residual have the same number of elements.
        gate: `[M, C]`, with any stride between rows.
        y_bias, gate_bias: `[C]`.
        drop: a dropout mask.
        mask: a factor for each row.
    """
    (M, C), drop = y.shape, drop or Drop(None, (1, 1))
    rows = max(1, TILE_SIZE // padded(C))
    launch(
        gated_kernel, (triton.cdiv(M, rows),),
        (y, y_bias, gate, gate_bias, drop.mask, mask, residual, out, M, C, gate.stride(0),
         *drop.strides()),
        {"BLOCK_M": rows, "BLOCK_C": padded(C), "num_warps": 4},
    )  # fmt: skip
    return out


def gated_grads(
    dout: Tensor, y: Tensor, gate: Tensor, dy: Tensor, *, y_bias: Tensor | None = None,
    gate_bias: Tensor | None = None, drop: Drop | None = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Fills dy, which may be y itself, with its gradient, and replaces the gate by its gradient.

    Returns `[programs, C]` whose column sums are the gradient of the gate's bias; if y has a bias,
    `[programs, 2C]`, with the columns of y's bias first.
    """
    (M, C), drop = y.shape, drop or Drop(None, (1, 1))
    rows = max(1, TILE_SIZE // padded(C))
    programs = triton.cdiv(M, rows * TILES_EACH)
    width = C if y_bias is None else 2 * C
    partial = torch.empty((programs, width), dtype=torch.float32, device=y.device)
    launch(
        gated_grad_kernel, (programs,),
        (dout, y, y_bias, gate, gate_bias, drop.mask, mask, dy, partial, M, C, gate.stride(0),
         *drop.strides(), TILES_EACH),
        {"BLOCK_M": rows, "BLOCK_C": padded(C), "num_warps": 4},
    )  # fmt: skip
    return partial
