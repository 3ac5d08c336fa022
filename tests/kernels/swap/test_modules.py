"""Every block of the trainer, swapped, against itself: outputs and gradients of all its parts."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.kernels.weights import evoformer_block, extra_msa_block, randomised, results
from torch import Tensor, nn

from evofeed.kernels import SwapReport, to_fused
from evofeed.kernels.fused_module import Fused
from evofeed.trainer import AlphaFold, tiny_multimer
from evofeed.trainer.model import template
from evofeed.trainer.model.config import TemplateConfig

pytestmark = pytest.mark.slow

S, R, C_M, C_Z = 3, 5, 16, 16


def _inputs(device: str) -> dict[str, Tensor]:
    masks = {
        "msa_mask": (torch.rand(1, S, R) > 0.2).float(),
        "pair_mask": (torch.rand(1, R, R) > 0.2).float(),
    }
    tensors = {"m": torch.randn(1, S, R, C_M), "z": torch.randn(1, R, R, C_Z), **masks}
    tensors |= {"t": torch.randn(1, 2, R, R, C_Z), "t_mask": masks["pair_mask"][:, None]}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _assert_same(plain: nn.Module, names: list[str], device: str) -> None:
    plain = randomised(plain).to(device)
    fused = to_fused(copy.deepcopy(plain))
    assert isinstance(fused, Fused)
    assert list(fused.state_dict()) == list(plain.state_dict())
    inputs = _inputs(device)
    found, active = [], [n for n in names if "mask" not in n]
    for module in (plain, fused):
        leaves = [inputs[n].clone().requires_grad_(n in active) for n in names]
        torch.manual_seed(1)
        found.append(results(module, leaves, [*module.parameters()]))
    parameters = [name for name, _ in plain.named_parameters()]
    outs = len(found[0]) - len(active) - len(parameters)
    # A shift of all logits changes nothing: the gradient of that norm's bias is rounding noise.
    kinds = ["out"] * outs + active + parameters
    for kind, theirs, ours in zip(kinds, *found, strict=True):
        scale = 10.0 if kind.endswith("layer_norm_z.bias") else float(theirs.abs().max())
        error = float((ours - theirs).abs().max()) / scale
        assert error < 1e-4, f"{kind}: {error:.1e}"


@pytest.mark.parametrize("block", [evoformer_block, extra_msa_block])
def test_a_swapped_block_computes_the_same_with_the_same_dropout(block: Any, device: str) -> None:
    """Its errors are named by parameter, which says the part."""
    torch.manual_seed(3)
    plain = block()
    _assert_same(plain, ["m", "z", "msa_mask", "pair_mask"], device)


@pytest.mark.parametrize("multiplications_first", [False, True])
def test_a_swapped_template_block_computes_the_same_with_the_same_dropout(
    multiplications_first: bool, device: str
) -> None:
    torch.manual_seed(3)
    sizes = TemplateConfig(c_t=C_Z, c_hidden_tri_att=8, c_hidden_tri_mul=16, no_heads=2)
    plain = template.TemplatePairStackBlock(replace(sizes, tri_mul_first=multiplications_first))
    _assert_same(plain, ["t", "t_mask"], device)


def test_without_a_kernel_a_swapped_block_is_the_original(device: str) -> None:
    block = randomised(evoformer_block()).to(device).double().eval()
    inputs = {name: t.double() for name, t in _inputs(device).items()}
    arguments = [inputs[name] for name in ("m", "z", "msa_mask", "pair_mask")]
    expected = block(*arguments)
    got = to_fused(block)(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_every_module_of_complexes_is_taken() -> None:
    model, report = AlphaFold(tiny_multimer().model), SwapReport()
    to_fused(model, report)
    assert not report.kept
    for part in ("tri_mul_out", "tri_mul_in"):  # one matrix for both projections
        assert f"evoformer.blocks.0.pair_stack.{part}" in report.swapped
        assert f"template_embedder.template_pair_stack.blocks.0.{part}" in report.swapped
    assert any(name.endswith("query_embedding_layer_norm") for name in report.swapped)
