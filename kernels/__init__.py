"""Fused Triton kernels, each beside its plain PyTorch reference.

Nothing here needs a GPU or Triton to import; names are loaded when first used.
"""

from typing import Any

__all__ = [
    "FusedAdamEMA",
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
    "SwapReport": "swap",
    "biased_attention": "attention",
    "gated_attention": "gated",
    "layer_norm": "norm",
    "masked_softmax": "softmax",
    "outer_product_mean": "outer",
    "pair_bias": "gated",
    "to_fused": "swap",
    "to_torch": "swap",
    "transition": "feed_forward",
    "triangle_multiplication": "triangle",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
