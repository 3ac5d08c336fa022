"""The model of complexes, fused, against itself: every output and every gradient."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tests.trainer.synthetic_batch import synthetic_complex

from evofeed.kernels import to_fused, to_torch
from evofeed.kernels.swap.swap import SwapReport
from evofeed.trainer import AlphaFold, AlphaFoldLoss, tiny_multimer

pytestmark = pytest.mark.slow

SIZES = {"num_res": 5, "num_seq": 3, "num_extra_seq": 3, "num_templates": 1, "num_chains": 2}
CONFIG = replace(
    tiny_multimer().model, evoformer=replace(tiny_multimer().model.evoformer, no_blocks=1)
)  # the interpreter is slow


def _weights_all_used() -> AlphaFold:
    torch.manual_seed(0)
    model = AlphaFold(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def test_every_module_of_complexes_is_taken_and_computes_the_same(device: str) -> None:
    plain = _weights_all_used().to(device)
    fused, report = copy.deepcopy(plain), SwapReport()
    to_fused(fused, report)
    assert not report.kept
    for part in ("tri_mul_out", "tri_mul_in"):  # one matrix for both projections
        assert f"evoformer.blocks.0.pair_stack.{part}" in report.swapped
        assert f"template_embedder.template_pair_stack.blocks.0.{part}" in report.swapped
    norm = "template_embedder.template_pair_embedder.query_embedding_layer_norm"
    assert norm in report.swapped
    batch = synthetic_complex(**SIZES, device=device)
    found = []
    for model in (plain, fused):
        torch.manual_seed(1)
        outputs = model(batch)
        loss, _ = AlphaFoldLoss(tiny_multimer().loss)(outputs, batch)
        loss.backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append((outputs["pair"].detach(), outputs["single"].detach(), grads))
    for ours, theirs in zip(found[1][:2], found[0][:2], strict=True):
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-4
    largest = max(float(grad.norm()) for grad in found[0][2].values())
    assert found[1][2].keys() == found[0][2].keys()
    for name, theirs in found[0][2].items():
        error = float((found[1][2][name] - theirs).norm())
        assert error < 2e-3 * max(float(theirs.norm()), 1e-3 * largest), name
    assert type(to_torch(fused).evoformer.blocks[0]) is type(plain.evoformer.blocks[0])
