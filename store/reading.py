"""Crops of chains into the caller's buffers: compiled where it can be, plain where not."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from evofeed.store import crop
from evofeed.store.decode import FEATURES, ChainDecoder
from evofeed.store.layout import COLUMN_NUMBER, Codec
from evofeed.store.spans import Spans

_DIMS: Final = {
    name: feature.dims
    for name, feature in FEATURES.items()
    if feature.dtype != "str" and "K" not in feature.dims
} | {"deletion_matrix": ("N", "L")}
_FIXED: Final = {"atom37": 37, "xyz": 3, "restype22": 22}
_ONLY: Final = np.zeros(1, np.int64)
_NO_CENTER: Final = np.zeros([1, 3], np.float32)
_scratch = threading.local()


def scratch(nbytes: int) -> np.ndarray:
    """This thread's read buffer, u8, at least that large."""
    buffer: np.ndarray | None = getattr(_scratch, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = np.empty(max(nbytes, 1 << 20) * 3 // 2, np.uint8)
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
    L, N, K, T = spans.dims[row].tolist()
    wanted = np.arange(N) if rows is None else rows
    _check_shapes(out, {"L": stop - start, "N": len(wanted), "T": len(templates)} | _FIXED)
    span = spans.read_span(row, scratch(int(spans.nbytes[row])), verify=verify)
    starts = spans.starts[row]
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
        _plainly(spans.decoder(row, span), out, left, start, stop, wanted, templates)


def _check_shapes(out: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> None:
    for name, array in out.items():
        dims = _DIMS.get(name)
        if dims is None:
            raise ValueError(f"{name} is no array of fixed size: use `read`")
        shape = tuple([sizes[dim] for dim in dims])
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
        limit = np.iinfo(dense.dtype).max if dense.dtype.kind in "iu" else 2**31
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
    mask, positions, center = out[names[0]], out[names[1]], _NO_CENTER
    if prefix == "all_atom":
        mask, positions = mask[None], positions[None]
    else:
        at, nbytes, codec = crop.column_at(span, starts, COLUMN_NUMBER["template_center"])
        if codec != Codec.RAW or nbytes != residues // L * 12:
            return []
        center = span[at : at + nbytes].view(np.float32).reshape(-1, 3)
    number = COLUMN_NUMBER[names[0]]
    status = crop.atoms_crop(
        span, starts, number, residues, L, start, chosen, center, mask, positions
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
