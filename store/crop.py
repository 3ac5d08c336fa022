"""Chosen features of a chain within a window of residues and a set of MSA rows.

Of alignments the rows wanted are unpacked; all other columns are decoded whole, and cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evofeed.store.decode import FEATURES, ChainDecoder

_SPARSE = frozenset({"deletion_row", "deletion_column", "deletion_count"})


def crop_features(
    decoder: ChainDecoder,
    columns: Sequence[str],
    residues: slice | None,
    rows: slice | Sequence[int] | np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Arrays of `columns`, those of an absent structure left out; see `Dataset.read`.

    Raises:
        ValueError, IndexError: the window has steps; a row is not there.
        ShardCorrupt: bytes do not decode.
    """
    length, depth = decoder.dims["L"], decoder.dims["N"]
    start, stop, step = (residues or slice(None)).indices(length)
    if step != 1:
        raise ValueError("a residue window has step 1")
    stop = max(start, stop)
    taken = np.arange(depth)[rows if rows is not None else slice(None)]
    whole = stop - start == length and np.array_equal(taken, np.arange(depth))
    cropped: dict[str, np.ndarray] = {}
    sparse = not whole and any(name in _SPARSE for name in columns)  # else they are as stored
    if sparse or "deletion_matrix" in columns:
        cropped["deletion_matrix"] = decoder.deletion_matrix(taken)[:, start:stop]
    if sparse:
        cropped |= _renumbered(cropped["deletion_matrix"])
    for name in columns:
        absent = not decoder.dims["has_structure"] and name.startswith("all_atom_")
        if name not in cropped and not absent:
            cropped[name] = _crop(decoder, name, taken, start, stop)
    return {name: cropped[name] for name in columns if name in cropped}


def _crop(decoder: ChainDecoder, name: str, taken: np.ndarray, start: int, stop: int) -> np.ndarray:
    """One feature of the table."""
    feature = FEATURES[name]
    if feature.dtype == "str":
        texts = decoder.species() if name == "msa_species" else decoder.meta()[name]
        value = np.array(texts, dtype=np.str_)
    elif name == "msa":
        return decoder.msa_rows(taken)[:, start:stop]
    else:
        value = decoder.array(name)
    for axis, dim in enumerate(feature.dims):
        if dim == "L":
            value = value[(slice(None),) * axis + (slice(start, stop),)]
        elif dim == "N":
            value = value[(slice(None),) * axis + (taken,)]
    return value


def _renumbered(dense: np.ndarray) -> dict[str, np.ndarray]:
    """The sparse deletions of a crop, from the dense ones."""
    row, column = np.nonzero(dense)
    return {
        "deletion_row": row.astype(np.int32),
        "deletion_column": column.astype(np.int32),
        "deletion_count": dense[row, column],
    }
