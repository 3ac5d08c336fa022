"""Attention and layer norm of odd lengths, masks, views and sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.kernels.weights import Check
from torch import Tensor

from evofeed.kernels import layer_norm, reference
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.runtime.tiles import AttentionTiles, Tile, override

pytestmark = pytest.mark.gpu


def _inputs(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: str, masked: float = 0.2
) -> list[Tensor]:
    B, R, N, H, _ = shape
    q, k, v = (torch.randn(shape) for _ in range(3))
    bias = 2 * torch.randn(B, H, N, N)
    mask = (torch.rand(B, R, N) >= masked).float()
    tensors = [q.to(dtype), k.to(dtype), v.to(dtype), bias.to(dtype), mask]
    return [t.to(device) for t in tensors]


@pytest.fixture
def tiles() -> Iterator[AttentionTiles]:
    """Tiles that make several of every short row."""
    small = Tile(32, 32, 4, 1)
    yield AttentionTiles(small, small, small, small)
    override("attention", None)


@pytest.mark.parametrize("length", [5, 7, 33, 70])
def test_odd_lengths_and_several_tiles(
    length: int, tiles: AttentionTiles, device: str, three_way: Check
) -> None:
    override("attention", tiles)
    inputs = _inputs((2, 3, length, 1, 16), torch.float32, device)
    three_way(biased_attention, reference.biased_attention, inputs, [0, 1, 2, 3])


def test_one_position_attends_to_itself(device: str) -> None:
    q, k, v, bias, mask = _inputs((1, 2, 1, 2, 16), torch.float32, device, masked=0)
    leaves = [t.requires_grad_() for t in (q, k, v, bias)]
    out = biased_attention(*leaves, mask)
    torch.testing.assert_close(out, v)
    dq, dk, dv, db = torch.autograd.grad(out.sum(), leaves)
    torch.testing.assert_close(dv, torch.ones_like(v))
    for zero in (dq, dk, db):
        torch.testing.assert_close(zero, torch.zeros_like(zero), atol=1e-5, rtol=0)


def test_rows_without_a_valid_key_attend_uniformly(device: str, three_way: Check) -> None:
    inputs = _inputs((1, 4, 18, 2, 16), torch.float32, device)
    inputs[4][0, 1] = 0.0
    out = biased_attention(*inputs)
    uniform = inputs[2][0, 1].mean(0).expand_as(out[0, 1])
    torch.testing.assert_close(out[0, 1], uniform, atol=1e-5, rtol=1e-5)
    three_way(biased_attention, reference.biased_attention, inputs, [0, 1, 2, 3])


def test_logits_of_hundreds_keep_three_digits(device: str) -> None:
    inputs = _inputs((1, 2, 20, 1, 16), torch.float32, device)
    inputs[3] = 3 * inputs[3] - 400
    results = []
    for op in (biased_attention, reference.biased_attention):
        leaves = [t.clone().requires_grad_() for t in inputs[:4]]
        out = op(*leaves, inputs[4])
        results.append([out, *torch.autograd.grad(out.sin().sum(), leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def _rows(shape: tuple[int, ...], x_dtype: torch.dtype, w_dtype: torch.dtype) -> list[Tensor]:
    C = shape[-1]
    x = torch.randn(shape) * 2 + 0.5
    return [x.to(x_dtype), (1 + 0.1 * torch.randn(C)).to(w_dtype), torch.randn(C).to(w_dtype)]


@pytest.mark.parametrize("same_type", [True, False])
def test_half_rows_with_either_weight_type(
    same_type: bool, half: torch.dtype, device: str, three_way: Check
) -> None:
    weights = half if same_type else torch.float32
    inputs = [x.to(device) for x in _rows((70, 64), half, weights)]
    three_way(layer_norm, reference.layer_norm, inputs, [0, 1, 2])


def test_a_large_mean_does_not_cost_accuracy(device: str, three_way: Check) -> None:
    x, weight, bias = (t.to(device) for t in _rows((64, 128), torch.float32, torch.float32))
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
    x, weight, bias = (t.to(device) for t in _rows((40, 128), half, torch.float32))
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
