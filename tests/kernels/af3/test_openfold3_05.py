"""OpenFold3 since 0.5: its ending node's bias is transposed, and there are classes of their own
for the single track and for the diffusion transformer, which normalises z once for all blocks.

Its recorded cases are of an earlier version; these modules are as 0.5.0's are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

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


def _mask(*shape: int) -> Tensor:
    """No row and no column is masked whole: in float64 such a row is not what float32 makes."""
    mask = (torch.rand(shape) > 0.2).double()
    mask[..., 0] = 1.0
    if len(shape) == 3:
        mask[:, 0] = 1.0
    return mask


def _pairs() -> tuple[nn.Module, list[Tensor], Tensor]:
    return openfold3.TurningPairBlock(C, C, 8, 2), [torch.randn(1, N, N, C)], _mask(1, N, N)


def _attention() -> tuple[nn.Module, list[Tensor], Tensor]:
    module = openfold3.TurningTriangleAttention(C, 8, 2)
    return module, [torch.randn(1, N, N, C)], _mask(1, N, N)


def _single() -> tuple[nn.Module, list[Tensor], Tensor]:
    module = openfold3.SingleAttentionPairBias(24, C, 12, 2)
    return module, [torch.randn(1, N, 24), torch.randn(1, N, N, C)], _mask(1, N)


def _tokens(kind: type[nn.Module], *names: str) -> tuple[nn.Module, list[Tensor], Tensor]:
    """Three noise copies that share z, which in 0.5 has an axis of one for them."""
    parts = {
        "a": torch.randn(1, 3, N, 24),
        "s": torch.randn(1, 3, N, 40),
        "z": torch.randn(1, 1, N, N, C),
    }
    return kind(24, 40, C, 12, 2), [parts[name] for name in names], _mask(1, 1, N)


def _diffusion_attention() -> tuple[nn.Module, list[Tensor], Tensor]:
    return _tokens(openfold3.DiffusionAttentionPairBias, "a", "z", "s")


def _diffusion_block() -> tuple[nn.Module, list[Tensor], Tensor]:
    return _tokens(openfold3.LaterDiffusionTransformerBlock, "a", "s", "z")


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(_pairs, {}, id="a pair block"),
        pytest.param(_pairs, {"inplace_safe": True}, id="a pair block that may change its input"),
        pytest.param(_attention, {"transpose_bias": True}, id="a turned bias"),
        pytest.param(_attention, {"transpose_bias": False}, id="a bias as it is"),
        pytest.param(_single, {}, id="the single track"),
        pytest.param(_diffusion_attention, {}, id="attention of the diffusion transformer"),
        pytest.param(_diffusion_block, {}, id="a block of it"),
        pytest.param(_diffusion_block, {"_mask_trans": False}, id="its transition not masked"),
    ],
)
def test_fused_it_is_as_exact_as_itself(
    make: Callable[[], tuple[nn.Module, list[Tensor], Tensor]], options: dict[str, bool],
    device: str,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    module, inputs, mask = make()
    exact_module = _draw(module).double()

    def run(module: nn.Module, dtype: torch.dtype) -> list[Tensor]:
        module = module.to(device, dtype)
        leaves = [t.to(device, dtype).requires_grad_() for t in inputs]
        out = module(*leaves, mask.to(device, dtype), **options)
        grads = torch.autograd.grad(out.sin().sum(), [*leaves, *module.parameters()])
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
