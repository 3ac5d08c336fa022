"""Fused Triton kernels, each beside its plain PyTorch reference.

Nothing here needs a GPU or Triton to import; names are loaded when first used.
"""

from typing import Any

__all__ = ["layer_norm", "to_fused", "to_torch"]

_HOMES = {"layer_norm": "norm", "to_fused": "swap", "to_torch": "swap"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
