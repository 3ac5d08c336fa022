"""Triangle multiplication of wide pairs by cuEquivariance's kernels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.kernels.ops.triangle_multiplication import cuequivariance, reference
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights

GPU = torch.cuda.is_available()


def drawn(C: int, R: int, device: str, biases: bool) -> tuple[Tensor, TriangleWeights, Tensor]:
    torch.manual_seed(C)

    def of(*shape: int) -> Tensor:
        return (torch.randn(shape, device=device) * 0.1).requires_grad_()

    def layer(rows: int) -> list[Any]:
        return [of(rows, C), of(rows) if biases else None]

    norms = [of(C), of(C)], [of(C), of(C)]
    weights = TriangleWeights(
        *norms[0], *layer(C), *layer(C), *layer(C), *layer(C), *norms[1], *layer(C), *layer(C)
    )
    mask = (torch.rand(2, R, R, device=device) > 0.2).float()
    return of(2, R, R, C), weights, mask


def stand_in(x: Tensor, direction: str, *, mask: Tensor | None, **given: Any) -> Tensor:
    """The operator in PyTorch, by the documentation of its arguments."""
    assert given.pop("precision") == "bfloat16"
    halves = {
        name: (None, None) if value is None else value.chunk(2)
        for name, value in given.items() if "_in_" in name and not name.startswith("norm")
    }  # fmt: skip
    weights = TriangleWeights(
        given["norm_in_weight"], given["norm_in_bias"],
        *(halves[f"{of}_in_{kind}"][side] for side in (0, 1) for of in "pg"
          for kind in ("weight", "bias")),
        given["norm_out_weight"], given["norm_out_bias"],
        given["p_out_weight"], given["p_out_bias"], given["g_out_weight"], given["g_out_bias"],
    )  # fmt: skip
    return reference.triangle_multiplication(
        x, weights, outgoing=direction == "outgoing", mask=mask, eps=given["eps"]
    )


@pytest.mark.parametrize("outgoing", [True, False])
@pytest.mark.parametrize("biases", [True, False])
def test_it_is_given_what_the_operator_is(
    monkeypatch: pytest.MonkeyPatch, outgoing: bool, biases: bool
) -> None:
    monkeypatch.setattr(cuequivariance, "operator", lambda: stand_in)
    monkeypatch.setattr(cuequivariance, "serves", lambda z, weights: True)
    z, weights, mask = drawn(24, 5, "cpu", biases)  # a width that no kernel of ours takes
    drop = torch.rand(2, 5, 24).round() * 2
    given: dict[str, Any] = {
        "outgoing": outgoing,
        "mask": mask,
        "residual": True,
        "drop_mask": drop,
    }
    expected = reference.triangle_multiplication(z, weights, **given)
    torch.testing.assert_close(triangle_multiplication(z, weights, **given), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not (GPU and find_spec("cuequivariance_torch")), reason="on a GPU, installed")
@pytest.mark.parametrize("C", [256, 384])
def test_its_kernels_agree_with_plain_pytorch(C: int) -> None:
    z, weights, mask = drawn(C, 96, "cuda", biases=True)
    wanted = [z, *(p for p in weights.parts() if p is not None)]
    found = {}
    for name, op in (
        ("theirs", triangle_multiplication),
        ("plain", reference.triangle_multiplication),
    ):
        with torch.autocast("cuda", torch.bfloat16, enabled=name == "theirs"):
            assert name == "plain" or cuequivariance.serves(z, weights)
            out = op(z, weights, outgoing=True, mask=mask, residual=True)
        grads = torch.autograd.grad(out.float().square().mean(), wanted)
        found[name] = [out.detach(), *grads]
    for theirs, plain in zip(found["theirs"], found["plain"], strict=True):
        assert theirs.dtype is plain.dtype
        assert (theirs - plain).norm() < 0.03 * plain.norm()
