"""Attention to templates against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evofeed.kernels import SwapReport, to_fused
from evofeed.trainer.model.template import TemplatePointwiseAttention

pytestmark = pytest.mark.gpu


def test_a_swapped_module_gives_what_its_own_operators_give(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = TemplatePointwiseAttention(c_t=32, c_z=16, c_hidden=16, no_heads=2).to(device)
    torch.nn.init.normal_(module.mha.linear_o.weight)
    t, z = torch.randn(2, 3, 5, 7, 32), torch.randn(2, 5, 7, 16)
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])

    def found(dtype: torch.dtype) -> list[Tensor]:
        module.to(dtype)
        leaves = [x.to(device, dtype).requires_grad_() for x in (t, z)]
        out = module(*leaves, mask.to(device, dtype))
        grads = torch.autograd.grad(out.square().sum(), [*leaves, *module.parameters()])
        return [out.detach(), *grads]

    exact = found(torch.float64)
    report = SwapReport()
    to_fused(module.float(), report)
    assert "" in report.swapped
    monkeypatch.setattr("evofeed.trainer.model.primitives.gated_attention", None)
    for ours, true in zip(found(torch.float32), exact, strict=True):
        torch.testing.assert_close(ours.double(), true, atol=1e-4, rtol=1e-4)
