"""Fallbacks: the plain version without a kernel, recomputed intermediates on small cards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import randomised, results
from torch import Tensor, nn

from evofeed.kernels import to_fused
from evofeed.kernels.ops.gated_attention.op import gated_attention
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.outer_product_mean import op as outer
from evofeed.kernels.runtime import projection
from evofeed.kernels.runtime.checks import FusedResult, falls_back_to
from evofeed.trainer.model.msa_attention import MSAColumnAttention
from evofeed.trainer.model.outer_product_mean import OuterProductMean
from evofeed.trainer.model.transition import MSATransition
from evofeed.trainer.model.triangle import TriangleMultiplicationIncoming


def test_what_falls_back_is_passed_on_whole() -> None:
    """No option is lost; the result has the type of the input, or of the one that is named."""

    def plain(x: Tensor, scale: float, *, to: Tensor | None = None) -> Tensor:
        return scale * x.double() + (0 if to is None else to)

    @falls_back_to(plain, like="to")
    def op(x: Tensor, scale: float, *, to: Tensor | None = None) -> FusedResult:
        return x if scale == 0.0 else None

    x, to = torch.ones(2), torch.ones(2, dtype=torch.float16)
    assert op(x, 0.0) is x
    assert torch.equal(op(x, 3.0), 3 * x)
    assert torch.equal(op(x=x, scale=3.0, to=to), torch.full((2,), 4.0, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_of_another_type_are_cast_and_the_result_has_the_inputs(dtype: torch.dtype) -> None:
    C, K = 24, 12  # no power of two: no kernel takes them
    torch.manual_seed(0)
    q = [torch.randn(K, C) for _ in range(4)]
    weights = AttentionWeights(
        torch.ones(C), torch.zeros(C), *q, torch.zeros(K), torch.randn(C, K), torch.zeros(C)
    )
    x = torch.randn(1, 2, 3, C, dtype=dtype)
    out = gated_attention(x, weights, 2)
    assert out.dtype is dtype and torch.isfinite(out).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert gated_attention(x.float(), weights, 2).dtype is torch.float32


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
