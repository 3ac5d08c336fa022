"""A planned sample as one run of bytes: arrays end to end in a slot, and tensors of a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from evofeed.base.shapes import Shaped

if TYPE_CHECKING:
    from torch import Tensor

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
    """Where the arrays of a sample are, and those that never leave the host."""

    arrays: tuple[PackedArray, ...]
    host: dict[str, np.ndarray]
    nbytes: int


def pack_sample(
    packed: Mapping[str, Shaped[np.ndarray, "*_"]], on_host: frozenset[str] = frozenset()
) -> PackedSample:
    """Where the arrays of a sample go, one after the other; those named stay on the host."""
    arrays, at = [], 0
    for name, value in packed.items():
        if name in on_host:
            continue
        arrays.append(PackedArray(name, value.dtype.str, value.shape, at))
        at += value.nbytes + -value.nbytes % _ALIGN
    host = {name: packed[name] for name in sorted(on_host & packed.keys())}
    return PackedSample(tuple(arrays), host, at)


def fill_slot(
    where: PackedSample, packed: Mapping[str, Shaped[np.ndarray, "*_"]], slot: memoryview
) -> None:
    """Copy the arrays into a slot of at least `where.nbytes` bytes."""
    for array in where.arrays:
        out = np.frombuffer(slot, np.uint8, array.nbytes, array.offset)
        out[:] = np.ascontiguousarray(packed[array.name]).reshape(-1).view(np.uint8)


def unpack_sample(where: PackedSample, data: Tensor) -> dict[str, Tensor]:
    """Views of a slot's bytes on any device, `u8[nbytes]`; the host's arrays as they are."""
    import torch  # the reader packs samples and must not pay for torch

    tensors = {
        array.name: data[array.offset : array.offset + array.nbytes]
        .view(torch.from_numpy(np.zeros(0, array.dtype)).dtype)
        .view(array.shape)
        for array in where.arrays
    }
    return tensors | {name: torch.from_numpy(value) for name, value in where.host.items()}
