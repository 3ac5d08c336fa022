# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Attention bias made from the pairs: norm and a projection to one number a head, heads first.

Its backward pass is one kernel: the product has one short axis, so the gradients of the
projection, of the norm and of the pairs all fit one pass over the pairs.

Letters: M = B * L * L pairs, C channels, H heads, L residues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.runtime.backend import compute_dtype, sm_count, tl, triton
from evofeed.kernels.runtime.checks import check_device, check_shape, check_type
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import norm_rows, pack, padded, precision
from evofeed.kernels.runtime.projection_kernels import pair_offset
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.tiles import tile
from evofeed.kernels.runtime.torch_library import Operator

__all__ = ["heads_last", "pair_bias", "pair_bias_through"]


@triton.jit
def _heads_last_kernel(
    SOURCE, TO, M, H, length, ts_m, BLOCK_M: tl.constexpr, BLOCK_H: tl.constexpr,
    WIDTH: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    h = tl.arange(0, BLOCK_H)
    row_in, square = rows < M, length * length
    h64 = h.to(tl.int64)[None, :]
    at = (rows // square).to(tl.int64) * H * square + pair_offset(rows, length, TRANSPOSE)
    x = tl.load(SOURCE + at[:, None] + h64 * square,
                mask=row_in[:, None] & (h < H)[None, :], other=0.0)  # fmt: skip
    to = TO + rows.to(tl.int64)[:, None] * ts_m + h[None, :]
    tl.store(to, x.to(TO.dtype.element_ty), mask=row_in[:, None] & (h < WIDTH)[None, :])


def heads_last(x: Tensor, out: Tensor, transpose: bool) -> None:
    """Writes x `[B, H, L, L]` (i, j exchanged if `transpose`) as rows `[B * L * L, H]`.

    Columns of `out` beyond H become 0.
    """
    B, H, L, _ = x.shape
    M = B * L * L
    launch(
        _heads_last_kernel, (triton.cdiv(M, 256),),
        (x.contiguous(), out, M, H, L, out.stride(0)),
        {"BLOCK_M": 256, "BLOCK_H": padded(out.shape[1]), "WIDTH": out.shape[1],
         "TRANSPOSE": transpose, "num_warps": 4},
    )  # fmt: skip


@triton.jit
def pair_norm_backward_kernel(
    DBIAS, Z, GAMMA, BETA, STATS, W, RES, DZ, PARTIAL, M, C, H, length, scale, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr, HAS_RES: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """DZ from DBIAS `[B, H, L, L]`, plus RES; PARTIAL `[programs, (2 + H) C]`: gamma, beta, W."""
    c, h = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_H)
    c_in, h_in, square = c < C, h < H, length * length
    w_in = h_in[:, None] & c_in[None, :]
    w = tl.load(W + h[:, None] * C + c[None, :], mask=w_in, other=0.0)
    dgamma = tl.zeros([BLOCK_C], tl.float32)
    dbeta = tl.zeros([BLOCK_C], tl.float32)
    dw = tl.zeros([BLOCK_H, BLOCK_C], tl.float32)
    for step in tl.range(tiles_each, num_stages=STAGES):
        tile_ = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile_ * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        inside = row_in[:, None] & c_in[None, :]
        flat = rows.to(tl.int64)[:, None] * C + c[None, :]
        z = tl.load(Z + flat, mask=inside, other=0.0).to(tl.float32)
        at = (rows // square).to(tl.int64) * H * square + rows % square
        d = tl.load(DBIAS + at[:, None] + h.to(tl.int64)[None, :] * square,
                    mask=row_in[:, None] & h_in[None, :], other=0.0)  # fmt: skip
        d = (d.to(tl.float32) * scale).to(w.dtype)
        mean = tl.load(STATS + rows, mask=row_in, other=0.0)
        rstd = tl.load(STATS + M + rows, mask=row_in, other=0.0)
        xhat = tl.where(inside, (z - mean[:, None]) * rstd[:, None], 0.0)
        gamma = tl.load(GAMMA + c, mask=c_in, other=0.0).to(tl.float32)
        beta = tl.load(BETA + c, mask=c_in, other=0.0).to(tl.float32)
        normed = (xhat * gamma[None, :] + beta[None, :]).to(w.dtype)
        dw = tl.dot(tl.trans(d), normed, dw, input_precision=PRECISION)
        dy = tl.dot(d, w, input_precision=PRECISION)
        dgamma += tl.sum(dy * xhat, 0)
        dbeta += tl.sum(dy, 0)
        g = dy * gamma[None, :]
        mean_g = tl.sum(g, 1) / C
        mean_gx = tl.sum(g * xhat, 1) / C
        dz = rstd[:, None] * (g - mean_g[:, None] - xhat * mean_gx[:, None])
        if HAS_RES:
            dz += tl.load(RES + flat, mask=inside, other=0.0).to(tl.float32)
        tl.store(DZ + flat, dz.to(DZ.dtype.element_ty), mask=inside)
    to = PARTIAL + tl.program_id(0) * (2 + H) * C
    tl.store(to + c, dgamma, mask=c_in)
    tl.store(to + C + c, dbeta, mask=c_in)
    tl.store(to + (2 + h)[:, None] * C + c[None, :], dw, mask=w_in)


class _PairBias(Operator, name="pair_bias"):
    options = "float eps, float scale, ScalarType dtype"
    kept = (0, 1, 2)  # z, gamma, beta

    @staticmethod
    def forward(
        tensors: Sequence[Any], eps: float, scale: float, dtype: torch.dtype
    ) -> list[Tensor | None]:
        z, gamma, beta, weight = tensors
        packed = pack([weight], dtype)
        _, stats, bias = norm_rows(
            z.view(-1, z.shape[-1]), gamma, beta, eps, dtype, keep=False, pair_weight=packed,
            pair_length=z.shape[-2], pair_scale=scale,
        )  # fmt: skip
        return [bias, packed, stats]

    @staticmethod
    def forward_fake(
        tensors: Sequence[Any], eps: float, scale: float, dtype: torch.dtype
    ) -> list[Tensor]:
        z, _, _, weight = tensors
        (B, L, _, _), H = z.shape, weight.shape[0]
        return [
            z.new_empty((B, H, L, L), dtype=dtype), weight.new_empty(weight.shape, dtype=dtype),
            z.new_empty((2, B * L * L), dtype=torch.float32),
        ]  # fmt: skip

    @staticmethod
    def backward(
        tensors: Sequence[Any], eps: float, scale: float, dtype: torch.dtype,
        later: Tensor | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """`later` is added to the gradient of z."""
        dbias, z, gamma, beta, packed, stats = tensors
        H, C = packed.shape
        M = z.numel() // C
        block = tile("pair_bias_grad", C, packed.dtype)
        tiles = triton.cdiv(M, block.rows)
        programs = min(tiles, block.programs * sm_count(z))
        out = torch.empty_like(z)
        partial = torch.empty((programs, (2 + H) * C), dtype=torch.float32, device=z.device)
        launch(
            pair_norm_backward_kernel, (programs,),
            (dbias.contiguous(), z, gamma, beta, stats, packed,
             None if later is None else later.contiguous(), out, partial, M, C, H, z.shape[-2],
             float(scale), triton.cdiv(tiles, programs)),
            {"BLOCK_M": block.rows, "BLOCK_C": padded(C), "BLOCK_H": padded(H),
             "HAS_RES": later is not None, "PRECISION": precision(packed.dtype),
             "STAGES": block.stages, "num_warps": block.warps, "num_stages": block.stages},
        )  # fmt: skip
        return [out, *column_sums([partial], gamma.dtype)]

    @staticmethod
    def backward_fake(
        tensors: Sequence[Any], eps: float, scale: float, dtype: torch.dtype
    ) -> list[Tensor]:
        _, z, gamma, _, packed, _ = tensors
        H, C = packed.shape
        return [z.new_empty(z.shape), gamma.new_empty((2 + H) * C)]

    @staticmethod
    def gradients(
        grad: Tensor, found: Sequence[Any], kinds: Sequence[torch.dtype | None], *options: Any
    ) -> list[Tensor]:
        dz, sums = found
        C = dz.shape[-1]
        return [dz, sums[:C], sums[C : 2 * C], sums[2 * C :].view(-1, C)]


def pair_bias_through(
    z: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """As `pair_bias`, and z: used instead of z from here on, it saves adding two gradients."""
    dtype = compute_dtype(z)
    with torch.autocast(z.device.type, enabled=False):
        return _PairBias.apply_and_pass_on(
            (eps, scale, dtype), z.contiguous(), norm_weight, norm_bias, weight
        )


def pair_bias(
    z: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    scale: float = 1.0,
) -> Tensor:
    """Attention bias `[B, H, R, R]` of pairs z `[B, R, R, C]`: scale * linear(layer_norm(z)).

    Args:
        z: the pair representation.
        norm_weight, norm_bias: `[C]`.
        weight: `[H, C]`.
        eps: of the norm.
        scale: factor of the result.
    """
    check_type("pair_bias", z)
    check_shape("pair_bias", "weight", weight, weight.shape[0], z.shape[-1])
    check_device("pair_bias", z, norm_weight, weight)
    dtype = compute_dtype(z)
    with torch.autocast(z.device.type, enabled=False):
        return _PairBias.apply((eps, scale, dtype), z.contiguous(), norm_weight, norm_bias, weight)
