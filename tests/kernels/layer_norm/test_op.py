from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evofeed.kernels import layer_norm, reference

pytestmark = pytest.mark.gpu

Check = Callable[..., None]


def _inputs(shape: tuple[int, ...], x_dtype: torch.dtype, w_dtype: torch.dtype) -> list[Tensor]:
    C = shape[-1]
    x = torch.randn(shape) * 2 + 0.5
    return [x.to(x_dtype), (1 + 0.1 * torch.randn(C)).to(w_dtype), torch.randn(C).to(w_dtype)]


@pytest.mark.parametrize("same_type", [True, False])
def test_half_rows_with_either_weight_type(
    same_type: bool, half: torch.dtype, device: str, three_way: Check
) -> None:
    weights = half if same_type else torch.float32
    inputs = [x.to(device) for x in _inputs((70, 64), half, weights)]
    three_way(layer_norm, reference.layer_norm, inputs, [0, 1, 2])


def test_a_large_mean_does_not_cost_accuracy(device: str, three_way: Check) -> None:
    x, weight, bias = (t.to(device) for t in _inputs((64, 128), torch.float32, torch.float32))
    three_way(layer_norm, reference.layer_norm, [x + 300, weight, bias], [0, 1, 2])


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(-2, -3),
        lambda x: x[:, 1:, :, :],
        lambda x: x[..., 0, :],
        lambda x: x.permute(2, 1, 0, 3),
        lambda x: x[..., ::2],
    ],
)
def test_views_need_no_contiguous_copy_to_be_right(view, device: str, three_way: Check) -> None:  # type: ignore[no-untyped-def]
    x = view(torch.randn(2, 5, 3, 32, device=device))
    C = x.shape[-1]
    weight, bias = torch.randn(C, device=device), torch.randn(C, device=device)
    three_way(layer_norm, reference.layer_norm, [x, weight, bias], [0, 1, 2])


def test_without_gradients_the_result_is_the_same(half: torch.dtype, device: str) -> None:
    x, weight, bias = (t.to(device) for t in _inputs((40, 128), half, torch.float32))
    with_graph = layer_norm(x.requires_grad_(), weight, bias)
    with torch.no_grad():
        without = layer_norm(x, weight, bias)
    assert with_graph.requires_grad and not without.requires_grad
    assert torch.equal(with_graph, without)


def test_no_rows_are_fine(device: str) -> None:
    x = torch.empty(0, 8, device=device)
    assert layer_norm(x, torch.ones(8, device=device), torch.zeros(8, device=device)).shape == (
        0,
        8,
    )


def test_float64_and_wide_rows_go_to_torch(device: str) -> None:
    x = torch.randn(2, 9000, device=device)
    weight, bias = torch.ones(9000, device=device), torch.zeros(9000, device=device)
    assert torch.equal(layer_norm(x, weight, bias), reference.layer_norm(x, weight, bias))
    assert layer_norm(x.double(), weight, bias).dtype is torch.float64
