"""A slot's bytes as tensors: a chain by the store's own decoders, or a packed sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Final

import numpy as np
import torch
from torch import Tensor

from evofeed.loader.features import ChainTensors
from evofeed.loader.packed import PackedArray, PackedSample, PackedSlab
from evofeed.loader.read_chain import Slab
from evofeed.protein.residues import GAP
from evofeed.store.inner import ChainDecoder, Codec, Origin, PackedColumn


def unpack_chain(
    slab: Slab,
    slot: np.ndarray,
    sizes: tuple[int, int, int, int],
    templates: tuple[int, ...],
    *,
    origin: Origin,
    device: torch.device,
    resolution: float,
    is_distillation: bool,
) -> ChainTensors:
    """The chain of a slot on a device, with only the chosen templates.

    Raises:
        ShardCorrupt: a column does not decode, although its checksum is right.
    """
    columns = {
        part.name: PackedColumn(
            Codec(part.codec), slot[part.offset : part.offset + part.nbytes].data
        )
        for part in slab.parts
    }
    has_structure = "all_atom_mask" in columns
    dims = np.array([*sizes, has_structure, 0, 0, 0], np.int32)
    columns["dims"] = PackedColumn(Codec.RAW, dims.view(np.uint8).data)
    decoder = ChainDecoder(columns, origin)

    def array(name: str) -> np.ndarray:
        values = decoder.array(name)
        return np.minimum(values, GAP) if name in ("msa", "template_aatype") else values

    return ChainTensors.of(
        array,
        decoder.deletion_matrix(),
        templates,
        with_structure=has_structure,
        device=device,
        resolution=resolution,
        is_distillation=is_distillation,
    )


_ROUND: Final = 1 << 25
"""Zeros on a GPU are so many bytes or a multiple: the allocator finds one of a size again."""


def unpack_sample(where: PackedSample, data: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Tensors of a slot's bytes on any device, `u8[nbytes]`; the host's arrays as they are.

    And the memory of the features of zeros and few numbers.
    """
    size = where.zero_nbytes + (-where.zero_nbytes % _ROUND if data.is_cuda else 0)
    zeros = torch.zeros(-(-size // 8), dtype=torch.int64, device=data.device)
    tensors = dict(_views(where.arrays, data))
    zeros.view(torch.int32).scatter_(0, tensors.pop("_at"), tensors.pop("_words"))
    tensors.update(_views(where.zeros, zeros.view(torch.uint8)))
    tensors.update((name, torch.from_numpy(value)) for name, value in where.host.items())
    return tensors, zeros


def bytes_beside(slab: PackedSlab) -> Tensor:
    """Bytes of a sample that no slot could hold, on the CPU."""
    return torch.frombuffer(bytearray(slab.beside), dtype=torch.uint8)


def _views(arrays: tuple[PackedArray, ...], data: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The arrays at their places in these bytes, by name."""
    for dtype, group in groupby(arrays, lambda array: array.dtype):
        members = list(group)
        kind = torch.from_numpy(np.zeros(0, dtype)).dtype
        values = data[members[0].offset : members[-1].offset + members[-1].nbytes].view(kind)
        parts = values.split([math.prod(array.shape) for array in members])  # type: ignore[no-untyped-call]
        for array, part in zip(members, parts, strict=True):
            yield array.name, part if len(array.shape) == 1 else part.view(array.shape)
