"""OpenFold3 since 0.5: its ending node's bias is transposed.

Its recorded cases are of an earlier version; these modules are as 0.5.0's are. Its own classes of
that version are swapped, and compared with themselves, in `test_own_classes.py`.
"""

from __future__ import annotations

import pytest
import torch
from tests.kernels.af3 import openfold3
from torch import Tensor

from evofeed.kernels import SwapReport, to_fused
from evofeed.kernels.fused_module import Fused

C = 16


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
