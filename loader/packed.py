"""Packs a planned sample of a complex or an entry into a slot, for one copy to the device.

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
    """Layout of one array in a slot."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class PackedSample(NamedTuple):
    """Layout of a sample's features, and the arrays that stay on the host.

    Arrays of one dtype are contiguous.
    """

    arrays: tuple[PackedArray, ...]
    """In the slot: dense features, and the indices and values of sparse ones."""
    zeros: tuple[PackedArray, ...]
    """In zeroed memory of the device: sparse features."""
    host: dict[str, np.ndarray]
    nbytes: int
    zero_nbytes: int


def pack_sample(laid: Laid) -> tuple[PackedSample, list[np.ndarray]]:
    """The layout of a sample, and the arrays of the slot."""
    sparse = {name: value for name, value in laid.items() if isinstance(value, Sparse)}
    zeros, zero_nbytes = _arrange(sparse)
    index, words = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for array in zeros:
        array_index, array_words = sparse[array.name].words()
        index.append(array_index + array.offset // 4)
        words.append(array_words)
    host = {name: value.value for name, value in laid.items() if isinstance(value, OnHost)}
    dense: dict[str, Any] = {
        "_index": np.concatenate(index),
        "_words": np.concatenate(words),
        **{name: laid[name] for name in laid if name not in sparse and name not in host},
    }
    arrays, nbytes = _arrange(dense)
    values = [dense[array.name] for array in arrays]
    return PackedSample(arrays, zeros, host, nbytes, zero_nbytes), values


def _arrange(values: Mapping[str, Any]) -> tuple[tuple[PackedArray, ...], int]:
    """Layout of arrays, sorted by dtype and name, and their bytes in total."""
    arrays, offset = [], 0
    keys = sorted((np.dtype(value.dtype).str, name) for name, value in values.items())
    for dtype, group in groupby(keys, lambda key: key[0]):
        offset += -offset % _ALIGN
        for _, name in group:
            arrays.append(PackedArray(name, dtype, values[name].shape, offset))
            offset += arrays[-1].nbytes
    return tuple(arrays), offset


def fill_slot(layout: PackedSample, values: Iterable[np.ndarray], slot: memoryview) -> None:
    """Copies the arrays into a slot of at least `layout.nbytes` bytes."""
    for array, value in zip(layout.arrays, values, strict=True):
        out = np.frombuffer(slot, np.uint8, array.nbytes, array.offset)
        out[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)


class PackedSlab(NamedTuple):
    """Content of a slot: a sample; `overflow` has the bytes if the slot was too small."""

    layout: PackedSample
    metadata: Any
    """Of a complex its `AssemblyInfo`, of an entry its id and chain names."""
    stop: int
    start: int = 0
    seconds: float = 0.0
    overflow: bytes = b""

    @classmethod
    def of(cls, laid: Laid, metadata: Any, slot: memoryview) -> PackedSlab:
        """Writes a sample into a slot, or into `overflow` if the slot is too small."""
        layout, values = pack_sample(laid)
        fits = layout.nbytes <= len(slot)
        data = slot if fits else memoryview(bytearray(layout.nbytes))
        fill_slot(layout, values, data)
        return cls(layout, metadata, layout.nbytes, overflow=b"" if fits else bytes(data))
