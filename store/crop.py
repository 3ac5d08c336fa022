"""Chosen features of a chain within a window of residues and a set of MSA rows.

What is large is decoded within the window alone, compiled (`store/crop_kernels.py`); the rest,
and what is stored in a codec of its own, is decoded whole (`store/decode.py`) and cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evofeed.shapes import Float, Int, UInt8
from evofeed.store.atoms import fixed_sections
from evofeed.store.decode import FEATURES, ChainDecoder
from evofeed.store.layout import Codec
from evofeed.store.msa_codec import row_nbytes, row_starts

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
        cropped["deletion_matrix"] = crop_deletions(decoder, taken, start, stop)
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
    if decoder.columns[name].codec in (Codec.MASK37, Codec.FIXED):
        prefix = name.removesuffix("_mask").removesuffix("_positions")
        if decoder.columns[f"{prefix}_mask"].codec == Codec.MASK37:
            crop = crop_mask if name.endswith("_mask") else crop_positions
            cropped = crop(decoder, prefix, start, stop)
            return cropped if feature.stage == "template" else cropped[0]
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
    from evofeed.store import crop_kernels  # numba takes half a second

    total = decoder.dims["N" if name == "msa" else "T"]
    payload = decoder.raw(name).payload
    words = row_nbytes(decoder.dims["L"]) // 8
    if len(payload) != 8 * words * total:
        raise decoder.place.corrupt(f"column {name}: {len(payload)} bytes are not {total} rows")
    stored = decoder.inverse()[taken] if name == "msa" else np.arange(total)
    out = np.empty([len(stored), stop - start], np.uint8)
    crop_kernels.crop_codes(np.frombuffer(payload, "<u8").reshape(total, words), stored, start, out)
    return out


def unpack_rows_compiled(
    packed: UInt8[np.ndarray, "R B"], num_res: int
) -> UInt8[np.ndarray, "R {num_res}"]:
    """As `unpack_rows` of `store/msa_codec.py`, in a hundredth of the time."""
    from evofeed.store import crop_kernels

    out = np.empty([len(packed), num_res], np.uint8)
    crop_kernels.crop_codes(packed.view("<u8"), np.arange(len(packed)), 0, out)
    return out


def crop_deletions(
    decoder: ChainDecoder, taken: np.ndarray, start: int, stop: int
) -> Int[np.ndarray, "R W"]:
    """Deletions left of each cell of the rows `taken`, dense, within the window."""
    from evofeed.store import crop_kernels

    try:
        counts = decoder.row_counts()
    except ValueError as error:
        raise decoder.place.corrupt(f"column deletion_row: {error}") from None
    if counts is None:  # stored with a row each
        return decoder.deletion_matrix(taken)[:, start:stop]
    out = np.empty([len(taken), stop - start], np.int32)
    columns, values = decoder.stored_deletions()
    stored = decoder.inverse()[taken]
    length = decoder.dims["L"]
    starts = row_starts(counts)
    if not crop_kernels.crop_deletions(starts, columns, values, stored, length, start, out):
        raise decoder.place.corrupt("a deletion is outside the alignment")
    return out


def crop_mask(
    decoder: ChainDecoder, prefix: str, start: int, stop: int
) -> UInt8[np.ndarray, "T W 37"]:
    """Which atoms of the structure, or of each template, are there."""
    from evofeed.store import crop_kernels

    low, high = decoder.mask_bits(f"{prefix}_mask")
    out = np.empty([len(low), stop - start, 37], np.uint8)
    crop_kernels.crop_mask(low, high, start, out)
    return out


def crop_positions(
    decoder: ChainDecoder, prefix: str, start: int, stop: int
) -> Float[np.ndarray, "T W 37 3"]:
    """Coordinates of the structure, or of each template, ångström."""
    from evofeed.store import crop_kernels

    name, length = f"{prefix}_positions", decoder.dims["L"]
    low, high = decoder.mask_bits(f"{prefix}_mask")
    centers = np.zeros([len(low), 3], np.float32)
    if prefix.startswith("template"):
        centers = decoder.array("template_center").reshape(-1, 3)
    out = np.zeros([len(low), stop - start, 37, 3], np.float32)
    try:
        parts = fixed_sections(decoder.raw(name).payload)
    except ValueError as error:
        raise decoder.place.corrupt(f"column {name}: {error}") from None
    anchors, relative = parts["anchor"], parts["relative"]
    if not crop_kernels.crop_positions(low, high, anchors, relative, centers, start, out):
        raise decoder.place.corrupt(f"column {name}: its atoms do not fit the mask")
    where = parts["exception_index"].astype(np.int64)
    if where.max(initial=-1) >= low.size * 111:
        raise decoder.place.corrupt(f"column {name}: an exception is outside the array")
    structure, residue = where // 111 // length, where // 111 % length - start
    inside = (residue >= 0) & (residue < stop - start)
    flat = out.reshape(len(low), stop - start, 111)
    flat[structure[inside], residue[inside], where[inside] % 111] = parts["exception_value"][inside]
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
