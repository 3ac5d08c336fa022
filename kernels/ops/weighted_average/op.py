"""AF3's pair-weighted averaging of an MSA's values as one op.

Norm, values and gate, average, gated output: attention without queries and keys. All rows share
their weights, so the average is one matrix product a head, in the layout of the projections. The
input, its statistics, the weights and the average are saved; the backward pass recomputes values
and gate.

Letters: B batch, S sequences, N residues, C channels, H heads, D head width, K = H * D,
M = B * S * N rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.gated_attention.output import gated_output, output_grads
from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.ops.weighted_average import reference
from evofeed.kernels.ops.weighted_average.reference import AverageWeights
from evofeed.kernels.ops.weighted_average.triton import average_kernel, shares_grad_kernel
from evofeed.kernels.runtime.backend import compute_dtype, launchable, sm_count, triton, usable
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import (
    Drop,
    norm_rows,
    pack,
    padded,
    precision,
    project,
    weight_grad,
)
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.tiles import Tile, tile
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors

COLUMNS = {"average": 128, "shares_grad": 64}
"""Columns of a kernel's tile: one head's numbers of several sequences."""


class _WeightedAverage(Operator, name="weighted_average"):
    options = "float eps, ScalarType dtype"
    saved_inputs = (0, 1, 2, 3)  # m, shares, gamma, beta

    @staticmethod
    def forward(tensors: Tensors, eps: float, dtype: torch.dtype) -> Results:
        m, shares, gamma, beta, v, g, o = tensors
        C, K = o.shape
        packed, wo = pack([v, g], dtype), pack([o], dtype)
        normed, stats, _ = norm_rows(m.view(-1, C), gamma, beta, eps, dtype)
        rows = project(normed, packed)
        del normed
        averaged = torch.empty((*m.shape[:3], shares.shape[1], K // shares.shape[1]),
                               dtype=dtype, device=m.device)  # fmt: skip
        _average(shares.to(dtype), rows, averaged.view(-1, K), m.shape, back=False)
        zeros = wo.new_zeros(max(C, K))
        out = gated_output(
            averaged, rows[:, K:], zeros[:K], wo, zeros[:C], m, Drop(None, (1, 1)), False
        )
        return [out, packed, wo, stats, averaged]

    @staticmethod
    def backward(tensors: Tensors, eps: float, dtype: torch.dtype) -> Results:
        dout, m, shares, gamma, beta, packed, wo, stats, averaged = tensors
        (C, K), H = wo.shape, shares.shape[1]
        flat, dout = m.view(-1, C), dout.contiguous().view(-1, C)
        normed, _, _ = norm_rows(flat, gamma, beta, eps, dtype)
        rows, zeros = project(normed, packed), wo.new_zeros(K)
        drows, do = torch.empty_like(rows), torch.empty_like(averaged)
        drop = Drop(None, (m.shape[1], m.shape[2]))
        _, parts, dwo = output_grads(
            dout, wo, averaged, rows[:, K:], zeros, do, drows[:, K:], drop, columns=False,
            sums=False, dtype=dtype,
        )  # fmt: skip
        dwo = column_sums(parts[2:], dtype)[0].view(wo.shape) if dwo is None else dwo
        _average(shares.to(dtype), do.view(-1, K), drows, m.shape, back=True)
        dshares = _shares_grad(do.view(-1, K), rows, m.shape, H)
        dm, norm_sums = norm_rows_grad(project(drows, packed.t()), flat, stats, gamma, beta, None)
        (of_norm,), dpacked = column_sums([norm_sums], gamma.dtype), weight_grad(drows, normed)
        return [dm.view(m.shape), dshares, *of_norm.chunk(2), *dpacked.chunk(2), dwo]


def block_of(H: int, K: int, name: str, dtype: torch.dtype) -> tuple[Tile, dict[str, int]]:
    """The tile of a kernel, and its compile-time arguments."""
    block, D = tile(name, K, dtype), K // H
    return block, {
        "H": H, "D": D, "BLOCK_I": block.rows, "BLOCK_J": block.columns,
        "BLOCK_S": max(1, COLUMNS[name] // padded(D)), "BLOCK_D": padded(D),
        "num_warps": block.warps, "num_stages": block.stages,
    }  # fmt: skip


def _average(
    shares: Tensor, x: Tensor, out: Tensor, shape: torch.Size, *, back: bool
) -> None:  # fmt: skip
    """Fills the first K columns of rows `out` from those of rows x; `back`: the adjoint."""
    (B, S, N, _), H = shape, shares.shape[1]
    K = min(x.shape[1], out.shape[1])
    block, sizes = block_of(H, K, "average", x.dtype)
    groups = triton.cdiv(S, sizes["BLOCK_S"])
    launch(
        average_kernel, (B * groups * H * triton.cdiv(N, block.rows),),
        (shares, x, out, S, N, x.stride(0), out.stride(0)),
        {**sizes, "BACK": back, "PRECISION": precision(x.dtype)},
    )  # fmt: skip


def _shares_grad(do: Tensor, rows: Tensor, shape: torch.Size, H: int) -> Tensor:
    """The gradient of the shares `[B, H, N, N]` from that of the average and the values."""
    B, S, N, _ = shape
    block, sizes = block_of(H, do.shape[1], "shares_grad", do.dtype)
    tiles = triton.cdiv(N, block.rows) * triton.cdiv(N, block.columns)
    target_splits = max(1, block.programs * sm_count(do) // (B * H * tiles))
    seqs_each = triton.cdiv(triton.cdiv(S, target_splits), sizes["BLOCK_S"]) * sizes["BLOCK_S"]
    splits = triton.cdiv(S, seqs_each)
    partial = torch.empty((splits, B * H * N * N), dtype=torch.float32, device=do.device)
    launch(
        shares_grad_kernel, (B * splits * H * tiles,),
        (do, rows, partial, S, N, do.stride(0), rows.stride(0), seqs_each, splits),
        {**sizes, "PRECISION": precision(do.dtype)},
    )  # fmt: skip
    return (partial[0] if splits == 1 else partial.sum(0)).view(B, H, N, N)


def weighted_average_fits(m: Tensor, shares: Tensor, weights: AverageWeights) -> bool:
    """True if the fused op takes this input: heads and channels powers of two, up to 512."""
    (K, C), H = weights.v.shape, shares.shape[1]
    powers = all(n & (n - 1) == 0 and 8 <= n <= 512 for n in (C, K, K // H))
    reads = usable(m, shares) and weights.readable(m)
    return m.dim() == 4 and powers and K // H <= 64 and reads


@falls_back_to(reference.weighted_average)
def weighted_average(
    m: Tensor, shares: Tensor, weights: AverageWeights, *, eps: float
) -> FusedResult:
    """Each row's values averaged over its positions, gated and projected."""
    B, _, N, C = m.shape
    check_shape("weighted_average", "shares", shares, B, shares.shape[1], N, N)
    check_shape("weighted_average", "weights.v", weights.v, weights.v.shape[0], C)
    if not (weighted_average_fits(m, shares, weights) and launchable(m)):
        return None
    options = eps, compute_dtype(m)
    return _WeightedAverage.apply(options, m.contiguous(), shares.contiguous(), *weights.tensors())
