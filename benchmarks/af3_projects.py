"""What a whole training step or prediction takes of a project: model, batches, optimizer."""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evofeed.loader import EntryConfig
from evofeed.trainer.config import OptimConfig


class Settings(dict[str, Any]):
    """Values by name or attribute, as a project's configuration file gives them."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Unused(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that a model imports and does not call: every name an empty class."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """A module of this loader, if the package is one of these."""
        if any(f"{name}.".startswith(f"{package}.") for package in self.packages):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Names are made as they are asked for."""

        def made(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            vars(module)[name] = type(name, (), {})
            return vars(module)[name]

        vars(module).update(__getattr__=made, __version__="0")


def given(values: dict[str, dict[str, Any]]) -> None:
    """Modules that stand in get the names that are called, by module."""
    for name, names in values.items():
        vars(importlib.import_module(name)).update(names)


def _truncated(a: float, b: float, loc: float, scale: float, size: Any) -> np.ndarray:
    drawn = torch.nn.init.trunc_normal_(torch.empty(size), loc, scale, a * scale, b * scale)
    return drawn.double().numpy()


TRUNCATED = {"truncnorm": types.SimpleNamespace(std=lambda **_: 0.8796256610342398, rvs=_truncated)}
"""SciPy's normal distribution between -2 and 2, as first weights are drawn."""


class Project:
    """A project's own training step and prediction: `options.predicts` says which.

    Attributes:
        parts: modules of a step that are timed apart, those that every model of it has.
        borders: the module with which a prediction's trunk ends, and that with which its
            confidence begins; between them is sampling.
        unused: packages that its model imports and does not call.
    """

    parts: tuple[str, ...] = ()
    borders: tuple[str, str]
    unused: tuple[str, ...] = ()

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        sys.path.append(str(options.projects))
        sys.meta_path.insert(0, Unused(*self.unused))

    def first(self) -> nn.Module:
        """The model on the CPU, in training mode; the same at every call."""
        raise NotImplementedError

    def switch(self, model: Any, way: str) -> None:
        """The project's own recomputing, and its switch for cuEquivariance."""

    def entries(self, tokens: int) -> EntryConfig:
        """What the loader makes of an entry."""
        raise NotImplementedError

    def batch(self, loaded: dict[str, Any], tokens: int) -> dict[str, Any] | None:
        """The dict that its step takes; None if the entry has fewer tokens."""
        raise NotImplementedError

    def loss(self, model: Any, batch: dict[str, Any]) -> Tensor:
        """Forward pass and losses of a step, under the autocast that is on."""
        raise NotImplementedError

    def predict(self, model: Any, batch: dict[str, Any], recycles: int, steps: int) -> Tensor:
        """A prediction's samples, of so many denoising steps: `[S, atoms, 3]`, no padding."""
        raise NotImplementedError

    def optimizer(self, model: Any) -> Optimizer:
        """Its own clipping, optimizer and moving average."""
        raise NotImplementedError

    def rates(self, model: Any) -> OptimConfig:
        """The same for evofeed's flat buffers."""
        raise NotImplementedError


class Optimizer:
    """Clipping by the norm of all gradients, an optimizer, its rates, a moving average."""

    def __init__(self, model: Any, optimizer: Any, rates: Any, max_norm: float) -> None:
        self.model, self.adam, self.rates, self.max_norm = model, optimizer, rates, max_norm

    def backward(self, loss: Tensor) -> None:
        self.adam.zero_grad(set_to_none=True)
        loss.backward()

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)

    def step(self) -> None:
        self.clip()
        self.adam.step()
        self.rates.step()
        self.average()

    def average(self) -> None:
        """The moving average takes the new weights."""


def repeated(stacks: dict[Any, int]) -> None:
    """Lists of one block get so many: a block's first weights take a project up to a second."""
    for blocks, count in stacks.items():
        blocks.extend(copy.deepcopy(blocks[0]) for _ in range(count - 1))


def without_zeros(model: nn.Module) -> nn.Module:
    """Matrices of zeros are small numbers: a first model would hide what comes before them."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and not parameter.any():
                parameter.normal_(std=0.02)
    return model.train()


def deepened(
    batch: dict[str, Any], names: tuple[str, ...], rows: int, drawn: int, axis: int
) -> None:
    """The drawn rows of an alignment again and again, as deep ones are."""
    again = torch.arange(rows, device=batch["msa"].device) % drawn
    batch |= {name: batch[name].index_select(axis, again) for name in names}
