"""Attention with pair bias and mask: launch of the kernels, autograd, the public function.

Letters as in `triton.py`: B batch, R rows, N positions (Q queries, K keys),
H heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.attention import reference
from evofeed.kernels.ops.attention.hopper import launch as hopper_attention
from evofeed.kernels.ops.attention.inputs import (
    BackwardInputs,
    MaskTerms,
    bias_strides,
    is_wide,
    options,
    term_stride,
)
from evofeed.kernels.ops.attention.triton import (
    LOG2E,
    backward_db_kernel,
    backward_dkv_kernel,
    backward_dq_kernel,
    delta_kernel,
    forward_kernel,
    mask_kernel,
)
from evofeed.kernels.runtime.backend import launchable, sm_count, triton
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.one_pass import computed_once
from evofeed.kernels.runtime.projection import padded
from evofeed.kernels.runtime.tiles import AttentionTiles, Tile, attention_tiles
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors

MAX_HEAD_WIDTH = 64


def prepare_mask(mask: Tensor, scale: float, dtype: torch.dtype) -> MaskTerms:
    """The terms and factors of a `[B, R, N]` mask (any strides), computed once a pass."""
    return computed_once(
        ("attention", scale, dtype), (mask,), lambda mask: _mask_terms(mask, scale, dtype)
    )


def _mask_terms(mask: Tensor, scale: float, dtype: torch.dtype) -> MaskTerms:
    B, R, N = mask.shape
    width = triton.cdiv(N, 64) * 64
    term = torch.empty((B * R, width), dtype=dtype, device=mask.device)
    factor = torch.empty(B * R, dtype=torch.float32, device=mask.device)
    masked = -6e4 if dtype is torch.float16 else -1e9
    launch(
        mask_kernel, (B * R,),
        (mask, term, factor, *mask.stride(), width, R, N, masked, scale * LOG2E),
        {"BLOCK_N": min(1024, padded(N)), "num_warps": 4},
    )  # fmt: skip
    return MaskTerms(term, factor)


def run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: MaskTerms | None,
    scale: float,
    out: Tensor,
    tiles: AttentionTiles | None = None,
) -> Tensor:
    """Writes the attention of `q, k, v` into `out` and returns the log-sum-exp.

    Args:
        q, k, v: `[B, R, N, H, D]` views with equal strides, last axis contiguous.
        bias: `[B, H, Q, K]` divided by `scale`, in q's dtype, last axis contiguous, or None.
        mask: the result of `prepare_mask`, or None.
        scale: factor of the dot products.
        out: `[B, R, Q, H, D]` view to fill.
        tiles: tile sizes; None for the saved choice for this shape.

    Returns:
        `[B * R, H, Q]` float32, base 2.
    """
    if tiles is None and hopper_attention.forward_fits(q, k, out):
        return hopper_attention.run_forward(q, k, v, bias, mask, scale, out)
    B, R, NQ, H, _ = q.shape
    NK = k.shape[2]
    tiles = tiles or attention_tiles(NK, q.dtype)
    lse = torch.empty((B * R, H, NQ), dtype=torch.float32, device=q.device)
    term, factor = mask or (None, None)
    launch(
        forward_kernel, (B * R, triton.cdiv(NQ, tiles.forward.rows), H),
        (q, k, v, bias, term, factor, out, lse, *q.stride()[:4], *out.stride()[:4],
         *bias_strides(bias), term_stride(mask), R, H, NQ, NK, scale * LOG2E),
        options(tiles.forward, q, k, bias, mask, out),
    )  # fmt: skip
    return lse


def run_backward(inputs: BackwardInputs, tiles: AttentionTiles | None = None) -> Tensor | None:
    """Writes dq, dk, dv and returns the gradient of bias * scale in float32 (None without)."""
    by_hand = tiles is None
    if by_hand and hopper_attention.backward_fits(inputs):
        return hopper_attention.run_backward(inputs)
    k, bias = inputs.k, inputs.bias
    tiles = tiles or attention_tiles(k.shape[2], k.dtype)
    launch_grads(inputs, tiles.dq, tiles.dkv)
    if bias is None:
        return None
    if by_hand and hopper_attention.bias_gradient_fits(inputs):
        return hopper_attention.run_bias_gradient(inputs)
    return launch_db(inputs, tiles.db, tiles.waves)


def launch_grads(inputs: BackwardInputs, dq: Tile, dkv: Tile) -> None:
    """Writes dq, dk and dv."""
    B, R, NQ, H, _ = inputs.q.shape
    launch(
        backward_dq_kernel, (B * R, triton.cdiv(NQ, dq.rows), H),
        (*inputs.tensors(), inputs.grads[0], *inputs.scalars()), inputs.options(dq),
    )  # fmt: skip
    launch(
        backward_dkv_kernel, (B * R, triton.cdiv(inputs.k.shape[2], dkv.columns), H),
        (*inputs.tensors(), *inputs.grads[1:], *inputs.scalars()), inputs.options(dkv),
    )  # fmt: skip


def launch_db(inputs: BackwardInputs, tile: Tile, waves: int) -> Tensor:
    """Returns the gradient of the bias (before its division by the scale), `[B, H, Q, K]`."""
    B, R, NQ, H, _ = inputs.q.shape
    NK = inputs.k.shape[2]
    tiles = triton.cdiv(NQ, tile.rows) * triton.cdiv(NK, tile.columns)
    target_splits = waves * sm_count(inputs.q) // (B * H * tiles)
    rows_each = triton.cdiv(R, max(1, min(R, target_splits)))
    splits = triton.cdiv(R, rows_each)
    partial = inputs.q.new_empty((B, splits, H, NQ, NK), dtype=torch.float32)
    launch(
        backward_db_kernel, (tiles, H, B * splits),
        (*inputs.tensors(), partial, *inputs.scalars(), rows_each), inputs.options(tile),
    )  # fmt: skip
    return partial[:, 0] if splits == 1 else partial.sum(1)


def output_delta(o: Tensor, do: Tensor) -> Tensor:
    """Sum of o * do over the head width, `[B * R, H, Q]` float32, for `[B, R, Q, H, D]` views."""
    B, R, NQ, H, D = o.shape
    delta = torch.empty((B * R, H, NQ), dtype=torch.float32, device=o.device)
    heads, width = triton.next_power_of_2(H), padded(D)
    block = max(16, 4096 // (heads * width))
    launch(
        delta_kernel, (B * R, triton.cdiv(NQ, block)),
        (o, do, delta, *o.stride()[:4], R, H, NQ),
        # Threads that share a sum add in two orders: with fused products their last bits differ.
        {"D": D, "BLOCK_D": width, "BLOCK_N": block, "HEADS": heads,
         "WIDE": is_wide(None, o, do), "enable_fp_fusion": False},
    )  # fmt: skip
    return delta


def scaled_bias(bias: Tensor | None, scale: float, dtype: torch.dtype) -> Tensor | None:
    """The bias as the kernels read it: divided by `scale`, contiguous, in `dtype`."""
    if bias is None:
        return None
    scaled = bias if abs(scale - 1) < 1e-9 else bias * (1 / scale)
    return scaled.to(dtype).contiguous()


class _BiasedAttention(Operator, name="biased_attention"):
    options = "float scale"
    saved_inputs, saves_result = (0, 1, 2), True

    @staticmethod
    def forward(tensors: Tensors, scale: float) -> Results:
        q, k, v, bias, mask = tensors
        ready = scaled_bias(bias, scale, q.dtype)
        masked = None if mask is None else prepare_mask(mask, scale, q.dtype)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = run_forward(q, k, v, ready, masked, scale, out)
        return [out, lse, ready, *(masked or (None, None))]

    @staticmethod
    def backward(tensors: Tensors, scale: float) -> Results:
        do, q, k, v, out, lse, bias, term, factor = tensors
        masked = None if term is None else MaskTerms(term, factor)
        do = do.contiguous()
        dq, dk, dv = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
        delta = output_delta(out, do)
        inputs = BackwardInputs(do, q, k, v, bias, masked, lse, delta, scale, (dq, dk, dv))
        return [dq, dk, dv, run_backward(inputs), None]


@falls_back_to(reference.biased_attention)
def biased_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float | None
) -> FusedResult:
    """softmax(scale * q k^T + bias, masked) v for `[B, R, N, H, D]`."""
    (B, R, Q, H, D), K = q.shape, k.shape[2]
    check_shape("biased_attention", "k", k, B, R, K, H, D)
    check_shape("biased_attention", "v", v, B, R, K, H, D)
    check_shape("biased_attention", "bias", bias, B, H, Q, K)
    check_shape("biased_attention", "mask", mask, B, R, K)
    scale = D**-0.5 if scale is None else scale
    fits = q.shape[-1] <= MAX_HEAD_WIDTH and q.shape == k.shape and q.dtype is not torch.float64
    if not fits or not launchable(q, k, v, bias, mask):
        return None
    if not q.stride() == k.stride() == v.stride() or q.stride(-1) != 1:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    return _BiasedAttention.apply((scale,), q, k, v, bias, mask)
