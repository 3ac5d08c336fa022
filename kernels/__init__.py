"""Fused Triton kernels, each beside its plain PyTorch reference.

Nothing here needs a GPU or Triton to import; names are loaded when first used.
"""

from evofeed.lazy import names_from

__all__ = [
    "FusedAdamEMA",
    "FusedLAMB",
    "FusedLARS",
    "LSTM",
    "LayerNorm",
    "MultiheadAttention",
    "SwapReport",
    "biased_attention",
    "gated_attention",
    "layer_norm",
    "masked_softmax",
    "outer_product_mean",
    "pair_bias",
    "to_fused",
    "to_torch",
    "transition",
    "triangle_multiplication",
]

_HOMES = {
    "FusedAdamEMA": "optimizer",
    "FusedLAMB": "layerwise",
    "FusedLARS": "layerwise",
    "LSTM": "lstm",
    "LayerNorm": "norm_module",
    "MultiheadAttention": "multihead_attention",
    "SwapReport": "swap",
    "biased_attention": "attention",
    "gated_attention": "gated",
    "layer_norm": "norm",
    "masked_softmax": "softmax",
    "outer_product_mean": "outer",
    "pair_bias": "pair",
    "to_fused": "swap",
    "to_torch": "swap",
    "transition": "feed_forward",
    "triangle_multiplication": "triangle",
}

__getattr__ = names_from(__name__, _HOMES)
