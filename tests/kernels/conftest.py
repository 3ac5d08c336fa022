"""Kernels run on the GPU where there is one, else under Triton's interpreter.

`three_way` is the numerics test of every op: our error against float64 beside
PyTorch's own in the same dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from tests.kernels.interpreter import quick_interpreter
from torch import Tensor

from evofeed.kernels.runtime.backend import interpreted
from evofeed.kernels.runtime.tiles import override

# Ours may be at most this many times PyTorch's own error in the same dtype, plus
# a floor for results that PyTorch happens to hit exactly.
FACTOR = 1.5
FLOOR = {torch.float32: 1e-6, torch.bfloat16: 2e-4, torch.float16: 2e-5}

Op = Callable[..., "Tensor | Sequence[Tensor]"]


def relative_error(value: Tensor, exact: Tensor) -> float:
    """||value - exact|| / ||exact||; infinite where the value is not finite."""
    value = value.double()
    if not torch.isfinite(value).all():
        return float("inf")
    scale = exact.norm().clamp_min(1e-30)
    return float((value - exact).norm() / scale)


def _run(op: Op, inputs: Sequence[Tensor], grads_of: Sequence[int]) -> list[Tensor]:
    leaves = [x.detach().clone() for x in inputs]
    for index in grads_of:
        leaves[index].requires_grad_()
    out = op(*leaves)
    outs = [out] if isinstance(out, Tensor) else list(out)
    weights = [torch.sin(torch.arange(o.numel(), device=o.device)).reshape(o.shape) for o in outs]
    loss = sum((o.double() * w).sum() for o, w in zip(outs, weights, strict=True))
    assert isinstance(loss, Tensor)
    grads = torch.autograd.grad(loss, [leaves[index] for index in grads_of])
    return [o.detach() for o in outs] + list(grads)


def _three_way(
    fused: Op,
    reference: Op,
    inputs: Sequence[Tensor],
    grads_of: Sequence[int],
    factor: float = FACTOR,
) -> None:
    """Outputs and gradients of `fused` against `reference` in float64 and in the inputs' dtype.

    Args:
        fused: the op under test.
        reference: the same op in plain PyTorch, for any dtype.
        inputs: tensors; floating ones are cast to float64 for the exact result.
        grads_of: indices of the inputs whose gradients are compared.
        factor: how many times PyTorch's error ours may be.
    """
    exact_inputs = [x.double() if x.is_floating_point() else x for x in inputs]
    exact = _run(reference, exact_inputs, grads_of)
    plain = _run(reference, inputs, grads_of)
    ours = _run(fused, inputs, grads_of)
    dtypes = [x.dtype for x in inputs if x.is_floating_point()]
    floor = max(FLOOR[dtype] for dtype in dtypes)
    for index, (a, b, c) in enumerate(zip(ours, plain, exact, strict=True)):
        assert a.shape == c.shape and a.dtype == b.dtype, (index, a.shape, a.dtype, b.dtype)
        mine, theirs = relative_error(a, c), relative_error(b, c)
        assert mine <= factor * theirs + floor, f"result {index}: {mine:.2e} vs torch {theirs:.2e}"


@pytest.fixture(scope="session")
def three_way() -> Callable[..., None]:
    """The check itself, see `_three_way`."""
    return _three_way


@pytest.fixture(autouse=True)
def kernels_run() -> Iterator[None]:
    """CPU tensors go through the interpreter in these tests, and nowhere else."""
    torch.manual_seed(0)
    override("small_norm", 0)
    with interpreted(), quick_interpreter():
        yield
    override("small_norm", None)


@pytest.fixture(scope="session")
def half(device: str) -> torch.dtype:
    """The 16-bit type to test: Triton's interpreter truncates bfloat16 and cannot multiply it."""
    return torch.bfloat16 if device == "cuda" else torch.float16


@pytest.fixture(scope="session")
def device() -> str:
    """The device that the kernels run on."""
    return "cuda" if torch.cuda.is_available() else "cpu"
