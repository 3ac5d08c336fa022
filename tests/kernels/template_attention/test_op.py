"""Attention to templates against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.conftest import Op
from tests.kernels.weights import Check
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.template_attention.op import template_attention
from evofeed.trainer.model.template import TemplatePointwiseAttention

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("templates", [1, 4])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("precise", [True, False])
def test_results_and_gradients(
    precise: bool, masked: bool, templates: int, half: torch.dtype, device: str, three_way: Check
) -> None:
    dtype = torch.float32 if precise else half
    width, heads = 64, 4
    shapes = [(2, 7, 9, width), *[(2, templates, 7, 9, width)] * 2]
    inputs = [torch.randn(*shape).to(device, dtype) for shape in shapes]
    bias = -1e5 * (torch.rand(2, templates, device=device) > 0.6).float() if masked else None

    def call(op: Op) -> Op:
        return lambda q, k, v: op(q, k, v, heads, bias)

    three_way(call(template_attention), call(reference.template_attention), inputs, range(3))


def test_the_model_takes_it_and_gives_what_its_own_operators_give(
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

    exact = found(torch.float64)  # no kernel takes float64
    monkeypatch.setattr("evofeed.trainer.model.primitives.gated_attention", None)
    for ours, true in zip(found(torch.float32), exact, strict=True):
        torch.testing.assert_close(ours.double(), true, atol=1e-4, rtol=1e-4)
