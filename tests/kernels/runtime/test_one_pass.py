"""Values shared by the operators of a pass: computed once, from the current weights."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.weights import randomised, results
from torch import Tensor, nn

from evofeed.kernels import OnePass, to_fused
from evofeed.kernels.runtime.one_pass import computed_once, joined_weights, unshared
from evofeed.kernels.runtime.projection import pack
from evofeed.kernels.swap.pair_blocks import drop_mask
from evofeed.trainer.model.outer_product_mean import OuterProductMean
from evofeed.trainer.model.primitives import SharedDropout
from evofeed.trainer.model.transition import MSATransition
from evofeed.trainer.model.triangle import TriangleAttentionStartingNode

S, R, C = 4, 6, 16


class Parts(nn.Module):
    """A transition, an outer product mean and a triangle attention."""

    def __init__(self) -> None:
        super().__init__()
        self.transition, self.outer = MSATransition(C, 2), OuterProductMean(C, C, 16)
        self.attention = TriangleAttentionStartingNode(C, 8, 2)

    def forward(self, m: Tensor, msa_mask: Tensor, pair_mask: Tensor) -> Tensor:
        """The pairs that all three make of an MSA."""
        z: Tensor = self.outer(self.transition(m, msa_mask), msa_mask)
        return z + self.attention(z, pair_mask)


@pytest.fixture
def parts(device: str) -> nn.Module:
    torch.manual_seed(0)
    return to_fused(randomised(Parts(), 0.1).to(device))


@pytest.fixture
def inputs(device: str) -> list[Tensor]:
    torch.manual_seed(1)
    masks = [(torch.rand(1, S, R) > 0.2).float(), (torch.rand(1, R, R) > 0.2).float()]
    return [t.to(device) for t in (torch.randn(1, S, R, C), *masks)]


def _results(parts: nn.Module, inputs: list[Tensor], one_pass: OnePass | None) -> list[Tensor]:
    """The pairs and all gradients of one pass in 16 bits."""

    def call(*given: Tensor) -> Tensor:
        with torch.autocast(given[0].device.type, torch.float16), one_pass or nullcontext():
            return parts(*given).float()  # type: ignore[no-any-return]

    m = inputs[0].clone().requires_grad_()
    return results(call, [m, *inputs[1:]], [*parts.parameters()])


def test_a_pass_gives_the_same_bits_before_and_after_the_weights_change(
    parts: nn.Module, inputs: list[Tensor]
) -> None:
    one_pass = OnePass()
    for _ in range(2):
        alone, shared = _results(parts, inputs, None), _results(parts, inputs, one_pass)
        assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))
        randomised(parts, 0.02)


def test_weights_are_refreshed_when_a_pass_begins() -> None:
    one_pass = OnePass()
    weights = [nn.Parameter(torch.randn(n, 4)) for n in (3, 2)]
    with one_pass:
        first = pack(weights, torch.bfloat16, 8)
        assert pack(weights, torch.bfloat16, 8) is first
    assert torch.equal(first[:5], torch.cat(weights).bfloat16()) and not first[5:].any()
    weights[0].data.mul_(2.0)
    assert not torch.equal(first[:3], weights[0].bfloat16())
    with one_pass:
        assert pack(weights, torch.bfloat16, 8) is first
    assert torch.equal(first[:5], torch.cat(weights).bfloat16())
    assert joined_weights(weights, first.dtype, 8) is None
    assert torch.equal(pack(weights, torch.bfloat16, 8), first)


def test_what_a_backward_pass_reads_may_not_be_refreshed_before() -> None:
    one_pass, weight = OnePass(), nn.Parameter(torch.randn(4, 4))
    x = torch.randn(2, 4, requires_grad=True)
    with one_pass:
        y = (x * pack([weight], torch.float64)[0]).sum()
    with one_pass, pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x)


def test_once_is_once_a_pass_and_for_the_same_numbers() -> None:
    made: list[float] = []

    def total(mask: Tensor) -> float:
        def make(mask: Tensor) -> float:
            made.append(float(mask.sum()))
            return made[-1]

        return computed_once(("sum",), (mask,), make)

    mask, one_pass = torch.ones(3), OnePass()
    with one_pass:
        assert [total(mask), total(mask), total(mask[:2])] == [3.0, 3.0, 2.0] and len(made) == 2
        mask.zero_()
        assert total(mask) == 0.0
        with unshared():
            total(mask)
    assert len(made) == 4
    with one_pass:
        total(mask)
    total(mask)
    assert len(made) == 6


def test_a_pass_in_inference_mode_leaves_nothing_that_gradients_cannot_use() -> None:
    weight, mask, one_pass = nn.Parameter(torch.ones(2, 3)), torch.ones(4), OnePass()
    for value in (1.0, 2.0):
        for mode in (torch.inference_mode, nullcontext):
            with torch.no_grad():
                weight.fill_(value)
            with one_pass:
                for inside in (torch.inference_mode, nullcontext):
                    with mode(), inside(), torch.no_grad():
                        joined = pack([weight], torch.float16)
                        twice = computed_once(("twice",), (mask,), lambda mask: 2 * mask)
                    assert not joined.is_inference()
                    assert torch.equal(joined, weight.half())
                    assert twice.is_inference() == (torch.inference_mode in (mode, inside))


def test_weights_that_moved_are_joined_where_they_are() -> None:
    part, one_pass = nn.Linear(3, 2), OnePass()
    for device in ("cpu", "meta", "cpu"):
        part.to_empty(device=device)
        nn.init.ones_(part.weight)
        for _ in range(2):
            with one_pass:
                assert pack([part.weight], torch.float16).device.type == device


def test_a_pass_draws_many_masks_at_once_and_each_is_used_once(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = SharedDropout(0.5, shared_dim=-3).train(), torch.ones(1, 3, 64, 8, device=device)
    drawn, sizes = F.dropout, []
    monkeypatch.setattr(F, "dropout", lambda x, *a, **k: sizes.append(x.shape) or drawn(x, *a, **k))
    with OnePass(masks=4):
        masks = [drop_mask(layer, x, 64) for _ in range(6)]
        assert drop_mask(layer, x, 32).shape == (1, 32, 8)
    assert sizes == [(4, 1, 64, 8), (4, 1, 64, 8), (4, 1, 32, 8)]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 6
    assert set(torch.cat(masks).flatten().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("context", [nullcontext, OnePass])
def test_else_a_mask_is_the_one_that_the_layer_draws(device: str, context: Any) -> None:
    layer, x = SharedDropout(0.25, shared_dim=-3).train(), torch.ones(1, 3, 64, 8, device=device)
    with context():
        torch.manual_seed(1)
        ours = [drop_mask(layer, x, 64) for _ in range(2)]
    torch.manual_seed(1)
    assert all(torch.equal(mask, layer.sample_mask(x)[0]) for mask in ours)
