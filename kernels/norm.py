# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Layer norm over a short last axis: one pass forward, one pass backward.

Statistics are float32 whatever the storage types; sums are made in a fixed order, so
two runs give equal bits. The input may be any view whose last axis is contiguous
and whose other axes collapse to two strides (a transposed MSA is one).

Letters: M rows, C channels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.backend import sm_count, tl, triton, usable
from evofeed.kernels.checks import check_shape, check_type
from evofeed.kernels.choices import Tile, small_norm, tile
from evofeed.kernels.launching import launch
from evofeed.kernels.library import operator

__all__ = ["layer_norm", "supported"]

MAX_CHANNELS = 8192  # one row must fit one tile


@triton.jit
def _forward_kernel(
    X, W, B, Y, STATS, M, n1, s0, s1, C, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, PLAIN: tl.constexpr, EVEN: tl.constexpr,
    TICKETS: tl.constexpr,
):  # fmt: skip
    """Y, and in STATS the rows' means, their 1/std, and zeros for the backward pass's tickets.

    PLAIN: X is contiguous; EVEN: C is BLOCK_C.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_C)
    row_in, col_in = rows < M, (cols < C) | EVEN
    inside = row_in[:, None] & col_in[None, :]
    flat = rows.to(tl.int64)[:, None] * C + cols[None, :]
    if PLAIN:
        x = tl.load(X + flat, mask=inside, other=0.0).to(tl.float32)
    else:
        start = (rows // n1).to(tl.int64) * s0 + (rows % n1).to(tl.int64) * s1
        x = tl.load(X + start[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    w = tl.load(W + cols, mask=col_in, other=0.0).to(tl.float32)
    b = tl.load(B + cols, mask=col_in, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / C
    centred = x - mean[:, None]
    if not EVEN:
        centred = tl.where(col_in[None, :], centred, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / C + eps)
    y = centred * rstd[:, None] * w[None, :] + b[None, :]
    tl.store(Y + flat, y.to(Y.dtype.element_ty), mask=inside)
    tl.store(STATS + rows, mean, mask=row_in)
    tl.store(STATS + M + rows, rstd, mask=row_in)
    if TICKETS > 0 and tl.program_id(0) == 0:
        tl.store(STATS + 2 * M + tl.arange(0, TICKETS), tl.zeros([TICKETS], tl.float32))


@triton.jit
def _backward_kernel(
    DY, X, W, B, STATS, RES, DX, NORMED, PARTIAL, TICKET, DW, DB, M, n1, s0, s1, C, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, PLAIN: tl.constexpr, EVEN: tl.constexpr,
    HAS_RES: tl.constexpr, KEEP: tl.constexpr, RES_SUM: tl.constexpr, LAST_SUMS: tl.constexpr,
    GROUP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """DX = gradient of X, plus RES; with KEEP also the forward result again, in NORMED.

    PARTIAL `[programs, 2 or 3, C]`: each program's sums for W, B and, with RES_SUM, of RES.
    With LAST_SUMS the last program to finish adds them up into DW and DB.
    """
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK_C)
    col_in = (cols < C) | EVEN
    w = tl.load(W + cols, mask=col_in, other=0.0).to(tl.float32)
    if KEEP:
        b = tl.load(B + cols, mask=col_in, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    db = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    if RES_SUM:
        dr = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for step in tl.range(tiles_each, num_stages=STAGES):
        rows = (step * tl.num_programs(0) + program) * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        inside = row_in[:, None] & col_in[None, :]
        flat = rows.to(tl.int64)[:, None] * C + cols[None, :]
        if PLAIN:
            x = tl.load(X + flat, mask=inside, other=0.0).to(tl.float32)
        else:
            start = (rows // n1).to(tl.int64) * s0 + (rows % n1).to(tl.int64) * s1
            x = tl.load(X + start[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(DY + flat, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(STATS + rows, mask=row_in, other=0.0)
        rstd = tl.load(STATS + M + rows, mask=row_in, other=0.0)
        xhat = (x - mean[:, None]) * rstd[:, None]
        if not EVEN:
            xhat = tl.where(col_in[None, :], xhat, 0.0)
        g = dy * w[None, :]
        mean_g = tl.sum(g, 1) / C
        mean_gx = tl.sum(g * xhat, 1) / C
        dx = rstd[:, None] * (g - mean_g[:, None] - xhat * mean_gx[:, None])
        if HAS_RES:
            res = tl.load(RES + flat, mask=inside, other=0.0).to(tl.float32)
            dx += res
            if RES_SUM:
                dr += res
        tl.store(DX + flat, dx.to(DX.dtype.element_ty), mask=inside)
        if KEEP:
            normed = xhat * w[None, :] + b[None, :]
            tl.store(NORMED + flat, normed.to(NORMED.dtype.element_ty), mask=inside)
        dw += dy * xhat
        db += dy
    to = PARTIAL + program * (3 if RES_SUM else 2) * C + cols
    tl.store(to, tl.sum(dw, 0), mask=col_in)
    tl.store(to + C, tl.sum(db, 0), mask=col_in)
    if RES_SUM:
        tl.store(to + 2 * C, tl.sum(dr, 0), mask=col_in)
    if LAST_SUMS:
        _sum_of_all(PARTIAL, TICKET, DW, DB, C, BLOCK_C, GROUP)


@triton.jit
def _sum_of_all(PARTIAL, TICKET, DW, DB, C, BLOCK_C: tl.constexpr, GROUP: tl.constexpr):
    """Adds up all programs' rows `[2 * C]` of PARTIAL, always in the same order.

    The last program of a group adds up the group into a row after all others; the last group's
    adds up the groups. Tickets only say who is last; they are 0 before and after.
    """
    programs, group = tl.num_programs(0), tl.program_id(0) // GROUP
    groups, members = tl.cdiv(programs, GROUP), tl.minimum(GROUP, programs - group * GROUP)
    tl.debug_barrier()  # all of this program's row is written
    if tl.atomic_add(TICKET + 1 + group, 1, sem="acq_rel") == members - 1:
        sums = PARTIAL + (programs + group) * 2 * C
        _sum_rows(PARTIAL + group * GROUP * 2 * C, members, sums, sums + C, C, BLOCK_C, GROUP)
        tl.store(TICKET + 1 + group, 0)
        tl.debug_barrier()
        if tl.atomic_add(TICKET, 1, sem="acq_rel") == groups - 1:
            _sum_rows(PARTIAL + programs * 2 * C, groups, DW, DB, C, BLOCK_C, GROUP)
            tl.store(TICKET, 0)


@triton.jit
def _sum_rows(P, count, DW, DB, C, BLOCK_C: tl.constexpr, GROUP: tl.constexpr):
    """Sums of the columns of P `[count, 2 * C]`: the first C in DW, the others in DB."""
    tl.debug_barrier()  # no read may pass the ticket
    CHUNK: tl.constexpr = 2 * BLOCK_C if BLOCK_C < 128 else 256
    for first in range(0, 2 * C, CHUNK):
        cols = first + tl.arange(0, CHUNK)
        total = tl.zeros([CHUNK], tl.float32)
        for start in range(0, count, GROUP):
            r = start + tl.arange(0, GROUP)
            inside = (r < count)[:, None] & (cols < 2 * C)[None, :]
            rows = tl.load(P + r[:, None] * 2 * C + cols[None, :], mask=inside, other=0.0,
                           cache_modifier=".cg")  # fmt: skip
            total += tl.sum(rows, 0)
        tl.store(DW + cols, total.to(DW.dtype.element_ty), mask=cols < C)
        tl.store(DB + cols - C, total.to(DB.dtype.element_ty),
                 mask=(cols >= C) & (cols < 2 * C))  # fmt: skip


def rows_and_strides(x: Tensor) -> tuple[Tensor, int, int, int]:
    """`x` (copied only if need be), inner row count n1 and the two row strides s0, s1.

    Row r of the flattened leading axes starts at `(r // n1) * s0 + (r % n1) * s1`.
    """
    C = x.shape[-1]
    if x.is_contiguous():
        return x, max(1, x.numel() // max(C, 1)), 0, C
    axes = [(n, s) for n, s in zip(x.shape[:-1], x.stride()[:-1], strict=True) if n != 1]
    merged: list[tuple[int, int]] = []
    for n, s in axes:
        if merged and merged[-1][1] == n * s:
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    if x.stride(-1) == 1 and len(merged) == 2:
        return x, merged[1][0], merged[0][1], merged[1][1]
    if x.stride(-1) == 1 and len(merged) == 1:
        return x, merged[0][0], 0, merged[0][1]
    x = x.contiguous()
    return x, max(1, x.numel() // max(C, 1)), 0, C


GROUP = 32  # rows of sums that one program adds up at a time
TICKETS = 64  # one for all, one per group of programs


def _block(op: str, C: int) -> tuple[Tile, dict[str, Any]]:
    """The tile of a kernel and what it is compiled for. Rows are those of 128 channels."""
    block_c = max(16, triton.next_power_of_2(C))
    choice = tile(op, C, torch.bfloat16)  # the same for float32: nothing is multiplied here
    rows = max(1, choice.rows * 128 // block_c)
    meta = {"BLOCK_M": rows, "BLOCK_C": block_c, "EVEN": block_c == C, "num_warps": choice.warps}
    return choice, meta


def empty_stats(M: int, device: torch.device) -> Tensor:
    """Room for the mean and 1/std of M rows, and for the backward pass's tickets."""
    return torch.empty(2 * M + TICKETS, dtype=torch.float32, device=device)


@operator("layer_norm")
class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        C = x.shape[-1]
        x, n1, s0, s1 = rows_and_strides(x)
        M = x.numel() // C
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        stats = empty_stats(M, x.device)
        _, meta = _block("norm_forward", C)
        launch(
            _forward_kernel, (triton.cdiv(M, meta["BLOCK_M"]),),
            (x, weight, bias, y, stats, M, n1, s0, s1, C, eps),
            {"PLAIN": x.is_contiguous(), "TICKETS": TICKETS, **meta},
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, stats)
        ctx.rows = (n1, s0, s1)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, stats = ctx.saved_tensors
        dw, db = torch.empty_like(weight), torch.empty_like(bias)
        dx, _ = layer_norm_backward(
            dy.contiguous(), x, weight, bias, stats, ctx.rows, sums=(dw, db)
        )
        return dx, dw, db, None


def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stats: Tensor,
    rows: tuple[int, int, int],
    residual: Tensor | None = None,
    normed: Tensor | None = None,
    residual_sum: bool = False,
    sums: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradient of the input, and the parts of those of weight and bias.

    Args:
        dy: gradient of the result, contiguous.
        x, weight, bias: the forward pass's inputs.
        stats: mean and 1/std of each row, from `empty_stats`.
        rows: as `rows_and_strides` gave them for x.
        residual: contiguous, added to the gradient of x, or None.
        normed: filled with the forward pass's result again, if given.
        residual_sum: whether the residual's columns are summed too.
        sums: filled with the gradients of weight and bias; `stats` then comes from this
            file's own forward pass, which readied its tickets.

    Returns:
        The gradient of x, and `[programs, 2 (or 3 with residual_sum) * C]` whose column sums
        are the gradients of weight and bias (and the residual's sums).
    """
    C = x.shape[-1]
    M = x.numel() // C
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    choice, meta = _block("norm_backward", C)
    tiles = triton.cdiv(M, meta["BLOCK_M"])
    programs = min(tiles, choice.programs * sm_count(x), GROUP * (TICKETS - 1))
    more = 0 if sums is None else triton.cdiv(programs, GROUP)
    width = (3 if residual_sum else 2) * C
    partial = torch.empty((programs + more, width), dtype=torch.float32, device=x.device)
    ticket = None if sums is None else stats[2 * M :].view(torch.int32)
    dw, db = (None, None) if sums is None else sums
    launch(
        _backward_kernel, (programs,),
        (dy, x, weight, bias, stats, residual, dx, normed, partial, ticket, dw, db, M, *rows, C,
         triton.cdiv(tiles, programs)),
        {"PLAIN": x.is_contiguous(), "HAS_RES": residual is not None, "KEEP": normed is not None,
         "RES_SUM": residual_sum, "LAST_SUMS": sums is not None, "GROUP": GROUP,
         "STAGES": choice.stages, **meta},
    )  # fmt: skip
    return dx, partial


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`x` normalised over its last axis, times weight plus bias; statistics in float32.

    Args:
        x: `[..., C]`, float32, bfloat16 or float16, any strides.
        weight: `[C]`, of any float type.
        bias: `[C]`, of any float type.
        eps: added to the variance.

    Returns:
        A contiguous tensor of x's shape and dtype (also under autocast). Where no
        kernel can run (CPU, no Triton, float64, C > 8192) or pay, PyTorch computes it.

    Raises:
        UnsupportedShape: weight or bias is not `[C]`, or x is not of a float type.
    """
    C = x.shape[-1]
    check_type("layer_norm", x, double=True)
    check_shape("layer_norm", "weight", weight, C)
    check_shape("layer_norm", "bias", bias, C)
    if x.numel() == 0 or not supported(x, weight, bias):
        if torch.is_autocast_enabled(x.device.type):  # entering the context costs microseconds
            with torch.autocast(x.device.type, enabled=False):
                return F.layer_norm(x, (C,), weight.to(x.dtype), bias.to(x.dtype), eps)
        return F.layer_norm(x, (C,), weight.to(x.dtype), bias.to(x.dtype), eps)
    return _LayerNorm.apply(x, weight, bias, eps)  # type: ignore[no-any-return]


def supported(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernel takes this input and is worth its launch."""
    if weight is None or bias is None or x.dtype is torch.float64:
        return False
    if x.numel() < small_norm() and x.dtype is weight.dtype and x.is_cuda:
        return False
    return x.shape[-1] <= MAX_CHANNELS and usable(x, weight, bias)
