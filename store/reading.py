"""Crops of chains into the caller's buffers: compiled where it can be, plain where not."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from evofeed.store import crop
from evofeed.store.decode import FEATURES, ChainDecoder
from evofeed.store.layout import COLUMN_NUMBER
from evofeed.store.spans import Spans

ROWS: Final = ("msa", "deletion_matrix")
TEMPLATES: Final = ("template_aatype", "template_all_atom_mask", "template_all_atom_positions")
STRUCTURE: Final = ("all_atom_mask", "all_atom_positions")
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
    span = spans.read_span(row, scratch(int(spans.nbytes[row])), verify=verify)
    L, N, K, T = spans.dims[row].tolist()
    _check_shapes(out, spans.dims[row].tolist(), stop - start, rows, templates)
    starts, done = spans.starts[row], set()
    if "msa" in out or "deletion_matrix" in out:
        done |= _rows(span, starts, out, (L, N, K), start, rows)
    if "template_aatype" in out:
        number = COLUMN_NUMBER["template_aatype"]
        if not crop.msa_crop(span, starts, number, T, L, start, templates, out["template_aatype"]):
            done.add("template_aatype")
    done |= _atoms(span, starts, out, "all_atom", L, L, start, np.zeros(1, np.int64))
    done |= _atoms(span, starts, out, "template_all_atom", T * L, L, start, templates)
    left = [name for name in out if name not in done]
    if left:
        _plainly(spans.decoder(row, span), out, left, start, stop, rows, templates)


def _check_shapes(
    out: Mapping[str, np.ndarray],
    dims: Sequence[int],
    width: int,
    rows: np.ndarray | None,
    templates: np.ndarray,
) -> None:
    _, N, _, T = dims
    if rows is not None and len(rows) and (rows.min() < 0 or rows.max() >= N):
        raise ValueError(f"rows {rows.min()}..{rows.max()}: the chain has {N}")
    if len(templates) and (templates.min() < 0 or templates.max() >= T):
        raise ValueError(f"templates {templates.tolist()}: the chain has {T}")
    sizes = {"L": width, "N": N if rows is None else len(rows), "T": len(templates)}
    for name, array in out.items():
        dims_of = ("N", "L") if name == "deletion_matrix" else FEATURES[name].dims
        if "K" in dims_of or (name not in ROWS and FEATURES[name].dtype == "str"):
            raise ValueError(f"{name} has no fixed size: use `read`")
        shape = (sizes["N"], width) if name == "deletion_matrix" else FEATURES[name].shape(sizes)
        if array.shape != shape or not array.flags.c_contiguous:
            raise ValueError(f"{name}: a buffer {array.shape}; contiguous {shape} needed")


def _rows(
    span: np.ndarray,
    starts: np.ndarray,
    out: Mapping[str, np.ndarray],
    dims: tuple[int, int, int],
    start: int,
    rows: np.ndarray | None,
) -> set[str]:
    L, N, K = dims
    wanted = np.arange(N) if rows is None else rows
    stored = np.empty(len(wanted), np.int64)
    if crop.stored_rows(span, starts, N, wanted, stored):
        return set()
    done = set()
    if "msa" in out and out["msa"].dtype == np.uint8:
        number = COLUMN_NUMBER["msa"]
        if not crop.msa_crop(span, starts, number, N, L, start, stored, out["msa"]):
            done.add("msa")
    if "deletion_matrix" in out:
        dense = out["deletion_matrix"]
        limit = np.iinfo(dense.dtype).max if dense.dtype.kind in "iu" else 2**31
        status = crop.deletions_crop(span, starts, N, K, start, stored, limit, dense)
        if status == crop.TOO_NARROW:
            raise ValueError(f"deletion_matrix: a count does not fit {dense.dtype}")
        if not status:
            done.add("deletion_matrix")
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
) -> set[str]:
    names = {f"{prefix}_mask", f"{prefix}_positions"}
    if not names <= set(out) or out[f"{prefix}_positions"].dtype != np.float32:
        return set()
    mask, positions = out[f"{prefix}_mask"], out[f"{prefix}_positions"]
    center = np.zeros([1, 3], np.float32)
    if prefix == "template_all_atom":
        if len(np.unique(chosen)) < len(chosen) or not residues:
            return set()
        at, nbytes, codec = crop.column_at(span, starts, COLUMN_NUMBER["template_center"])
        if codec != 0 or nbytes != residues // L * 12:
            return set()
        center = span[at : at + nbytes].view(np.float32).reshape(-1, 3)
    else:
        mask, positions = mask[None], positions[None]
    number = COLUMN_NUMBER[f"{prefix}_mask"]
    status = crop.atoms_crop(
        span, starts, number, residues, L, start, chosen, center, mask, positions
    )
    return set() if status else names


def _plainly(
    decoder: ChainDecoder,
    out: Mapping[str, np.ndarray],
    names: Sequence[str],
    start: int,
    stop: int,
    rows: np.ndarray | None,
    templates: np.ndarray,
) -> None:
    taken: np.ndarray | slice = slice(None) if rows is None else rows
    picks: dict[str, np.ndarray | slice] = {"L": slice(start, stop), "N": taken, "T": templates}
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


def _fill(out: np.ndarray, array: np.ndarray) -> None:
    if out.dtype.kind in "iu" and array.size and array.max() > np.iinfo(out.dtype).max:
        raise ValueError(f"{array.max()} does not fit {out.dtype}")
    out[...] = array
