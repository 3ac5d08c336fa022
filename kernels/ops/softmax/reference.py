"""`masked_softmax` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from evofeed.kernels.runtime.cases import Case, Cases, Draw

__all__ = ["masked_softmax"]


def masked_softmax(x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax over keys of x + bias, masked keys at -1e9.

    Args:
        x: logits `[B, R, H, Q, K]`.
        mask: `[B, R, K]`, 1 where a key may be attended to, or None.
        bias: `[B, H, Q, K]`, shared by the R rows, or None.

    Returns:
        Weights of x's shape and dtype; gradients reach x and bias.
    """
    s = x.to(torch.promote_types(x.dtype, torch.float32))
    if bias is not None:
        s = s + bias[:, None].to(s.dtype)
    if mask is not None:
        valid = (mask > 0.5)[:, :, None, None, :]
        none = ~valid.any(-1, keepdim=True)
        s = torch.where(none, s - s.detach(), s + torch.where(valid, 0.0, -1e9).to(s.dtype))
    return torch.softmax(s, -1).to(x.dtype)


def _case(draw: Draw, biased: bool, masked: bool, keys: int | None = None) -> Case:
    S, R, K, H = draw.sequences, draw.residues, keys or draw.residues, 2
    mask = draw.mask(2, S, K) if masked else None
    if mask is not None:
        mask[1, 0] = 0.0  # no valid key
    bias = {"bias": draw(2, H, R, K)} if biased else {}
    return Case({"x": draw(2, S, H, R, K), **bias}, lambda op, **t: op(**t, mask=mask))


CASES = Cases(
    {
        "plain": lambda draw: _case(draw, False, False),
        "of a bias": lambda draw: _case(draw, True, False),
        "of both": lambda draw: _case(draw, True, True),
    },
    {f"{keys} keys": partial(_case, biased=True, masked=True, keys=keys) for keys in (5, 33, 60)},
)  # fmt: skip
