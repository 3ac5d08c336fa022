"""What tests of repeated calls share: a kernel on a CPU, launched by address, and comparisons."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.kernels.runtime import launching, prepared, torch_library
from evofeed.kernels.runtime.prepared import Prepared, kind_of


@contextmanager
def as_written() -> Iterator[None]:
    """Every call runs its own Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_library, "kind_of", lambda *call: None)
        yield


def written_calls() -> list[Callable[..., Any]]:
    return [call for found in prepared._known for call in found.values() if type(call) is not int]


def same_bits(ours: Sequence[Tensor | None], plain: Sequence[Tensor | None]) -> None:
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a, b)


class AddOne:
    """A kernel that writes x + 1 to y, both given by address, and its launcher."""

    __name__ = "add_one"
    arg_names = ("x", "y", "n")
    function, packed_metadata = 0, ()

    def __getitem__(self, grid: Any) -> Any:
        return lambda x, y, n, **meta: (self.run(*(0,) * 9, x.data_ptr(), y.data_ptr(), n), self)[1]

    @staticmethod
    def run(*arguments: Any) -> None:
        x, y, n = arguments[9:]
        source, to = ((ctypes.c_float * n).from_address(at) for at in (x, y))
        for i in range(n):
            to[i] = source[i] + 1


ADD_ONE = AddOne()


def one_more(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    launching.launch(ADD_ONE, (1,), (x, y, x.numel()), {})
    return y


def run(call: Prepared, tensors: list[Any], *constants: Any) -> Sequence[Tensor | None]:
    with torch.no_grad():
        return call(kind_of(tensors, *constants), tensors, *constants)
