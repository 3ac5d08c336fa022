"""Every private name of PyTorch and Triton that the kernels use, and nowhere else.

Each is here because no public one does the same at its cost. They were read and run on the
versions in `VERSIONS`; on another one a test says which name to look at first.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["VERSIONS", "function_apply", "functorch_active"]

VERSIONS = {"torch": ("2.8", "2.13"), "triton": ("3.4", "3.7")}
"""From and up to which versions these names hold."""


def function_apply(function: type[torch.autograd.Function]) -> Any:
    """What `function.apply` calls after a look for functorch at each argument: saves 10 us."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


functorch_active = torch._C._are_functorch_transforms_active
"""Whether a transform of `torch.func` runs; then `function.apply` itself must be called."""
