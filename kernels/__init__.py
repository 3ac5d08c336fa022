"""Fused Triton kernels, each beside its plain PyTorch reference.

Nothing here needs a GPU or Triton to import; names are loaded when first used.
"""

from typing import TYPE_CHECKING

from evofeed.lazy import names_from

if TYPE_CHECKING:
    from evofeed.kernels.drop_ins.layer_norm import LayerNorm
    from evofeed.kernels.drop_ins.layerwise import FusedLAMB, FusedLARS
    from evofeed.kernels.drop_ins.lstm import LSTM
    from evofeed.kernels.drop_ins.multihead_attention import MultiheadAttention
    from evofeed.kernels.graphs.capture import record_graph
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
    from evofeed.kernels.ops.template_attention.op import (
        template_attention,
        template_attention_fits,
    )
    from evofeed.kernels.ops.transition.op import transition
    from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
    from evofeed.kernels.ops.weighted_average.op import weighted_average
    from evofeed.kernels.runtime.ahead import compiled_ahead
    from evofeed.kernels.runtime.many_tensors import AddMany
    from evofeed.kernels.runtime.one_pass import OnePass
    from evofeed.kernels.runtime.peer_memory import PeerMemory
    from evofeed.kernels.runtime.pushes import Push, sending
    from evofeed.kernels.structure.clashes.op import Spared, clashes, clashes_fit
    from evofeed.kernels.structure.exact_linear.op import (
        exact_bmm,
        exact_bmm_fits,
        exact_linear,
    )
    from evofeed.kernels.structure.frame_error.op import frame_error, frame_error_fits
    from evofeed.kernels.structure.frame_update.op import frame_update, frame_update_fits
    from evofeed.kernels.structure.point_sides.op import (
        PointSizes,
        point_ends,
        point_ends_fit,
        point_sides,
        point_sides_fit,
    )
    from evofeed.kernels.structure.renaming.op import renaming_errors, renaming_errors_fit
    from evofeed.kernels.swap.pair_ops import drop_mask
    from evofeed.kernels.swap.shards import (
        attention_of,
        global_attention_of,
        outer_product_mean_of,
        pair_bias_of,
        transition_of,
        triangle_attention_of,
        triangle_multiplication_of,
        triangle_projections_of,
    )
    from evofeed.kernels.swap.swap import SwapReport, to_fused, to_torch

__all__ = [
    "AddMany",
    "FusedAdamEMA",
    "FusedLAMB",
    "FusedLARS",
    "LSTM",
    "LayerNorm",
    "MultiheadAttention",
    "OnePass",
    "PeerMemory",
    "PointSizes",
    "Spared",
    "Push",
    "SwapReport",
    "adaptive_norm",
    "attention_of",
    "biased_attention",
    "clashes",
    "clashes_fit",
    "compiled_ahead",
    "conditioned_attention",
    "conditioned_transition",
    "drop_mask",
    "exact_bmm",
    "exact_bmm_fits",
    "exact_linear",
    "frame_error",
    "frame_error_fits",
    "frame_update",
    "frame_update_fits",
    "gated_attention",
    "global_attention_of",
    "layer_norm",
    "masked_softmax",
    "outer_product_mean",
    "outer_product_mean_of",
    "pair_bias",
    "pair_bias_of",
    "point_ends",
    "point_ends_fit",
    "point_sides",
    "point_sides_fit",
    "record_graph",
    "renaming_errors",
    "renaming_errors_fit",
    "sending",
    "swiglu_transition",
    "template_attention",
    "template_attention_fits",
    "to_fused",
    "to_torch",
    "transition",
    "transition_of",
    "triangle_attention_of",
    "triangle_multiplication",
    "triangle_multiplication_of",
    "triangle_projections_of",
    "weighted_average",
]

__getattr__ = names_from(__name__)
