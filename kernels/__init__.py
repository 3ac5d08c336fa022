"""Fused Triton kernels, each with a plain PyTorch reference.

Importing this package needs no GPU or Triton; names are loaded on first use.
"""

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.kernels.drop_ins.layer_norm import LayerNorm
    from evofeed.kernels.drop_ins.layerwise import FusedLAMB, FusedLARS
    from evofeed.kernels.drop_ins.lstm import LSTM
    from evofeed.kernels.drop_ins.multihead_attention import MultiheadAttention
    from evofeed.kernels.graphs.recording import record_graph
    from evofeed.kernels.kernel_names import kernel_groups
    from evofeed.kernels.ops.adaptive_norm.op import adaptive_norm
    from evofeed.kernels.ops.attention.op import biased_attention
    from evofeed.kernels.ops.conditioned_attention.op import conditioned_attention
    from evofeed.kernels.ops.conditioned_transition.op import conditioned_transition
    from evofeed.kernels.ops.gated_attention.op import gated_attention
    from evofeed.kernels.ops.layer_norm.op import layer_norm
    from evofeed.kernels.ops.optimizer.op import FusedAdamEMA
    from evofeed.kernels.ops.outer_product_mean.op import outer_product_mean
    from evofeed.kernels.ops.pair_bias.op import pair_bias
    from evofeed.kernels.ops.softmax.op import masked_softmax
    from evofeed.kernels.ops.swiglu.op import swiglu_transition
    from evofeed.kernels.ops.transition.op import transition
    from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
    from evofeed.kernels.ops.weighted_average.op import weighted_average
    from evofeed.kernels.runtime.ahead import compiled_ahead
    from evofeed.kernels.runtime.one_pass import OnePass
    from evofeed.kernels.runtime.peer_memory import PeerMemory
    from evofeed.kernels.swap.swap import SwapReport, to_fused, to_torch

__all__ = [
    "FusedAdamEMA",
    "FusedLAMB",
    "FusedLARS",
    "LSTM",
    "LayerNorm",
    "MultiheadAttention",
    "OnePass",
    "PeerMemory",
    "SwapReport",
    "adaptive_norm",
    "biased_attention",
    "compiled_ahead",
    "conditioned_attention",
    "conditioned_transition",
    "gated_attention",
    "kernel_groups",
    "layer_norm",
    "masked_softmax",
    "outer_product_mean",
    "pair_bias",
    "record_graph",
    "swiglu_transition",
    "to_fused",
    "to_torch",
    "transition",
    "triangle_multiplication",
    "weighted_average",
]

__getattr__ = names_from(__name__)
