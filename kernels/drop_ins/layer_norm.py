"""`nn.LayerNorm`, and every layer norm that looks like OpenFold's, in one kernel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, called, drop_in, stand_ins
from evofeed.kernels.ops.layer_norm.op import fused_layer_norm, supported


class FusedLayerNorm(Fused):
    """Forward of a swapped layer norm."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """As the original's, in one kernel; of several axes it is the original's."""
        weight, bias = self.weight, self.bias
        fits = weight is not None and x.is_floating_point() and x.numel() > 0
        if not (fits and x.shape[-1:] == weight.shape and supported(x, weight, bias)):
            return super().forward(x)  # type: ignore[misc,no-any-return]
        if x.is_cuda and torch.is_autocast_enabled("cuda") and isinstance(self, nn.LayerNorm):
            x = x.float()  # PyTorch's own gives float32 under autocast; OpenFold's does not
        return fused_layer_norm(x, weight, bias, self.eps)


@drop_in
class LayerNorm(FusedLayerNorm, nn.LayerNorm):
    """`nn.LayerNorm` with a fused forward: same arguments, parameters and results."""

    torch_class = nn.LayerNorm
    mixin = FusedLayerNorm


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these."""
    cls = type(module)
    if isinstance(module, nn.LayerNorm):
        if cls.forward is not nn.LayerNorm.forward:
            return f"{cls.__name__} overrides nn.LayerNorm.forward"
        if any(getattr(module, name) is None for name in ("weight", "bias")):
            return "has no weight or no bias"
        return FusedLayerNorm
    if cls.__name__ == "LayerNorm":  # OpenFold's and our trainer's own
        parts = [getattr(module, name, None) for name in ("weight", "bias")]
        if all(isinstance(part, Tensor) and part.ndim == 1 for part in parts):
            if not hasattr(module, "eps"):
                return "has no eps"
            return FusedLayerNorm if _is_one(module) else "computes no layer norm of the last axis"
    return None


def _is_one(module: Any) -> bool:
    """Whether its forward, run on the CPU, is one of the last axis: not of channels first, say."""
    random = torch.Generator().manual_seed(0)
    made = stand_ins(module, lambda name, shape: torch.randn(shape, generator=random))
    x = torch.randn(2, 3, *module.weight.shape, generator=random)
    with torch.no_grad():
        found, _ = called(module, made, (x,))
    if not isinstance(found, Tensor) or not {"weight", "bias"} <= made.keys():
        return False
    want = F.layer_norm(x, module.weight.shape, made["weight"], made["bias"], module.eps)
    return found.shape == want.shape and torch.allclose(found.float(), want, atol=1e-2)
