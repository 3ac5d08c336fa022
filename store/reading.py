"""Crops of chains into the caller's buffers: compiled where it can be, plain where not."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from evofeed.store import crop
from evofeed.store.crop_atoms import atoms_crop
from evofeed.store.decode import FEATURES, ChainDecoder
from evofeed.store.layout import COLUMN_NUMBER, COLUMNS, HEADER_NBYTES, plain_header
from evofeed.store.spans import Spans

_DIMS: Final = {
    name: feature.dims
    for name, feature in FEATURES.items()
    if feature.dtype != "str" and "K" not in feature.dims
} | {"deletion_matrix": ("N", "L")}
_FIXED: Final = {"atom37": 37, "xyz": 3, "restype22": 22}
_ONLY: Final = np.zeros(1, np.int64)
_CENTER: Final = COLUMN_NUMBER["template_center"]
_MOST: Final = {
    np.dtype(kind): int(np.iinfo(kind).max)
    for kind in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64)
}
"""The largest deletion count a buffer holds; floats hold all of them."""
_scratch = threading.local()


def scratch(nbytes: int) -> np.ndarray:
    """This thread's read buffer, u8, at least that large."""
    buffer: np.ndarray | None = getattr(_scratch, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = np.empty(max(nbytes * 3 // 2, 1 << 20), np.uint8)
        _scratch.buffer = buffer
    return buffer


def read_into(
    spans: Spans,
    row: int,
    out: Mapping[str, np.ndarray],
    start: int,
    stop: int,
    rows: np.ndarray | None,
    templates: np.ndarray,
    *,
    verify: bool = True,
) -> None:
    """Fill every array of `out` with that feature of a chain, cropped; see `Dataset.read_into`."""
    wanted = np.arange(spans.dims[row, 1]) if rows is None else rows
    _check_shapes(out, {"L": stop - start, "N": len(wanted), "T": len(templates)} | _FIXED)
    span = spans.read_span(row, scratch(int(spans.nbytes[row])), verify=verify)
    fill(spans, row, span, out, start, stop, wanted, templates)


def fill(
    spans: Spans,
    row: int,
    span: np.ndarray,
    out: Mapping[str, np.ndarray],
    start: int,
    stop: int,
    wanted: np.ndarray,
    templates: np.ndarray,
) -> None:
    """Decode a span into arrays of the right shapes."""
    L, N, K, T = spans.dims[row].tolist()
    starts = spans.starts[row]
    if spans.raw_nbytes[row] != spans.nbytes[row]:
        span, starts = inflated(spans.decoder(row, span))
    done = _rows(span, starts, out, (L, N, K), start, wanted)
    if "template_aatype" in out:
        number = COLUMN_NUMBER["template_aatype"]
        target = out["template_aatype"]
        if _done(crop.msa_crop(span, starts, number, T, L, start, templates, target), T):
            done.append("template_aatype")
    done += _atoms(span, starts, out, "all_atom", L, L, start, _ONLY)
    done += _atoms(span, starts, out, "template_all_atom", T * L, L, start, templates)
    if len(done) < len(out):
        left = [name for name in out if name not in done]
        _plainly(spans.decoder(row, span, starts), out, left, start, stop, wanted, templates)


def read_features(
    spans: Spans,
    row: int,
    span: np.ndarray,
    columns: Sequence[str],
    start: int,
    stop: int,
    wanted: np.ndarray,
) -> tuple[dict[str, np.ndarray], ChainDecoder]:
    """Those of `columns` that have a fixed size, in arrays of the table's dtype; and the decoder.

    `span` is what `Spans.read_span` gives. Absent structure arrays are left out.
    """
    decoder = spans.decoder(row, span)
    templates = np.arange(decoder.dims["T"])
    sizes = {"L": stop - start, "N": len(wanted), "T": len(templates)} | _FIXED
    out = {}
    for name in columns:
        if name not in _DIMS:
            continue
        feature = FEATURES.get(name)
        if feature and feature.stage == "structure" and not decoder.dims["has_structure"]:
            continue
        shape = [sizes[dim] for dim in _DIMS[name]]
        out[name] = np.empty(shape, feature.dtype if feature else np.int32)
    fill(spans, row, span, out, start, stop, wanted, templates)
    return out, decoder


def inflated(decoder: ChainDecoder) -> tuple[np.ndarray, np.ndarray]:
    """The span that a chain would have without zstd, and where its columns begin."""
    columns = [decoder.raw(name) for name in COLUMNS]
    sizes = [HEADER_NBYTES + len(column.payload) for column in columns]
    starts = np.concatenate([[0], np.cumsum([size + -size % 8 for size in sizes])])
    span = np.zeros(starts[-1] + 8, np.uint8)
    for start, column in zip(starts.tolist(), columns, strict=False):
        nbytes = len(column.payload)
        span[start : start + HEADER_NBYTES] = np.frombuffer(plain_header(column), np.uint8)
        body = start + HEADER_NBYTES
        span[body : body + nbytes] = np.frombuffer(column.payload, np.uint8)
    return span, starts


def _check_shapes(out: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> None:
    for name, array in out.items():
        dims = _DIMS.get(name)
        if dims is None:
            raise ValueError(f"{name} is no array of fixed size: use `read`")
        shape = tuple(map(sizes.__getitem__, dims))
        if array.shape != shape or not array.flags.c_contiguous:
            raise ValueError(f"{name}: a buffer {array.shape}; contiguous {shape} needed")


def _done(status: int, has: int) -> bool:
    """True if a compiled decoder did its work, False if it left it to the plain one."""
    if status == crop.NO_SUCH:
        raise ValueError(f"a row or template is out of range or twice: the chain has {has}")
    if status == crop.TOO_NARROW:
        raise ValueError("deletion_matrix: a count does not fit the buffer's dtype")
    return status == crop.OK  # CORRUPT too: the plain decoder says what exactly is wrong


def _rows(
    span: np.ndarray,
    starts: np.ndarray,
    out: Mapping[str, np.ndarray],
    dims: tuple[int, int, int],
    start: int,
    wanted: np.ndarray,
) -> list[str]:
    L, N, K = dims
    stored = np.empty(len(wanted), np.int64)
    if not _done(crop.stored_rows(span, starts, N, wanted, stored), N):
        return []
    done = []
    if "msa" in out and out["msa"].dtype == np.uint8:
        number = COLUMN_NUMBER["msa"]
        if _done(crop.msa_crop(span, starts, number, N, L, start, stored, out["msa"]), N):
            done.append("msa")
    if "deletion_matrix" in out:
        dense = out["deletion_matrix"]
        limit = _MOST.get(dense.dtype, 2**31)
        if _done(crop.deletions_crop(span, starts, N, K, start, stored, limit, dense), N):
            done.append("deletion_matrix")
    return done


def _atoms(
    span: np.ndarray,
    starts: np.ndarray,
    out: Mapping[str, np.ndarray],
    prefix: str,
    residues: int,
    L: int,
    start: int,
    chosen: np.ndarray,
) -> list[str]:
    names = [f"{prefix}_mask", f"{prefix}_positions"]
    if names[0] not in out or names[1] not in out or out[names[1]].dtype != np.float32:
        return []
    mask, positions, center = out[names[0]], out[names[1]], _CENTER
    if prefix == "all_atom":
        mask, positions, center = mask[None], positions[None], 0
    status = atoms_crop(
        span, starts, COLUMN_NUMBER[names[0]], center, residues, L, start, chosen, mask, positions
    )
    return names if _done(status, residues // L) else []


def _plainly(
    decoder: ChainDecoder,
    out: Mapping[str, np.ndarray],
    names: Sequence[str],
    start: int,
    stop: int,
    taken: np.ndarray,
    templates: np.ndarray,
) -> None:
    picks: dict[str, np.ndarray | slice] = {"L": slice(start, stop), "N": taken, "T": templates}
    _require(taken, decoder.dims["N"])
    _require(templates, decoder.dims["T"])
    for name in names:
        if name == "deletion_matrix":
            _fill(out[name], decoder.deletion_matrix()[taken, start:stop])
            continue
        if FEATURES[name].stage == "structure" and not decoder.dims["has_structure"]:
            out[name][...] = 0
            continue
        array = decoder.array(name)
        for axis, dim in enumerate(FEATURES[name].dims):
            if dim in picks:
                array = array[(slice(None),) * axis + (picks[dim],)]
        _fill(out[name], array)


def _require(wanted: np.ndarray, has: int) -> None:
    if len(wanted) and not 0 <= wanted.min() <= wanted.max() < has:
        raise ValueError(f"{wanted.min()}..{wanted.max()} is out of range: the chain has {has}")


def _fill(out: np.ndarray, array: np.ndarray) -> None:
    if out.dtype.kind in "iu" and array.size and array.max() > np.iinfo(out.dtype).max:
        raise ValueError(f"{array.max()} does not fit {out.dtype}")
    out[...] = array
