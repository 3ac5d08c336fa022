"""The attention kernels for Hopper: against float64, against the plain kernels, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import Check, hopper
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.attention import op as attention
from evofeed.kernels.ops.attention.hopper import launch as hopper_attention
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.runtime.tiles import AttentionTiles, HopperTiles, Tile, override


def _inputs(
    shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, columns: bool = False
) -> list[Tensor]:
    """q, k, v as views of one tensor, bias and mask; the second row has no valid key."""
    B, R, N, H, D = shape
    axes = (B, N, R) if columns else (B, R, N)
    packed = torch.randn(*axes, 3, H, D, device="cuda").to(dtype)
    packed = packed.transpose(1, 2) if columns else packed
    bias = torch.randn(B, H, N, N, device="cuda").to(dtype)
    mask = (torch.rand(B, R, N, device="cuda") > 0.2).float()
    mask[:, 1] = 0.0
    return [*packed.unbind(3), bias, mask]


@hopper
@pytest.mark.parametrize(
    "shape",
    [(2, 3, 70, 2, 8), (1, 4, 200, 2, 16), (1, 3, 127, 2, 32), (1, 2, 130, 1, 64),
     (1, 2, 300, 1, 32), (1, 2, 64, 1, 32), (1, 2, 5, 2, 16), (1, 2, 511, 1, 32),
     (1, 3, 776, 1, 32), (1, 2, 900, 1, 32)],
)  # fmt: skip
def test_every_head_width_and_length_matches(shape: tuple[int, ...], three_way: Check) -> None:
    """Longer rows than 776 take the kernels for any card."""
    inputs = _inputs(shape)
    fits = hopper_attention.forward_fits(inputs[0], inputs[1], inputs[2])
    assert fits or shape[2] == 900
    three_way(biased_attention, reference.biased_attention, inputs, [0, 1, 2, 3])


@hopper
def test_a_single_position_takes_the_plain_kernels(three_way: Check) -> None:
    inputs = _inputs((1, 2, 1, 2, 32))
    assert not hopper_attention.forward_fits(inputs[0], inputs[1], inputs[2])
    three_way(biased_attention, reference.biased_attention, inputs, [2])
    q, k, v, bias = (x.detach().requires_grad_() for x in inputs[:4])
    biased_attention(q, k, v, bias, inputs[4]).float().square().sum().backward()
    for x in (q, k, bias):  # one weight, always 1: what is not 0 is rounding
        assert x.grad is not None and float(x.grad.float().abs().max()) < 1e-3


@hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("present", ["bias", "mask", "neither"])
def test_bias_and_mask_are_optional(dtype: torch.dtype, present: str, three_way: Check) -> None:
    q, k, v, bias, mask = _inputs((1, 3, 128, 2, 32), dtype, columns=True)

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda q, k, v, bias: op(
            q, k, v, bias if present == "bias" else None, mask if present == "mask" else None
        ) + 0 * bias.sum()  # fmt: skip

    three_way(call(biased_attention), call(reference.biased_attention), [q, k, v, bias], [0, 1, 2])


@hopper
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    ("N", "D"),
    [(129, 32), (132, 32), (144, 8), (137, 64), (257, 16), (260, 32), (272, 64), (513, 8),
     (516, 32), (528, 32)],
)  # fmt: skip
def test_a_few_positions_more_than_whole_tiles_match(
    N: int, D: int, masked: bool, three_way: Check
) -> None:
    """Up to 16 more than 128, 256 or 512 have kernels of their own."""
    q, k, v, _, mask = _inputs((2, 3, N, 2, D), columns=True)

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda q, k, v: op(q, k, v, None, mask if masked else None)

    three_way(call(biased_attention), call(reference.biased_attention), [q, k, v], [0, 1, 2])


@hopper
@pytest.mark.parametrize("N", [132, 260, 516])
def test_they_agree_with_the_kernel_for_all_rows_and_with_themselves(N: int) -> None:
    q, k, v, _, mask = _inputs((1, 40, N, 2, 32))
    scale, found = q.shape[-1] ** -0.5, []
    masked = attention.prepare_mask(mask, scale, q.dtype)
    for tiles in (None, None, HopperTiles()):
        out = torch.full_like(q, float("nan"))
        lse = hopper_attention.run_forward(q, k, v, None, masked, scale, out, tiles)
        torch.manual_seed(1)
        do = torch.randn_like(out)
        delta = attention.output_delta(out, do)
        grads = tuple(torch.full_like(q, float("nan")) for _ in range(3))
        hopper_attention.run_backward(
            attention.BackwardInputs(do, q, k, v, None, masked, lse, delta, scale, grads), tiles
        )
        found.append([t.double() for t in (out, *grads, lse)])
    for ours, again, others in zip(*found, strict=True):
        assert torch.equal(ours, again)
        assert float((ours - others).norm() / others.norm()) < 5e-3


def _all(inputs: list[Tensor], tiles: AttentionTiles | None) -> list[Tensor | None]:
    """Output, log-sum-exp, gradients: of the Hopper kernels, or of the plain ones with `tiles`."""
    q, k, v, bias, mask = inputs
    scale = q.shape[-1] ** -0.5
    ready = attention.scaled_bias(bias, scale, q.dtype)
    masked = attention.prepare_mask(mask, scale, q.dtype)
    out = torch.full_like(q, float("nan"))
    lse = attention.run_forward(q, k, v, ready, masked, scale, out, tiles)
    torch.manual_seed(1)
    do = torch.randn_like(out)
    grads = tuple(torch.full_like(q, float("nan")) for _ in range(3))
    delta = attention.output_delta(out, do)
    given = attention.BackwardInputs(do, q, k, v, ready, masked, lse, delta, scale, grads)
    db = attention.run_backward(given, tiles)
    return [out, lse, *grads, db]


@hopper
@pytest.mark.parametrize("shape", [(1, 70, 256, 4, 32), (1, 20, 384, 4, 32), (1, 33, 200, 8, 8)])
def test_runs_have_equal_bits_and_the_plain_kernels_agree(shape: tuple[int, ...]) -> None:
    inputs = [t.contiguous() for t in _inputs(shape)]
    found, again = _all(inputs, None), [_all(inputs, None) for _ in range(5)]
    for ours, plain, *others in zip(found, _all(inputs, AttentionTiles()), *again, strict=True):
        assert ours is not None and plain is not None
        assert torch.isfinite(ours).all()
        assert all(torch.equal(ours, other) for other in others)  # type: ignore[arg-type]
        error = (ours.double() - plain.double()).norm() / plain.double().norm()
        assert error < 5e-3, error


@hopper
@pytest.mark.parametrize("N", [200, 512])
@pytest.mark.parametrize("tile", [(64, 64, 4), (64, 128, 8), (128, 64, 4), (128, 128, 8)])
def test_every_tile_gives_the_same(tile: tuple[int, int, int], N: int) -> None:
    """Also when not all keys fit in shared memory: at 512 and 128 x 128."""
    inputs = [t.contiguous() for t in _inputs((1, 5, N, 2, 32))]
    queries, keys, warps = tile
    forward = Tile(16 * warps, keys, warps, 2)
    override("hopper_attention", HopperTiles(forward, Tile(queries, keys, warps, 2)))
    try:
        found = _all(inputs, None)
    finally:
        override("hopper_attention", None)
    for ours, plain in zip(found, _all(inputs, AttentionTiles()), strict=True):
        assert ours is not None and plain is not None
        assert float((ours.double() - plain.double()).norm() / plain.double().norm()) < 5e-3


@hopper
@pytest.mark.parametrize("tile", [(64, 64, 4, 1), (128, 64, 4, 1), (64, 128, 4, 1)])
def test_one_pipeline_stage_is_never_used_in_16_bits(tile: tuple[int, ...]) -> None:
    inputs = [t.contiguous() for t in _inputs((1, 4, 256, 2, 8))]
    exact = reference.biased_attention(*(t.double() for t in inputs[:4]), inputs[4])
    out = _all(inputs, AttentionTiles(forward=Tile(*tile)))[0]
    assert out is not None
    assert float((out.double() - exact).norm() / exact.norm()) < 1e-2
