"""Test inputs of an operator, declared once in its folder's `reference.py`.

The operators' tests, those of `torch.compile` and of repeated calls, the sanitizer and the
benchmarks read them, each with the sizes it needs.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor

Op = Callable[..., Tensor]


@dataclass(frozen=True)
class Draw:
    """Random tensors of one type on one device, for an MSA and chain of these sizes.

    Attributes:
        sequences: S, sequences of an MSA; also templates, and copies of a batch.
        residues: R, residues of a chain.
    """

    sequences: int
    residues: int
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def __call__(self, *shape: int) -> Tensor:
        """Normally distributed numbers."""
        return torch.randn(shape).to(self.device, self.dtype)

    def mask(self, *shape: int) -> Tensor:
        """A mask, a third of it 0; in float32 for all types, as masks of a batch are."""
        return (torch.rand(shape) > 0.3).float().to(self.device)

    def weights(self, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
        """Norm weights about 1, matrices that keep the scale of their input, biases of scale 1."""
        drawn = {}
        for name, shape in shapes.items():
            if "norm" in name:
                values = 0.1 * torch.randn(shape) + (0.0 if "bias" in name else 1.0)
            else:
                values = torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 1.0)
            drawn[name] = values.to(self.device, self.dtype)
        return drawn


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
        tensors: inputs that have a gradient, by name.
        run: calls the operator, or its reference, with these tensors.
    """

    tensors: dict[str, Tensor]
    run: Callable[..., Tensor]

    def call(self, op: Op) -> Op:
        """The operator as a function of the tensors in their order."""
        return lambda *tensors: self.run(op, **dict(zip(self.tensors, tensors, strict=True)))


Maker = Callable[[Draw], Case]


class Cases(NamedTuple):
    """Test inputs of one operator.

    Attributes:
        cases: narrow ones, with every optional input and with none.
        wide: as wide as in models, to compare results and gradients only.
        timed: sizes and widths of models, for the benchmarks.
    """

    cases: Mapping[str, Maker]
    wide: Mapping[str, Maker] = {}
    timed: Mapping[str, tuple[int, int, Maker]] = {}


class Operator(NamedTuple):
    """An operator, its reference in plain PyTorch for any type, and its `Cases`."""

    op: Op
    reference: Op
    cases: Mapping[str, Maker]
    wide: Mapping[str, Maker]
    timed: Mapping[str, tuple[int, int, Maker]]


@cache
def declared() -> dict[str, Operator]:
    """Every operator that has a backward pass, by the name of its folder."""
    ops, operators = "evofeed.kernels.ops", {}
    for folder in pkgutil.iter_modules(import_module(ops).__path__):
        reference = import_module(f"{ops}.{folder.name}.reference")
        if hasattr(reference, "CASES"):
            name = reference.__all__[-1]  # behind its weights
            op = getattr(import_module(f"{ops}.{folder.name}.op"), name)
            operators[folder.name] = Operator(op, getattr(reference, name), *reference.CASES)
    return operators
