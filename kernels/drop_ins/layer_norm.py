"""`nn.LayerNorm`, and layer norms with the names of OpenFold's, in one kernel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, drop_in, plain_forward, stub_weights
from evofeed.kernels.ops.layer_norm.op import fused_layer_norm, supported


class FusedLayerNorm(Fused):
    """Forward of a swapped layer norm."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """Normalises the last axis in one kernel; several axes run the original forward."""
        weight, bias = self.weight, self.bias
        fits = weight is not None and x.is_floating_point() and x.numel() > 0
        if not (fits and x.shape[-1:] == weight.shape and supported(x, weight, bias)):
            return super().forward(x)  # type: ignore[misc,no-any-return]
        if x.is_cuda and torch.is_autocast_enabled("cuda") and isinstance(self, nn.LayerNorm):
            x = x.float()  # PyTorch's returns float32 under autocast; OpenFold's does not
        return fused_layer_norm(x, weight, bias, self.eps)


@drop_in
class LayerNorm(FusedLayerNorm, nn.LayerNorm):
    """`nn.LayerNorm` with a fused forward: same arguments, parameters and results."""

    torch_class = nn.LayerNorm
    mixin = FusedLayerNorm


def rule(module: nn.Module) -> type[Fused] | str | None:
    """The fused class for a module, the reason to keep the module, or None."""
    cls = type(module)
    if isinstance(module, nn.LayerNorm):
        if cls.forward is not nn.LayerNorm.forward:
            return f"{cls.__name__} overrides nn.LayerNorm.forward"
        if any(getattr(module, name) is None for name in ("weight", "bias")):
            return "has no weight or no bias"
        return FusedLayerNorm
    if cls.__name__ == "LayerNorm":  # OpenFold's and the trainer's
        parameters = [getattr(module, name, None) for name in ("weight", "bias")]
        if all(isinstance(part, Tensor) and part.ndim == 1 for part in parameters):
            if not hasattr(module, "eps"):
                return "has no eps"
            if not _is_last_axis_norm(module):
                return "does not normalise the last axis"
            return FusedLayerNorm
    return None


def _is_last_axis_norm(module: Any) -> bool:
    """True if its forward, run on the CPU, normalises the last axis, not channels first, say."""
    random = torch.Generator().manual_seed(0)
    weights = stub_weights(module, lambda name, shape: torch.randn(shape, generator=random))
    x = torch.randn(2, 3, *module.weight.shape, generator=random)
    with torch.no_grad():
        result, _ = plain_forward(module, weights, (x,))
    if not isinstance(result, Tensor) or not {"weight", "bias"} <= weights.keys():
        return False
    expected = F.layer_norm(x, module.weight.shape, weights["weight"], weights["bias"], module.eps)
    return result.shape == expected.shape and torch.allclose(result.float(), expected, atol=1e-2)
