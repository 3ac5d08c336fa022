"""How each weight starts: the initialisers of AF2 by the names OpenFold gives them.

`default` (LeCun) and `relu` (He) draw a normal truncated at two sigma, rescaled
so that the truncated law has the wanted deviation; `glorot` is uniform; `normal`
is untruncated; `gating` is zero weight with bias one (the gate starts almost
open); `final` is zero, so that every residual branch starts as the identity.

Source: AF2 SI 1.11.4.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

IPA_HEAD_WEIGHT: Final = 0.541324854612918
"""softplus of it is 1."""

# Standard deviation of a unit normal truncated to [-2, 2].
_TRUNCATED_STD: Final = 0.87962566103423978


def _truncated_normal(weight: Tensor, scale: float) -> None:
    sigma = math.sqrt(scale / weight.shape[1]) / _TRUNCATED_STD
    torch.nn.init.trunc_normal_(weight, std=sigma, a=-2 * sigma, b=2 * sigma)


@torch.no_grad()
def init_linear(weight: Tensor, bias: Tensor | None, init: str) -> None:
    """Fill a Linear's `[out, in]` weight and `[out]` bias in place by the named law.

    Raises:
        ValueError: `init` names no law.
    """
    if bias is not None:
        bias.fill_(1.0 if init == "gating" else 0.0)
    if init == "default":
        _truncated_normal(weight, 1.0)
    elif init == "relu":
        _truncated_normal(weight, 2.0)
    elif init == "glorot":
        torch.nn.init.xavier_uniform_(weight)
    elif init == "normal":
        weight.normal_(0.0, weight.shape[1] ** -0.5)
    elif init in ("gating", "final"):
        weight.zero_()
    else:
        raise ValueError(f"init is {init!r}; use default, relu, glorot, normal, gating or final")
