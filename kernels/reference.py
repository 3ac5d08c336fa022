"""Every operator in plain PyTorch, the reference for the kernels' tests.

Each function takes the arguments of the fused operator of the same name and runs in
the dtype it is given, float64 included.
"""

from evofeed.kernels.ops.adaptive_norm.reference import adaptive_norm
from evofeed.kernels.ops.attention.reference import biased_attention
from evofeed.kernels.ops.conditioned_attention.reference import conditioned_attention
from evofeed.kernels.ops.conditioned_transition.reference import conditioned_transition
from evofeed.kernels.ops.gated_attention.reference import gated_attention
from evofeed.kernels.ops.global_attention.reference import global_column_attention
from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.ops.outer_product_mean.reference import outer_product_mean
from evofeed.kernels.ops.pair_bias.reference import pair_bias
from evofeed.kernels.ops.softmax.reference import masked_softmax
from evofeed.kernels.ops.swiglu.reference import swiglu_transition
from evofeed.kernels.ops.transition.reference import transition
from evofeed.kernels.ops.triangle_multiplication.reference import triangle_multiplication
from evofeed.kernels.ops.weighted_average.reference import weighted_average

__all__ = [
    "adaptive_norm",
    "biased_attention",
    "conditioned_attention",
    "conditioned_transition",
    "gated_attention",
    "global_column_attention",
    "layer_norm",
    "masked_softmax",
    "outer_product_mean",
    "pair_bias",
    "swiglu_transition",
    "transition",
    "triangle_multiplication",
    "weighted_average",
]
