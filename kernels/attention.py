"""Attention with pair bias and mask: launch of the kernels, autograd, the public function.

Letters as in `biased_attention`: B batch, R rows, N positions (Q queries, K keys),
H heads, D head width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.backend import sm_count, triton, usable
from evofeed.kernels.biased_attention import (
    backward_dkv_kernel,
    backward_dq_kernel,
    backward_owned_kernel,
    delta_kernel,
    forward_kernel,
)
from evofeed.kernels.choices import AttentionTiles, Tile, attention_tiles

__all__ = ["biased_attention", "run_backward", "run_forward"]

MAX_HEAD_WIDTH = 64


def run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
    out: Tensor,
    tiles: AttentionTiles | None = None,
) -> Tensor:
    """Writes the attention of `q, k, v` into `out` and returns the log-sum-exp.

    Args:
        q, k, v: `[B, R, N, H, D]` views with equal strides, last axis contiguous.
        bias: `[B, H, Q, K]`, last axis contiguous, or None.
        mask: `[B, R, K]`, 1 where a key may be attended to, or None.
        scale: factor of the dot products.
        out: `[B, R, Q, H, D]` view to fill.
        tiles: tile sizes, else the saved choice for this shape.

    Returns:
        `[B * R, H, Q]` float32, base 2; 2**100 marks rows that have no valid key.
    """
    B, R, NQ, H, D = q.shape
    NK = k.shape[2]
    tiles = tiles or attention_tiles(NK, D, q.dtype, bias is not None)
    block_q, block_k, warps, stages = tiles.forward
    lse = torch.empty((B * R, H, NQ), dtype=torch.float32, device=q.device)
    forward_kernel[(B * R, triton.cdiv(NQ, block_q), H)](
        q, k, v, bias, mask, out, lse,
        *q.stride()[:4], *out.stride()[:4], *_bias_strides(bias), *_mask_strides(mask),
        R, H, NQ, NK, scale,
        **_constants(q, bias, mask), PAD=NK % block_k != 0,
        BLOCK_Q=block_q, BLOCK_K=block_k, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return lse


def run_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    lse: Tensor,
    delta: Tensor,
    scale: float,
    grads: tuple[Tensor, Tensor, Tensor],
    tiles: AttentionTiles | None = None,
) -> Tensor | None:
    """Writes dq, dk, dv into `grads` and returns the bias gradient in float32 (or None).

    Args:
        do: gradient of the output, `[B, R, Q, H, D]` view.
        q, k, v, bias, mask, scale: as in the forward pass.
        lse: what the forward pass returned.
        delta: sum of o * do over the head width, `[B * R, H, Q]` float32.
        grads: three `[B, R, N, H, D]` views with equal strides, to fill.
        tiles: tile sizes, else the saved choice for this shape.
    """
    tiles = tiles or attention_tiles(k.shape[2], q.shape[-1], q.dtype, bias is not None)
    given = _Given(do, q, k, v, bias, mask, lse, delta, scale, grads)
    launch_dq(given, tiles.dq)
    if bias is None:
        launch_dkv(given, tiles.dkv)
        return None
    if tiles.owned:
        return launch_owned(given, tiles.dkv, tiles.waves, tiles.reload_bias, with_dkv=True)
    launch_dkv(given, tiles.dkv)
    return launch_owned(given, tiles.db, tiles.waves, tiles.reload_bias, with_dkv=False)


class _Given(NamedTuple):
    """What all kernels of one backward pass read and write."""

    do: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    mask: Tensor | None
    lse: Tensor
    delta: Tensor
    scale: float
    grads: tuple[Tensor, Tensor, Tensor]

    def tensors(self) -> tuple[Tensor | None, ...]:
        """The inputs, in the order of the kernels' arguments."""
        return self.q, self.k, self.v, self.bias, self.mask, self.do, self.lse, self.delta

    def scalars(self) -> tuple[float, ...]:
        """Strides and sizes, in the order of the kernels' arguments."""
        NK = self.k.shape[2]
        return (
            *self.q.stride()[:4], *self.grads[0].stride()[:4], *self.do.stride()[:4],
            *_bias_strides(self.bias), *_mask_strides(self.mask),
            self.q.shape[1], self.q.shape[3], self.q.shape[2], NK, math.log2(NK), self.scale,
        )  # fmt: skip

    def options(self, tile: Tile) -> dict[str, Any]:
        """Compile-time arguments for one tile."""
        block_q, block_k, warps, stages = tile
        return {
            **_constants(self.q, self.bias, self.mask), "PAD": self.k.shape[2] % block_k != 0,
            "BLOCK_Q": block_q, "BLOCK_K": block_k, "num_warps": warps, "num_stages": stages,
        }  # fmt: skip


def launch_dq(given: _Given, tile: Tile) -> None:
    """Writes dq."""
    B, R, NQ, H, _ = given.q.shape
    backward_dq_kernel[(B * R, triton.cdiv(NQ, tile.rows), H)](
        *given.tensors(), given.grads[0], *given.scalars(), **given.options(tile)
    )


def launch_dkv(given: _Given, tile: Tile) -> None:
    """Writes dk and dv."""
    B, R, _, H, _ = given.q.shape
    backward_dkv_kernel[(B * R, triton.cdiv(given.k.shape[2], tile.columns), H)](
        *given.tensors(), *given.grads[1:], *given.scalars(), **given.options(tile)
    )


def launch_owned(
    given: _Given, tile: Tile, waves: int, reload_bias: bool, *, with_dkv: bool
) -> Tensor:
    """Writes dk and dv if `with_dkv`, and returns the bias gradient `[B, H, Q, K]`, float32."""
    B, R, NQ, H, D = given.q.shape
    NK = given.k.shape[2]
    key_tiles = triton.cdiv(NK, tile.columns)
    rows_each = _rows_each(R, B * H * key_tiles, waves * sm_count(given.q))
    splits = triton.cdiv(R, rows_each)
    several = with_dkv and tile.rows < NQ
    work = given.q.new_empty((2, B * R, H, NK, D) if several else (2, 0), dtype=torch.float32)
    partial = given.q.new_empty((B, splits, H, NQ, NK), dtype=torch.float32)
    backward_owned_kernel[(key_tiles, H, B * splits)](
        *given.tensors(), *given.grads[1:], work[0], work[1], partial, *given.scalars(), rows_each,
        SEVERAL=several, RELOAD_BIAS=reload_bias, WITH_DKV=with_dkv, **given.options(tile),
    )  # fmt: skip
    return partial[:, 0] if splits == 1 else partial.sum(1)


def output_delta(o: Tensor, do: Tensor) -> Tensor:
    """Sum of o * do over the head width, `[B * R, H, Q]` float32, for `[B, R, Q, H, D]` views."""
    B, R, NQ, H, D = o.shape
    delta = torch.empty((B * R, H, NQ), dtype=torch.float32, device=o.device)
    delta_kernel[(B * R, triton.cdiv(NQ, 128), H)](
        o, do, delta, *o.stride()[:4], R, H, NQ, D=D, BLOCK_D=_block_d(D), BLOCK_Q=128
    )
    return delta


def _rows_each(rows: int, programs: int, wanted: int) -> int:
    """Rows one program walks over, so that about `wanted` programs run in all."""
    splits = max(1, min(rows, wanted // programs))
    return -(-rows // splits)


def _block_d(D: int) -> int:
    return max(16, triton.next_power_of_2(D))


def _constants(q: Tensor, bias: Tensor | None, mask: Tensor | None) -> dict[str, Any]:
    return {
        "D": q.shape[-1],
        "BLOCK_D": _block_d(q.shape[-1]),
        "HAS_BIAS": bias is not None,
        "HAS_MASK": mask is not None,
        "PRECISION": dot_precision(q.dtype),
    }


def dot_precision(dtype: torch.dtype) -> str:
    """Precision of a float32 product: TF32 only where PyTorch was told to use it."""
    tf32 = dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if tf32 else "ieee"


def _bias_strides(bias: Tensor | None) -> tuple[int, int, int]:
    return (0, 0, 0) if bias is None else (bias.stride(0), bias.stride(1), bias.stride(2))


def _mask_strides(mask: Tensor | None) -> tuple[int, int, int]:
    return (0, 0, 0) if mask is None else (mask.stride(0), mask.stride(1), mask.stride(2))


class _BiasedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None,
        scale: float,
    ) -> Tensor:  # fmt: skip
        if not q.stride() == k.stride() == v.stride() or q.stride(-1) != 1:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        if bias is not None and bias.stride(-1) != 1:
            bias = bias.contiguous()
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = run_forward(q, k, v, bias, mask, scale, out)
        ctx.save_for_backward(q, k, v, bias, mask, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, mask, out, lse = ctx.saved_tensors
        do = do.contiguous()
        # One buffer, so that the three gradients have equal strides.
        if q.shape == k.shape:
            dq, dk, dv = torch.empty((3, *q.shape), dtype=q.dtype, device=q.device)
        else:
            raise NotImplementedError("queries and keys of different number")
        db = run_backward(
            do, q, k, v, bias, mask, lse, output_delta(out, do), ctx.scale, (dq, dk, dv)
        )
        return dq, dk, dv, None if db is None else db.to(bias.dtype), None, None


def biased_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale * q k^T + bias, masked) v over the positions of each row.

    Args:
        q, k, v: `[B, R, N, H, D]`, float32, bfloat16 or float16; D up to 64.
        bias: `[B, H, N, N]`, shared by the R rows, or None.
        mask: `[B, R, N]`, 1 where a key may be attended to, else 0, or None. A row
            without a valid key attends uniformly to all N, as in AF2.
        scale: factor of the dot products, 1/sqrt(D) if None.

    Returns:
        `[B, R, N, H, D]` in q's dtype; gradients reach q, k, v and bias.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    fits = q.shape[-1] <= MAX_HEAD_WIDTH and q.shape == k.shape and q.dtype is not torch.float64
    if not fits or not usable(q, k, v, bias, mask):
        return reference.biased_attention(q, k, v, bias, mask, scale)
    return _BiasedAttention.apply(q, k, v, bias, mask, scale)  # type: ignore[no-any-return]
