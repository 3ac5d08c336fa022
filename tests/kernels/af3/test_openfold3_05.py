"""OpenFold3 since 0.5: its ending node's bias is transposed.

Its recorded cases are of an earlier version; these modules are as 0.5.0's are. Its other classes
of that version are swapped themselves in `test_own_classes.py`.
"""

from __future__ import annotations

import copy

import pytest
import torch
from tests.kernels.af3 import openfold3
from torch import Tensor, nn

from evofeed.kernels import SwapReport, to_fused
from evofeed.kernels.fused_module import Fused

C, N = 16, 9


def _draw(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return module


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (openfold3.TurningPairBlock, {}),
        (openfold3.TurningPairBlock, {"inplace_safe": True}),
        (openfold3.TurningTriangleAttention, {"transpose_bias": True}),
        (openfold3.TurningTriangleAttention, {"transpose_bias": False}),
    ],
)
def test_fused_it_is_as_exact_as_itself(
    kind: type[nn.Module], options: dict[str, bool], device: str
) -> None:
    torch.manual_seed(0)
    sizes = (C, C, 8, 2) if kind is openfold3.TurningPairBlock else (C, 8, 2)
    exact_module, z = _draw(kind(*sizes)).double(), torch.randn(1, N, N, C)
    mask = (torch.rand(1, N, N) > 0.2).double()
    mask[..., 0] = mask[:, 0] = 1.0  # none is masked whole: float64 makes something else of that

    def run(module: nn.Module, dtype: torch.dtype) -> list[Tensor]:
        module = module.to(device, dtype)
        leaf = z.to(device, dtype).requires_grad_()
        out = module(leaf, mask.to(device, dtype), **options)
        grads = torch.autograd.grad(out.sin().sum(), [leaf, *module.parameters()])
        return [t.detach().double().cpu() for t in (out, *grads)]

    exact = run(copy.deepcopy(exact_module), torch.float64)
    fused = to_fused(copy.deepcopy(exact_module))
    assert isinstance(fused, Fused)
    largest = max(float(t.norm()) for t in exact[1:])
    for ours, wanted in zip(run(fused, torch.float32), exact, strict=True):
        scale = max(float(wanted.norm()), 1e-3 * largest)  # some vanish: a row's shift
        assert float((ours - wanted).norm()) < 1e-5 * scale


class Forgetful(openfold3.TurningPairBlock):
    """Its ending node is not told to transpose."""

    def tri_att_start_end(self, z: Tensor, pair_mask: Tensor) -> Tensor:
        return z + self.tri_att_end(z, pair_mask)


class Undecided(openfold3.TurningPairBlock):
    """Its ending node is told not to."""

    def tri_att_start_end(self, z: Tensor, pair_mask: Tensor) -> Tensor:
        return z + self.tri_att_end(z, pair_mask, transpose_bias=False)


class Elsewhere(openfold3.TurningPairBlock):
    """Its forward runs on its own device only."""

    def tri_att_start_end(self, z: Tensor, pair_mask: Tensor) -> Tensor:
        assert z.is_cuda, "no kernels for this device"
        return super().tri_att_start_end(z, pair_mask)


@pytest.mark.parametrize("kind", [Forgetful, Undecided, Elsewhere])
def test_a_block_whose_bias_may_not_be_transposed_is_kept(
    kind: type[openfold3.TurningPairBlock],
) -> None:
    report = SwapReport()
    module = to_fused(kind(C, C, 8, 2), report)
    assert not isinstance(module, Fused)
    assert isinstance(module.tri_att_end, Fused)
    wrong = "transpose its ending node's bias" if kind is Elsewhere else "computes something else"
    assert wrong in report.kept[""]


class ByPosition(openfold3.TurningPairBlock):
    """It says so without a name, in a method of another name."""

    def _attend(self, z: Tensor, mask: Tensor) -> Tensor:
        z = z + self.ps_dropout_row_layer(self.tri_att_start(z, mask))
        update = self.tri_att_end(z.transpose(-2, -3), mask.transpose(-1, -2), True)
        return (z.transpose(-2, -3) + self.ps_dropout_row_layer(update)).transpose(-2, -3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_how_a_block_is_told_does_not_matter_and_nothing_of_it_changes(dtype: torch.dtype) -> None:
    block = ByPosition(C, C, 8, 2).to(dtype)
    before = {name: tensor.clone() for name, tensor in block.state_dict().items()}
    drawn = torch.get_rng_state()
    assert isinstance(to_fused(block), Fused)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not block.tri_att_end._forward_pre_hooks
    for name, tensor in block.state_dict().items():
        assert torch.equal(tensor, before[name]) and tensor.device.type == "cpu"
