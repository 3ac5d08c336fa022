"""Arguments of a call, flattened from dictionaries and lists, and comparison with later ones."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.graphs.recording import stream_id
from evofeed.kernels.runtime.backend import autocast_type
from evofeed.kernels.runtime.private_apis import tf32_allowed

EQUAL = (int, float, str, bytes, type(None), torch.dtype, torch.device)
"""Types compared by value; other arguments are compared by identity."""

Leaves = list[Any]


class Arguments:
    """The flattened arguments of one call.

    Attributes:
        leaves: tensors and constants inside the dictionaries, lists and tuples.
        tensors: the tensors among the leaves, by index.
        on_device: the tensors that are not on the CPU; all tensors if they all are.
    """

    def __init__(self, *containers: Any) -> None:
        self.leaves: Leaves = []
        self.structure = flatten(containers, self.leaves)
        self.tensors = {n: leaf for n, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)}
        tensors = list(self.tensors.values())
        self.on_device = [t for t in tensors if not t.is_cpu] or tensors

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def settings(self) -> Hashable:
        """Global settings that a recording depends on: autocast, TF32 and the stream."""
        device = self.on_device[0].device
        return autocast_type(device.type), tf32_allowed(), stream_id(device)

    @functools.cached_property
    def signature(self) -> Hashable:
        """A key that is equal for calls that can share a recording."""
        return self.structure, self.settings, *map(leaf_signature, self.leaves)


def flatten(value: Any, leaves: Leaves) -> Any:
    """The structure of nested containers; appends their elements to `leaves`."""
    if type(value) is dict:
        return dict, tuple((key, flatten(inner, leaves)) for key, inner in value.items())
    if type(value) in (list, tuple):
        return type(value), tuple(flatten(inner, leaves) for inner in value)
    leaves.append(value)
    return None


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """The nested containers of this structure, with these elements."""
    if structure is None:
        return next(leaves)
    container, parts = structure
    if container is dict:
        return {key: unflatten(inner, leaves) for key, inner in parts}
    return container(unflatten(inner, leaves) for inner in parts)


def leaf_signature(leaf: Any) -> Hashable:
    """A key that is equal for leaves that can replace each other."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    return type(leaf), leaf if isinstance(leaf, EQUAL) else None


class SameArgument:
    """Compares later arguments with this one; never equal for types without weak references."""

    def __init__(self, leaf: Any) -> None:
        self._leaf: Callable[[], Any] = lambda: None
        with contextlib.suppress(TypeError):
            self._leaf = weakref.ref(leaf)
        self._version = _version(leaf)

    def __call__(self, leaf: Any) -> bool:
        """True if `leaf` is this argument, unchanged."""
        return self._leaf() is leaf and self._version == _version(leaf)

    def gone(self) -> bool:
        """True if the argument was collected."""
        return self._leaf() is None


def _version(leaf: Any) -> tuple[int, int]:
    if not isinstance(leaf, Tensor):
        return 0, 0
    return leaf.data_ptr(), 0 if leaf.is_inference() else leaf._version
