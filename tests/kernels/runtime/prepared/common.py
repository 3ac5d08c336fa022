"""What tests of repeated calls share: a kernel on a CPU, launched by address, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.kernels.runtime import prepared, torch_library
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


def run(call: Prepared, tensors: list[Any], *constants: Any) -> Sequence[Tensor | None]:
    with torch.no_grad():
        return call(kind_of(tensors, *constants), tensors, *constants)
