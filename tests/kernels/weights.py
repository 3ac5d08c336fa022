"""Random weights of the kernels' tests, and results with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from evofeed.trainer.model.config import EvoformerConfig, ExtraMSAConfig
from evofeed.trainer.model.evoformer import EvoformerBlock, ExtraMSABlock

Check = Callable[..., None]
Op = Callable[..., Tensor]
Module = TypeVar("Module", bound=nn.Module)
SIZES: dict[str, Any] = {
    "c_hidden_msa_att": 8, "c_hidden_opm": 16, "c_hidden_mul": 16, "c_hidden_pair_att": 8,
    "no_heads_msa": 2, "no_heads_pair": 2, "transition_n": 2,
}  # fmt: skip
"""Of AF2's blocks around MSA and pairs, which have 16 channels each."""
ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def evoformer_block() -> EvoformerBlock:
    """A small one."""
    return EvoformerBlock(EvoformerConfig(**SIZES), 16, 16)


def extra_msa_block() -> ExtraMSABlock:
    """A small one whose outer product comes first, with one matrix for both projections."""
    given = {"opm_first": True, "fuse_projection_weights": True}
    return ExtraMSABlock(ExtraMSAConfig(**SIZES, **given), 16, 16)


def norm(C: int, spread: float = 0.1) -> list[Tensor]:
    """A layer norm's weight and bias."""
    return [1 + spread * torch.randn(C), spread * torch.randn(C)]


def randomised(module: Module, spread: float = 0.3) -> Module:
    """With other weights: AF2 starts many at 0, which would hide mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return module


def results(
    call: Callable[..., Any], inputs: Sequence[Tensor], parameters: Sequence[Tensor] = (),
    **options: Any,
) -> list[Tensor]:  # fmt: skip
    """Results of a call, and gradients of its inputs that require one and of parameters."""
    out = call(*inputs, **options)
    outs = [out] if isinstance(out, Tensor) else [t for t in out if isinstance(t, Tensor)]
    loss = sum((o * torch.linspace(-1, 1, o.numel()).view_as(o).to(o)).sum() for o in outs)
    assert isinstance(loss, Tensor)
    leaves = [*(t for t in inputs if t.requires_grad), *parameters]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [*(o.detach() for o in outs), *grads]


def hopper(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs a Hopper card."""
    skip = pytest.mark.skipif(not ON_HOPPER, reason="needs a Hopper card")
    return pytest.mark.gpu(skip(test))  # type: ignore[no-any-return]


def gradients(op: Op, inputs: list[Tensor]) -> list[Tensor]:
    """The result and the gradients of all inputs, for one random gradient of the result."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = op(*leaves)
    torch.manual_seed(1)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.randn_like(out))]


def check_passed_on(
    x: Tensor, apart: Op, together: Callable[[Tensor], tuple[Tensor, Tensor]],
    used: tuple[float, float],
) -> None:  # fmt: skip
    """An op that hands its input on gives the gradients that autograd's sum would."""
    found = []
    for fused in (True, False):
        leaf = x.clone().requires_grad_()
        result, same = together(leaf) if fused else (apart(leaf), leaf)
        parts = [(t * t).sum() * factor for t, factor in zip((result, same), used, strict=True)]
        loss = sum(p for p, f in zip(parts, used, strict=True) if f)
        found.append(torch.autograd.grad(loss, leaf)[0])  # type: ignore[arg-type]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
