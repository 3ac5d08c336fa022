"""`torch.compile` of small operators: hundreds of launches of small kernels become a handful.

A run with CUDA graphs compiles the structure module's layers, the update of its frames, the losses
over pairs of atoms, pair features of templates, and the attention of every pair to its templates.
Other runs execute them eagerly.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

P = ParamSpec("P")
R = TypeVar("R")

_PARTS = ("ipa", "transition", "bb_update", "angle_resnet")
_EXPECTED = (
    "TensorFloat32 tensor cores",  # float32 was chosen
    "Dynamo detected a call to a `functools.lru_cache`",  # it caches constants
    "The .grad attribute of a Tensor that is not a leaf",  # the compiler inspects its inputs
    r"\s*Online softmax is disabled",  # two passes over few numbers do not matter
)
"""Compiler warnings to ignore, as regular expressions of their beginnings."""
_on = False


def compile_structure(structure_module: nn.Module) -> None:
    """Compiles the layers of a structure module, and from now on `compilable` functions too.

    Calls are compiled for their static shapes, those of the crop size. Call them with other shapes
    under `torch.compiler.set_stance("force_eager")`.
    """
    global _on
    _on = True
    for message in _EXPECTED:
        warnings.filterwarnings("ignore", message=message)
    for name in _PARTS:
        structure_module.get_submodule(name).compile(dynamic=False)


def compilable(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function to be compiled at its first call after `compile_structure`."""
    compiled: list[Any] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _on:
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=False))
        result: R = compiled[0](*args, **kwargs)
        return result

    return call
