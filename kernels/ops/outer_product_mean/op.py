"""Outer product mean as one op: norm, projections, outer GEMM, projection, mean, residual.

The outer product of all pairs (134 MB at 256 residues) is written once by a GEMM and
read in place; for few sequences the backward pass recomputes it.

Letters: B batch, S sequences, R residues, M = B * S * R, C channels of the MSA,
E channels of a projection, N channels of the pairs.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from evofeed.kernels.ops.layer_norm.op import norm_rows_grad
from evofeed.kernels.ops.outer_product_mean import launch as kernels
from evofeed.kernels.ops.outer_product_mean import reference
from evofeed.kernels.ops.outer_product_mean.reference import OuterWeights
from evofeed.kernels.runtime.backend import compute_dtype, launchable
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.one_pass import computed_once
from evofeed.kernels.runtime.private_apis import scheduled_ahead
from evofeed.kernels.runtime.projection import norm_rows, pack, project, weight_grad
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors

KEPT_FROM = 1024
"""Sequences from which the outer product is saved: with fewer it is recomputed, which takes 55 us
instead of 134 MB at 256 residues."""


class Others(Protocol):
    """The exchange of columns of an MSA between GPUs; `reduce` is for gradients."""

    mask: Tensor
    """The mask of all columns, `[B, S, R]`."""

    def gather(self, b: Tensor) -> Tensor:
        """All columns `[B, S, R, E]` from this GPU's."""

    def reduce(self, db: Tensor) -> Tensor:
        """The adjoint of `gather`."""


def _a_and_b(ab: Tensor, m: Tensor, others: Others | None) -> tuple[Tensor, Tensor]:
    """a `[B, S, L * E]` of this GPU's columns, b `[B, S, R * E]` of all."""
    B, S, L, _ = m.shape
    a, b = ab.view(2, B, S, L, -1)
    return a.flatten(2), (b if others is None else others.gather(b)).flatten(2)


class _OuterProductMean(Operator, name="outer_product_mean"):
    options = "float eps, float least, float norm_eps, ScalarType dtype"
    saved_inputs = (0, 1, 3, 4, 9)  # m, mask, norm_weight, norm_bias, out

    @staticmethod
    def forward(
        tensors: Tensors, eps: float, least: float, norm_eps: float, dtype: torch.dtype,
        others: Others | None = None,
    ) -> Results:  # fmt: skip
        """With `others` m has L of the MSA's R columns."""
        m, mask, z, *weights = tensors
        w: Any = OuterWeights(*weights)
        B, S, L, C = m.shape
        E, N = w.w1.shape[0], w.out.shape[0]
        packed_w, packed_b = pack([w.w1, w.w2], dtype), pack([w.b1, w.b2], dtype)
        rows = mask.reshape(-1)
        normed, stats, _ = norm_rows(m.view(-1, C), w.norm_weight, w.norm_bias, norm_eps, dtype)
        ab = torch.empty((2, B * S * L, E), dtype=dtype, device=m.device)
        full_mask = mask if others is None else others.mask
        R = full_mask.shape[-1]
        projected = project(normed, packed_w, packed_b).view(-1, 2, E).transpose(0, 1)
        kernels.masked(projected, rows, ab)
        del normed, projected
        norm = computed_once(
            ("outer", eps, least), (mask, full_mask),
            lambda a, b: (torch.bmm(a.float().mT, b.float()) + eps).clamp(min=least),
        )  # fmt: skip
        # [(c, e), n], contiguous along n
        out_w = pack([w.out], dtype).t().contiguous()
        out = torch.empty((B, L, R, N), dtype=m.dtype if z is None else z.dtype, device=m.device)
        a, b = _a_and_b(ab, m, others)
        outer = scheduled_ahead(torch.bmm, a.mT, b)
        kernels.project(outer, out_w, w.out_bias, norm, z, out, E)
        saved_outer = outer if S >= KEPT_FROM else None
        return [out, packed_w, out_w, ab, norm, stats, saved_outer]

    @staticmethod
    def backward(
        tensors: Tensors, eps: float, least: float, norm_eps: float, dtype: torch.dtype,
        later: Tensor | None = None, others: Others | None = None,
    ) -> Results:  # fmt: skip
        """`later` is added to the gradient of m."""
        (
            dout, m, mask, gamma, beta, weight, packed_w, out_w, ab, norm, stats, outer,
        ) = tensors  # fmt: skip
        (B, S, L, C), R = m.shape, norm.shape[-1]
        E, N = packed_w.shape[0] // 2, out_w.shape[1]
        dout = dout.contiguous()
        scaled = torch.empty((B * L * R, N), dtype=out_w.dtype, device=m.device)
        douter = torch.empty((B, L * E, R * E), dtype=out_w.dtype, device=m.device)
        out_sums = kernels.project_grad(dout, out_w, norm, scaled, douter, E)
        a, b = _a_and_b(ab, m, others)
        dab = torch.empty_like(ab)
        da, db = dab.view(2, B, S, -1)
        scheduled_ahead(torch.bmm, b, douter.mT, out=da)
        if others is None:
            scheduled_ahead(torch.bmm, a, douter, out=db)
        else:
            full_db = scheduled_ahead(torch.bmm, a, douter).view(B, S, R, E)
            db.copy_(others.reduce(full_db).flatten(2))
        del douter
        outer = scheduled_ahead(torch.bmm, a.mT, b) if outer is None else outer
        d_out_w = kernels.weight_grad_of_output(outer, scaled, (B * L, R), E, N, weight.dtype)
        del outer
        masked = torch.empty((B * S * L, 2, E), dtype=dab.dtype, device=dab.device)
        ab_sums = kernels.masked(dab, mask.reshape(-1), masked.transpose(0, 1), sums=True)
        assert ab_sums is not None
        flat, dab = m.view(-1, C), masked.flatten(1)
        normed = torch.empty_like(flat, dtype=packed_w.dtype)
        dm, norm_sums = norm_rows_grad(
            project(dab, packed_w.t()), flat, stats, gamma, beta,
            None if later is None else later.contiguous().view(-1, C), normed,
        )  # fmt: skip
        of_norm, of_ab, dbias_out = column_sums([norm_sums, ab_sums, out_sums], gamma.dtype)
        dw = weight_grad(dab, normed, gamma.dtype)
        return [
            dm.view(m.shape), None, dout, *of_norm.chunk(2), dw[:E], of_ab[:E], dw[E:], of_ab[E:],
            d_out_w.t(), dbias_out,
        ]  # fmt: skip


def outer_product_mean_fits(m: Tensor, weights: OuterWeights) -> bool:
    """True if the fused op takes this input: powers of two, 16 or 32 channels to multiply."""
    C, E, N = m.shape[-1], weights.w1.shape[0], weights.out.shape[0]
    powers = all(n & (n - 1) == 0 for n in (C, E, N))
    sizes = E in (16, 32) and 16 <= C <= 512 and 16 <= N <= 128
    return m.dim() == 4 and powers and sizes and weights.readable(m)


def outer_product_mean_with_input(
    m: Tensor,
    weights: OuterWeights,
    mask: Tensor,
    *,
    z: Tensor | None = None,
    eps: float = 1e-3,
    least: float = 0.0,
    norm_eps: float = 1e-5,
    others: Others | None = None,
) -> tuple[Tensor, Tensor]:
    """`outer_product_mean`, and m for later uses, which saves adding two gradients.

    With `others`, the exchange with other GPUs, m `[B, S, L, C]` has some of the columns and must
    fit; z is `[B, L, R, N]`.
    """
    if not launchable(m):
        numbers = {"eps": eps, "least": least, "norm_eps": norm_eps}
        return outer_product_mean(m, weights, mask, z=z, **numbers), m
    arguments = _arguments(m, weights, mask, z, (eps, least, norm_eps))
    return _OuterProductMean.apply_with_input(*arguments, others=others)


def _arguments(
    m: Tensor, weights: OuterWeights, mask: Tensor, z: Tensor | None,
    numbers: tuple[float, float, float],
) -> tuple[Any, ...]:  # fmt: skip
    z = None if z is None else z.contiguous()
    options = (*numbers, compute_dtype(m))
    # once for all blocks, which count its sequences
    mask = computed_once(("contiguous",), (mask,), Tensor.contiguous)
    return options, m.contiguous(), mask, z, *weights.tensors()


@falls_back_to(reference.outer_product_mean, like="z")
def outer_product_mean(
    m: Tensor, weights: OuterWeights, mask: Tensor, *, z: Tensor | None, eps: float, least: float,
    norm_eps: float,
) -> FusedResult:  # fmt: skip
    """Projected sum of outer products over the number of shared sequences, plus z."""
    B, S, R, C = m.shape
    check_shape("outer_product_mean", "weights.w1", weights.w1, weights.w1.shape[0], C)
    check_shape("outer_product_mean", "mask", mask, B, S, R)
    check_shape("outer_product_mean", "z", z, B, R, R, weights.out.shape[0])
    if not (outer_product_mean_fits(m, weights) and launchable(m, weights.w1, mask, z)):
        return None
    return _OuterProductMean.apply(*_arguments(m, weights, mask, z, (eps, least, norm_eps)))
