from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.runtime.tiles import AttentionTiles, Tile, override

pytestmark = pytest.mark.gpu

Check = Callable[..., None]


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


def test_columns_are_rows_with_other_strides(device: str) -> None:
    packed = torch.randn(1, 5, 12, 3, 2, 16, device=device)
    q, k, v = packed.transpose(1, 2).unbind(3)
    expected = reference.biased_attention(q, k, v)
    torch.testing.assert_close(biased_attention(q, k, v), expected, atol=1e-5, rtol=1e-5)
