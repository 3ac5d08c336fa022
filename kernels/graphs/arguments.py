"""Arguments of a call, out of the dictionaries and lists they come in, and which are the same."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.graphs.recording import stream_number
from evofeed.kernels.runtime.backend import autocast_type
from evofeed.kernels.runtime.private_apis import tf32_allowed

EQUAL = (int, float, str, bytes, type(None), torch.dtype, torch.device)
"""Constants that are the same if they are equal; other objects must be the same ones."""

Leaves = list[Any]


class Arguments:
    """Of one call.

    Attributes:
        leaves: tensors and constants, out of the dictionaries, lists and tuples they are in.
        tensors: those of the leaves that are, by their number.
        on_device: those that are not on the CPU, if any are not.
    """

    def __init__(self, *containers: Any) -> None:
        self.leaves: Leaves = []
        self.shape = taken_apart(containers, self.leaves)
        self.tensors = {n: leaf for n, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)}
        every = list(self.tensors.values())
        self.on_device = [t for t in every if not t.is_cpu] or every

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def settings(self) -> Hashable:
        """What else a call depends on."""
        device = self.on_device[0].device
        return autocast_type(device.type), tf32_allowed(), stream_number(device)

    @functools.cached_property
    def kind(self) -> Hashable:
        """What calls must have in common to share a recording."""
        return self.shape, self.settings, *map(kind_of, self.leaves)


def taken_apart(value: Any, leaves: Leaves) -> Any:
    """The shape of nested containers, and what is in them behind `leaves`."""
    if type(value) is dict:
        return dict, tuple((key, taken_apart(inner, leaves)) for key, inner in value.items())
    if type(value) in (list, tuple):
        return type(value), tuple(taken_apart(inner, leaves) for inner in value)
    leaves.append(value)
    return None


def put_together(shape: Any, leaves: Iterator[Any]) -> Any:
    """The containers of a shape, from what is in them."""
    if shape is None:
        return next(leaves)
    kind, parts = shape
    if kind is dict:
        return {key: put_together(inner, leaves) for key, inner in parts}
    return kind(put_together(inner, leaves) for inner in parts)


def kind_of(leaf: Any) -> Hashable:
    """What a leaf must have in common with one that it stands for."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    return type(leaf), leaf if isinstance(leaf, EQUAL) else None


class Same:
    """Tells whether a later argument is this one, unchanged.

    Of what has no weak references it never does.
    """

    def __init__(self, leaf: Any) -> None:
        self._leaf: Callable[[], Any] = lambda: None
        with contextlib.suppress(TypeError):
            self._leaf = weakref.ref(leaf)
        self._mark = _mark(leaf)

    def __call__(self, leaf: Any) -> bool:
        """Whether it is."""
        return self._leaf() is leaf and self._mark == _mark(leaf)

    def gone(self) -> bool:
        """Whether nobody has it any more."""
        return self._leaf() is None


def _mark(leaf: Any) -> tuple[int, int]:
    if not isinstance(leaf, Tensor):
        return 0, 0
    return leaf.data_ptr(), 0 if leaf.is_inference() else leaf._version
