"""What the forward pass keeps where it is small is made again where it is not: equal gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import randomised, results
from torch import nn

from evofeed.kernels import to_fused
from evofeed.kernels.ops.outer_product_mean import op as outer
from evofeed.kernels.runtime import projection
from evofeed.trainer.model.msa_attention import MSAColumnAttention
from evofeed.trainer.model.outer_product_mean import OuterProductMean
from evofeed.trainer.model.transition import MSATransition
from evofeed.trainer.model.triangle import TriangleMultiplicationIncoming

MAKERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (lambda: MSAColumnAttention(16, 8, 2), (1, 3, 4, 16)),
    "outer": (lambda: OuterProductMean(16, 16, 16), (1, 3, 4, 16)),
    "transition": (lambda: MSATransition(256, 1), (1, 2, 3, 256)),
    "triangle": (lambda: TriangleMultiplicationIncoming(16, 16), (1, 4, 4, 16)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_made_again_it_is_what_was_kept(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = MAKERS[name]
    torch.manual_seed(0)
    module = to_fused(randomised(make(), 0.1).to(device))
    x, mask = torch.randn(shape, device=device), torch.ones(shape[:-1], device=device)
    given = [x.requires_grad_(), mask], [*module.parameters()]
    monkeypatch.setattr(outer, "KEPT_FROM", 0)
    kept = results(module, *given)
    monkeypatch.setattr(projection, "KEPT_BYTES", 0)
    monkeypatch.setattr(outer, "KEPT_FROM", 1024)
    for again, first in zip(results(module, *given), kept, strict=True):
        # the backward pass rounds 1 / std once more
        torch.testing.assert_close(again, first, rtol=1e-5, atol=1e-5 * float(first.abs().max()))


def test_a_small_card_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for gigabytes, kept in ((None, True), (40, False), (80, True)):
        memory = None if gigabytes is None else gigabytes * 10**9
        monkeypatch.setattr(projection, "card_bytes", lambda memory=memory: memory)
        assert projection.keeps((16, 16), torch.float32) is kept
