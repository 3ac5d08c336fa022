"""`torch.compile` of small operators: hundreds of launches of few numbers become a handful.

A run that records its steps compiles the structure module's layers, the update of its frames,
those losses that make a number for each pair of atoms, features of pairs of templates and the
attention of every pair to its templates. All else runs them as they are written.
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
    "TensorFloat32 tensor cores",  # in a float32 run it is chosen
    "Dynamo detected a call to a `functools.lru_cache`",  # it holds constants
    "The .grad attribute of a Tensor that is not a leaf",  # the compiler looks at its inputs
    r"\s*Online softmax is disabled",  # it takes two passes over few numbers
)
"""What the compiler warns of, as regular expressions of beginnings."""
_on = False


def compile_structure(structure_module: nn.Module) -> None:
    """Compiles the layers of a structure module, and from now on `compilable` functions too.

    Calls are compiled for their sizes: for crops of one size. Others go under
    `torch.compiler.set_stance("force_eager")`.
    """
    global _on
    _on = True
    for message in _EXPECTED:
        warnings.filterwarnings("ignore", message=message)
    for name in _PARTS:
        structure_module.get_submodule(name).compile(dynamic=False)


def compilable(function: Callable[P, R]) -> Callable[P, R]:
    """A function that is compiled once `compile_structure` was called."""
    compiled: list[Any] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _on:
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=False))
        made: R = compiled[0](*args, **kwargs)
        return made

    return call
