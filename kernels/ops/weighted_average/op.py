"""Average of an MSA's values with weights that the pairs give, as AF3's MSA module has it.

Norm, values and gate, average, gated output as one op. Attention without queries and keys: all
rows share their weights, so the average is one matrix product a head, by cuBLAS. Only the input,
its statistics and the weights are saved: values, gate and average are made again in the
backward pass.

Letters: B batch, S sequences, N residues, C channels, H heads, D head width, K = H * D,
M = B * S * N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.gated_attention.output import gated_output, output_grads
from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.ops.weighted_average import reference
from evofeed.kernels.ops.weighted_average.triton import heads_first_kernel
from evofeed.kernels.runtime.backend import compute_dtype, triton, usable
from evofeed.kernels.runtime.checks import check_one_device, check_shape, check_type, in_type_of
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import Drop, norm_rows, pack, padded, project, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator

__all__ = ["AverageWeights", "weighted_average", "weighted_average_fits"]

SEQUENCES = 64  # that a program of `heads_first_kernel` copies


@dataclass(frozen=True, slots=True)
class AverageWeights:
    """Parameters of one average: norm, values, gate, output; no biases."""

    norm_weight: Tensor
    norm_bias: Tensor
    v: Tensor
    g: Tensor
    o: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order the operator takes them."""
        return self.norm_weight, self.norm_bias, self.v, self.g, self.o


class _WeightedAverage(Operator, name="weighted_average"):
    options = "float eps, ScalarType dtype"
    kept = (0, 1, 2, 3)  # m, shares, gamma, beta

    @staticmethod
    def forward(tensors: Sequence[Any], eps: float, dtype: torch.dtype) -> list[Tensor]:
        m, shares, gamma, beta, v, g, o = tensors
        C, K = o.shape
        packed, wo = pack([v, g], dtype), pack([o], dtype)
        normed, stats, _ = norm_rows(m.view(-1, C), gamma, beta, eps, dtype)
        rows = project(normed, packed)
        del normed
        _, averaged = _averaged(rows, shares.to(dtype), m.shape)
        zeros = wo.new_zeros(max(C, K))
        out = gated_output(
            averaged, rows[:, K:], zeros[:K], wo, zeros[:C], m, Drop(None, (1, 1)), False
        )
        return [out, packed, wo, stats]

    @staticmethod
    def forward_fake(tensors: Sequence[Any], eps: float, dtype: torch.dtype) -> list[Tensor]:
        m, _, _, _, v, _, o = tensors
        K, C = v.shape
        return [
            m.new_empty(m.shape), v.new_empty((2 * K, C), dtype=dtype),
            o.new_empty((C, K), dtype=dtype),
            m.new_empty((2, m.numel() // C), dtype=torch.float32),
        ]  # fmt: skip

    @staticmethod
    def backward(tensors: Sequence[Any], eps: float, dtype: torch.dtype) -> list[Tensor]:
        dout, m, shares, gamma, beta, packed, wo, stats = tensors
        C, K = wo.shape
        flat, dout = m.view(-1, C), dout.contiguous().view(-1, C)
        normed, _, _ = norm_rows(flat, gamma, beta, eps, dtype)
        rows, weights = project(normed, packed), shares.to(dtype)
        values, averaged = _averaged(rows, weights, m.shape)
        drows, do = torch.empty_like(rows), torch.empty_like(averaged)
        dwo, _, _ = output_grads(
            dout.to(dtype), wo, averaged, rows[:, K:], wo.new_zeros(K), do, drows[:, K:],
            Drop(None, (1, 1)), columns=False, sums=False,
        )  # fmt: skip
        by_head = _heads_first(do.view(-1, K), m.shape, shares.shape[1])
        dshares = torch.bmm(by_head, values.mT)
        _rows_of(torch.bmm(weights.flatten(0, 1).mT, by_head), drows, m.shape, shares.shape[1])
        dm, norm_sums = norm_rows_grad(torch.mm(drows, packed), flat, stats, gamma, beta, None)
        return [
            dm.view(m.shape), dshares.view(shares.shape), weight_grad(drows, normed),
            column_sums([norm_sums], gamma.dtype)[0], dwo,
        ]  # fmt: skip

    @staticmethod
    def backward_fake(tensors: Sequence[Any], eps: float, dtype: torch.dtype) -> list[Tensor]:
        _, m, shares, gamma, _, packed, wo, _ = tensors
        return [
            m.new_empty(m.shape), shares.new_empty(shares.shape, dtype=dtype),
            packed.new_empty(packed.shape), gamma.new_empty(2 * wo.shape[0]),
            wo.new_empty(wo.shape),
        ]  # fmt: skip

    @staticmethod
    def gradients(
        grad: Tensor, found: Sequence[Any], kinds: Sequence[torch.dtype | None], *options: Any
    ) -> list[Tensor]:
        dm, dshares, dpacked, of_norm, dwo = found
        return [dm, dshares, *of_norm.chunk(2), *dpacked.chunk(2), dwo]


def _averaged(rows: Tensor, shares: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Values `[B * H, N, S * D]` from the first K columns of rows, and their average.

    The average is `[B, S, N, H, D]`.
    """
    B, S, N, _ = shape
    H = shares.shape[1]
    K = rows.shape[1] // 2
    values = _heads_first(rows[:, :K], shape, H)
    averaged = torch.empty((B, S, N, H, K // H), dtype=rows.dtype, device=rows.device)
    _rows_of(torch.bmm(shares.flatten(0, 1), values), averaged.view(-1, K), shape, H)
    return values, averaged


def _heads_first(rows: Tensor, shape: torch.Size, H: int) -> Tensor:
    """`[B * H, N, S * D]` from rows `[M, H * D]`."""
    B, S, N, _ = shape
    D = rows.shape[1] // H
    heads = torch.empty((B * H, N, S * D), dtype=rows.dtype, device=rows.device)
    _copy(rows, heads, shape, H, D, back=False)
    return heads


def _rows_of(heads: Tensor, rows: Tensor, shape: torch.Size, H: int) -> None:
    """Fills the first columns of rows from `[B * H, N, S * D]`."""
    _copy(rows, heads, shape, H, heads.shape[2] // shape[1], back=True)


def _copy(rows: Tensor, heads: Tensor, shape: torch.Size, H: int, D: int, *, back: bool) -> None:
    B, S, N, _ = shape
    launch(
        heads_first_kernel, (B * N * H, triton.cdiv(S, SEQUENCES)),
        (rows, heads, S, N, H, D, rows.stride(0)),
        {"BLOCK_S": SEQUENCES, "BLOCK_D": padded(D), "BACK": back, "num_warps": 4},
    )  # fmt: skip


def weighted_average_fits(m: Tensor, shares: Tensor, weights: AverageWeights) -> bool:
    """Whether the fused op takes this input: heads and channels powers of two, up to 512."""
    (K, C), H = weights.v.shape, shares.shape[1]
    powers = all(n & (n - 1) == 0 and 8 <= n <= 512 for n in (C, K, K // H))
    return (
        m.dim() == 4
        and powers
        and K // H <= 64
        and m.dtype is not torch.float64
        and usable(m, shares, weights.v)
    )


def weighted_average(
    m: Tensor, shares: Tensor, weights: AverageWeights, *, eps: float = 1e-5
) -> Tensor:
    """o(sigmoid(g(mn)) * sum over j of shares[i, j] v(mn)[j]), where mn = layer_norm(m).

    Args:
        m: `[B, S, N, C]`.
        shares: `[B, H, N, N]`, what each position i takes of each j: a softmax of the pairs'.
        weights: the parameters.
        eps: of the norm.

    Returns:
        The update of m, in its type; gradients reach m and shares.
    """
    B, _, N, C = m.shape
    check_type("weighted_average", m)
    check_shape("weighted_average", "shares", shares, B, shares.shape[1], N, N)
    check_shape("weighted_average", "weights.v", weights.v, weights.v.shape[0], C)
    if not weighted_average_fits(m, shares, weights):
        check_one_device("weighted_average", m, shares, weights.v)
        return reference.weighted_average(m, shares, in_type_of(m, weights), eps=eps).to(m.dtype)
    dtype = compute_dtype(m)
    with torch.autocast(m.device.type, enabled=False):
        return _WeightedAverage.apply(
            (eps, dtype), m.contiguous(), shares.contiguous(), *weights.tensors()
        )
