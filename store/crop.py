"""Chosen features of a chain within a window of residues and a set of MSA rows.

Alignments are unpacked within the window alone, compiled (`store/msa_kernels.py`); all other
columns are decoded whole (`store/decode.py`) and cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evofeed.base.shapes import UInt8
from evofeed.store.decode import FEATURES, ChainDecoder
from evofeed.store.layout import Codec
from evofeed.store.msa_codec import row_nbytes

_SPARSE = frozenset({"deletion_row", "deletion_column", "deletion_count"})
_MSA5 = frozenset({"msa", "template_aatype"})


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
        texts = _texts(decoder, name)
        return texts[taken] if feature.dims[0] == "N" else texts
    if name in _MSA5 and decoder.columns[name].codec == Codec.MSA5:
        return crop_codes(decoder, name, taken, start, stop)
    value = decoder.array(name)
    for axis, dim in enumerate(feature.dims):
        if dim == "L":
            value = value[(slice(None),) * axis + (slice(start, stop),)]
        elif dim == "N":
            value = value[(slice(None),) * axis + (taken,)]
    return value


def crop_codes(
    decoder: ChainDecoder, name: str, taken: np.ndarray, start: int, stop: int
) -> UInt8[np.ndarray, "R W"]:
    """The alignment's rows `taken`, or all templates' codes, within the window."""
    from evofeed.store import msa_kernels  # numba takes half a second

    total = decoder.dims["N" if name == "msa" else "T"]
    payload = decoder.raw(name).payload
    words = row_nbytes(decoder.dims["L"]) // 8
    if len(payload) != 8 * words * total:
        raise decoder.place.corrupt(f"column {name}: {len(payload)} bytes are not {total} rows")
    stored = decoder.inverse()[taken] if name == "msa" else np.arange(total)
    out = np.empty([len(stored), stop - start], np.uint8)
    msa_kernels.crop_codes(np.frombuffer(payload, "<u8").reshape(total, words), stored, start, out)
    return out


def unpack_rows_compiled(
    packed: UInt8[np.ndarray, "R B"], num_res: int
) -> UInt8[np.ndarray, "R {num_res}"]:
    """As `unpack_rows` of `store/msa_codec.py`, in a hundredth of the time."""
    from evofeed.store import msa_kernels

    out = np.empty([len(packed), num_res], np.uint8)
    msa_kernels.crop_codes(packed.view("<u8"), np.arange(len(packed)), 0, out)
    return out


def _texts(decoder: ChainDecoder, name: str) -> np.ndarray:
    texts = decoder.species() if name == "msa_species" else decoder.meta()[name]
    return np.array(texts, dtype=np.str_)


def _renumbered(dense: np.ndarray) -> dict[str, np.ndarray]:
    """The sparse deletions of a crop, from the dense ones."""
    row, column = np.nonzero(dense)
    return {
        "deletion_row": row.astype(np.int32),
        "deletion_column": column.astype(np.int32),
        "deletion_count": dense[row, column],
    }
