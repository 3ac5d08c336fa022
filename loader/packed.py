"""A sample of a complex or an entry in a slot, as the host decided it: a device takes one copy.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.loader.views.laid import Laid, OnHost, Sparse

_ALIGN: Final = 16


class PackedArray(NamedTuple):
    """One array in a slot."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class PackedSample(NamedTuple):
    """Where the features of a sample are, and arrays that never leave the host.

    Those of a dtype stand end to end.
    """

    arrays: tuple[PackedArray, ...]
    """In the slot: features, and where numbers stand among the zeros."""
    zeros: tuple[PackedArray, ...]
    """Elsewhere on the device: features of zeros and few numbers."""
    host: dict[str, np.ndarray]
    nbytes: int
    zero_nbytes: int


def pack_sample(laid: Laid) -> tuple[PackedSample, list[np.ndarray]]:
    """Where the features of a sample go, and the arrays of the slot."""
    sparse = {name: value for name, value in laid.items() if isinstance(value, Sparse)}
    zeros, zero_nbytes = _places(sparse)
    words = [(sparse[one.name].words(), one.offset // 4) for one in zeros]
    host = {name: value.value for name, value in laid.items() if isinstance(value, OnHost)}
    sent: dict[str, Any] = {
        "_at": np.concatenate([np.zeros(0, np.int64)] + [at + start for (at, _), start in words]),
        "_words": np.concatenate([np.zeros(0, np.int32)] + [value for (_, value), _ in words]),
        **{name: laid[name] for name in laid if name not in sparse and name not in host},
    }
    arrays, nbytes = _places(sent)
    values = [sent[one.name] for one in arrays]
    return PackedSample(arrays, zeros, host, nbytes, zero_nbytes), values


def _places(values: Mapping[str, Any]) -> tuple[tuple[PackedArray, ...], int]:
    """Places of arrays, dtype by dtype, and the bytes of all."""
    arrays, at = [], 0
    named = sorted((np.dtype(value.dtype).str, name) for name, value in values.items())
    for dtype, group in groupby(named, lambda pair: pair[0]):
        at += -at % _ALIGN
        for _, name in group:
            arrays.append(PackedArray(name, dtype, values[name].shape, at))
            at += arrays[-1].nbytes
    return tuple(arrays), at


def fill_slot(where: PackedSample, values: Iterable[np.ndarray], slot: memoryview) -> None:
    """Copy the arrays into a slot of at least `where.nbytes` bytes."""
    for array, value in zip(where.arrays, values, strict=True):
        out = np.frombuffer(slot, np.uint8, array.nbytes, array.offset)
        out[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)


class PackedSlab(NamedTuple):
    """What a slot holds of a sample; `beside` has the bytes where a slot was too small."""

    where: PackedSample
    about: Any
    """What is known of it besides its features."""
    stop: int
    start: int = 0
    seconds: float = 0.0
    beside: bytes = b""

    @classmethod
    def of(cls, laid: Laid, about: Any, slot: memoryview) -> PackedSlab:
        """A sample, written into a slot, or beside one that is too small."""
        where, values = pack_sample(laid)
        beside = where.nbytes > len(slot)
        data = memoryview(bytearray(where.nbytes)) if beside else slot
        fill_slot(where, values, data)
        return cls(where, about, where.nbytes, beside=bytes(data) if beside else b"")
