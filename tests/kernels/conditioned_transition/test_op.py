"""The conditioned transition against its reference, in both types, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evofeed.errors import UnsupportedShape
from evofeed.kernels import reference
from evofeed.kernels.ops.conditioned_transition.op import (
    ConditionedWeights,
    conditioned_transition,
    conditioned_transition_fits,
)

pytestmark = pytest.mark.gpu


def tensors_of(C: int, K: int, N: int, third: bool) -> list[Tensor]:
    """a and s, then in the order of `ConditionedWeights`."""
    a, s = torch.randn(2, 13, C), torch.randn(2, 13, K)
    sides = [(C, K), (C,), (C, K), (N, C), (N, C), (C, N), (C, K), (C,), *[(N, C)] * third]
    made = [torch.randn(*shape) * shape[-1] ** -0.5 for shape in sides]
    return [a, s, 1 + 0.3 * torch.randn(K), *made]


@pytest.mark.parametrize("dtype", [torch.float32, None], ids=["float32", "16 bits"])
@pytest.mark.parametrize(
    ("sizes", "third", "masked"),
    [((16, 24, 32), False, True), ((48, 16, 72), True, False), ((768, 384, 1536), False, True)],
)
def test_it_is_as_exact_as_pytorch(
    sizes: tuple[int, int, int], third: bool, masked: bool, dtype: torch.dtype | None,
    half: torch.dtype, device: str, three_way: Callable[..., None],
) -> None:  # fmt: skip
    tensors = [t.to(device, dtype or half) for t in tensors_of(*sizes, third)]
    mask = (torch.rand(2, 13, device=device) > 0.3).float() if masked else None
    assert conditioned_transition_fits(*tensors[:2], ConditionedWeights(*tensors[2:]))

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda a, s, *w: op(a, s, ConditionedWeights(*w), mask=mask, residual=masked)

    three_way(
        call(conditioned_transition), call(reference.conditioned_transition), tensors,
        range(len(tensors)),
    )  # fmt: skip


def test_a_wrong_shape_is_named(device: str) -> None:
    a, s, *weights = (t.to(device) for t in tensors_of(16, 16, 32, False))
    weights[7] = weights[7][:, :8]
    with pytest.raises(UnsupportedShape, match=r"last is \[16, 8\].*\[16, 16\]"):
        conditioned_transition(a, s, ConditionedWeights(*weights))
