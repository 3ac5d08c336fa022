"""Tensors of a slot's bytes: of a chain, by the store's decoders, or of a packed sample."""

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
    """The chain of a slot on a device, with only the selected templates.

    Raises:
        ShardCorrupt: a column cannot be decoded although its checksum is right.
    """
    columns = {
        column.name: PackedColumn(
            Codec(column.codec), slot[column.offset : column.offset + column.nbytes].data
        )
        for column in slab.columns
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
"""Zeroed memory on a GPU is a multiple of this many bytes, so that the allocator reuses blocks."""


def unpack_sample(layout: PackedSample, data: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Tensors of a slot's bytes (`u8[nbytes]`, any device), and the memory of the sparse ones.

    Arrays of the host become CPU tensors.
    """
    size = layout.zero_nbytes + (-layout.zero_nbytes % _ROUND if data.is_cuda else 0)
    zeros = torch.zeros(-(-size // 8), dtype=torch.int64, device=data.device)
    tensors = dict(_views(layout.arrays, data))
    zeros.view(torch.int32).scatter_(0, tensors.pop("_index"), tensors.pop("_words"))
    tensors.update(_views(layout.zeros, zeros.view(torch.uint8)))
    tensors.update((name, torch.from_numpy(value)) for name, value in layout.host.items())
    return tensors, zeros


def overflow_tensor(slab: PackedSlab) -> Tensor:
    """Bytes of a sample that did not fit into its slot, on the CPU."""
    return torch.frombuffer(bytearray(slab.overflow), dtype=torch.uint8)


def _views(arrays: tuple[PackedArray, ...], data: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Views of the arrays in these bytes, by name."""
    for dtype, group in groupby(arrays, lambda array: array.dtype):
        members = list(group)
        kind = torch.from_numpy(np.zeros(0, dtype)).dtype
        values = data[members[0].offset : members[-1].offset + members[-1].nbytes].view(kind)
        parts = values.split([math.prod(array.shape) for array in members])  # type: ignore[no-untyped-call]
        for array, part in zip(members, parts, strict=True):
            yield array.name, part if len(array.shape) == 1 else part.view(array.shape)
