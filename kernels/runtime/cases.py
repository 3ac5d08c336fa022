"""What an operator is tried with, declared once in its folder's `reference.py`.

Read by the operators' tests, by those of `torch.compile` and of repeated calls, by the sanitizer,
each of which takes the sizes it needs, and by the benchmarks.
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
    """Random tensors of one type on one device, and the sizes of MSA and chain.

    Attributes:
        sequences: S, of an MSA; also templates, and copies of a batch.
        residues: R.
    """

    sequences: int
    residues: int
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def __call__(self, *shape: int) -> Tensor:
        """Normally distributed."""
        return torch.randn(shape).to(self.device, self.dtype)

    def mask(self, *shape: int) -> Tensor:
        """A third is 0; in the tests' wide types too, as masks of a batch are."""
        return (torch.rand(shape) > 0.3).float().to(self.device)

    def weights(self, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
        """Norms about 1, matrices that keep the size of what they multiply, biases of size 1."""
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
        tensors: what has a gradient, by name.
        run: calls the operator, or its reference, with these tensors.
    """

    tensors: dict[str, Tensor]
    run: Callable[..., Tensor]

    def call(self, op: Op) -> Op:
        """The operator as a function of the tensors in their order."""
        return lambda *tensors: self.run(op, **dict(zip(self.tensors, tensors, strict=True)))


Maker = Callable[[Draw], Case]


class Cases(NamedTuple):
    """What one operator is tried with.

    Attributes:
        cases: with every optional input and without, narrow.
        wide: as wide as models have it; for numbers alone.
        timed: sizes and widths of models, which the benchmarks time.
    """

    cases: Mapping[str, Maker]
    wide: Mapping[str, Maker] = {}
    timed: Mapping[str, tuple[int, int, Maker]] = {}


class Operator(NamedTuple):
    """An operator, the same in plain PyTorch for any type, and its `Cases`."""

    op: Op
    reference: Op
    cases: Mapping[str, Maker]
    wide: Mapping[str, Maker]
    timed: Mapping[str, tuple[int, int, Maker]]


@cache
def declared() -> dict[str, Operator]:
    """Every operator that has a backward pass, by the name of its folder."""
    ops, found = "evofeed.kernels.ops", {}
    for folder in pkgutil.iter_modules(import_module(ops).__path__):
        reference = import_module(f"{ops}.{folder.name}.reference")
        if hasattr(reference, "CASES"):
            name = reference.__all__[-1]  # behind its weights
            op = getattr(import_module(f"{ops}.{folder.name}.op"), name)
            found[folder.name] = Operator(op, getattr(reference, name), *reference.CASES)
    return found
