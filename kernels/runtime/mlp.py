# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Norm, hidden layer and output of a transition in one kernel, for up to 128 channels.

Letters: M rows, C channels, N hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded, precision
from evofeed.kernels.runtime.projection_kernels import load_normalised
from evofeed.kernels.runtime.tiles import tile


@triton.jit
def mlp_kernel(
    X, GAMMA, BETA, WA, BA, WB, WO, BO, MASK, OUT, STATS, M, C, N, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_RES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT = X + MASK * (hidden WO^T + BO), and the norm's statistics in STATS.

    With Y = layer_norm(X), hidden is relu(Y WA^T + BA), or silu(Y WA^T) * (Y WB^T) with WB.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    normed, mean, rstd = load_normalised(X, GAMMA, BETA, rows, c, row_in, c_in, C, 1, C, eps)
    tl.store(STATS + rows, mean, mask=row_in)
    tl.store(STATS + M + rows, rstd, mask=row_in)
    x = normed.to(WA.dtype.element_ty)
    out = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for first in range(0, N, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        n_in = n < N
        w_in = n_in[:, None] & c_in[None, :]
        wa = tl.load(WA + n[:, None] * C + c[None, :], mask=w_in, other=0.0)
        a = tl.dot(x, tl.trans(wa), input_precision=PRECISION)
        if WB is None:
            a += tl.load(BA + n, mask=n_in, other=0.0).to(tl.float32)[None, :]
            hidden = tl.maximum(a, 0.0)
        else:
            wb = tl.load(WB + n[:, None] * C + c[None, :], mask=w_in, other=0.0)
            hidden = a * tl.sigmoid(a) * tl.dot(x, tl.trans(wb), input_precision=PRECISION)
        wo = tl.load(WO + c[:, None] * N + n[None, :],
                     mask=c_in[:, None] & n_in[None, :], other=0.0)  # fmt: skip
        out = tl.dot(hidden.to(wo.dtype), tl.trans(wo), out, input_precision=PRECISION)
    if BO is not None:
        out += tl.load(BO + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
    if MASK is not None:
        out *= tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)[:, None]
    inside = row_in[:, None] & c_in[None, :]
    offsets = rows.to(tl.int64)[:, None] * C + c[None, :]
    if HAS_RES:
        out += tl.load(X + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + offsets, out.to(OUT.dtype.element_ty), mask=inside)


def mlp(
    op: str, x: Tensor, norm: tuple[Tensor, Tensor], wa: Tensor, wo: Tensor, *,
    ba: Tensor | None = None, wb: Tensor | None = None, bo: Tensor | None = None, eps: float,
    mask: Tensor | None, residual: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """mask * (hidden wo^T + bo), plus x `[M, C]` if `residual`; also the norm's statistics.

    Args:
        op: name of the saved tile.
        x: `[M, C]`.
        norm: the norm's weight and bias.
        wa, ba, wb: weights and bias of the hidden layer, see `mlp_kernel`.
        wo, bo: weight and bias of the output layer.
        eps: of the norm.
        mask: a factor for each row, or None.
        residual: True to add x.
    """
    (M, C), N, block = x.shape, wo.shape[1], tile(op, x.shape[1], wo.dtype)
    out = torch.empty_like(x)
    stats = torch.empty((2, M), dtype=torch.float32, device=x.device)
    launch(
        mlp_kernel, (triton.cdiv(M, block.rows),),
        (x, *norm, wa, ba, wb, wo, bo, mask, out, stats, M, C, N, eps),
        {"BLOCK_M": block.rows, "BLOCK_C": padded(C), "BLOCK_N": min(block.columns, padded(N)),
         "HAS_RES": residual, "PRECISION": precision(wo.dtype), "num_warps": block.warps,
         "num_stages": block.stages},
    )  # fmt: skip
    return out, stats
