"""Packed columns of a slot to the tensors of a `ChainTensors`, by the store's own decoders."""

from __future__ import annotations

import numpy as np
import torch

from evofeed.loader.features import ChainTensors
from evofeed.loader.read_chain import Slab
from evofeed.protein.residues import GAP
from evofeed.store.inner import ChainDecoder, Codec, PackedColumn, Place


def unpack_chain(
    slab: Slab,
    slot: np.ndarray,
    sizes: tuple[int, int, int, int],
    templates: tuple[int, ...],
    *,
    place: Place,
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
    known = "all_atom_mask" in columns
    dims = np.array([*sizes, known, 0, 0, 0], np.int32)
    columns["dims"] = PackedColumn(Codec.RAW, dims.view(np.uint8).data)
    decoder = ChainDecoder(columns, place)

    def array(name: str) -> np.ndarray:
        values = decoder.array(name)
        return np.minimum(values, GAP) if name in ("msa", "template_aatype") else values

    return ChainTensors.of(
        array,
        decoder.deletion_matrix(),
        templates,
        with_structure=known,
        device=device,
        resolution=resolution,
        is_distillation=is_distillation,
    )
