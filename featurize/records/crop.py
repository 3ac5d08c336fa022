"""What is cut off a record offline: rows by work, templates, residue windows.

All of it is a pure function of the record, the settings and the seed, and each
cut is written into the record's `dropped`.
"""

from __future__ import annotations

import hashlib

import numpy as np

from evofeed.base.shapes import Int
from evofeed.featurize.config import CropConfig
from evofeed.protein.chain_record import ChainRecord

_CLAMP_PROBABILITY = 0.9
"""Share of training samples with clamped FAPE (AF2 SI 1.11.5)."""
_CODES = 22


def crop_record(record: ChainRecord, crop: CropConfig) -> list[ChainRecord]:
    """The record within its limits; several if it is cut into windows.

    A chain longer than `residue_crop` becomes `views` records with ids
    `<chain id>.v0`, `.v1`, …; all others stay one record of the same id.
    """
    digest = hashlib.sha256(f"{record.config_digest}:{crop.digest}".encode()).hexdigest()
    record = record.replace(config_digest=digest)
    if crop.residue_crop is None or record.num_res <= crop.residue_crop:
        return [_within(record, crop)]
    views = []
    for view in range(crop.views):
        start = window_start(record.num_res, crop.residue_crop, crop.seed, record.chain_id, view)
        window = cut_window(record, start, start + crop.residue_crop)
        views.append(_within(window.replace(chain_id=f"{record.chain_id}.v{view}"), crop))
    return views


def window_start(num_res: int, size: int, seed: int, chain_id: str, view: int) -> int:
    """First residue of a window, by AF2's rule (SI 1.2.8).

    Nine windows in ten, those for clamped FAPE, start anywhere alike; the tenth
    starts anywhere before a random point, which favours the N-terminus.
    """
    free = num_res - size
    clamped = _draw(1000, seed, chain_id, view, "clamped") < 1000 * _CLAMP_PROBABILITY
    if not clamped:
        free -= _draw(free + 1, seed, chain_id, view, "point")
    return _draw(free + 1, seed, chain_id, view, "start")


def cut_window(record: ChainRecord, start: int, end: int) -> ChainRecord:
    """Residues `start` to `end` of a record; `residue_index` keeps their numbers."""
    inside = (record.deletion_column >= start) & (record.deletion_column < end)
    positions, mask = record.all_atom_positions, record.all_atom_mask
    note = f"residues {start}-{end} of {record.num_res} kept"
    return record.replace(
        sequence=record.sequence[start:end],
        aatype=record.aatype[start:end],
        residue_index=record.residue_index[start:end],
        msa=np.ascontiguousarray(record.msa[:, start:end]),
        deletion_row=record.deletion_row[inside],
        deletion_column=(record.deletion_column[inside] - start).astype(np.int32),
        deletion_count=record.deletion_count[inside],
        hhblits_profile_counts=record.hhblits_profile_counts[start:end],
        all_atom_positions=None if positions is None else positions[start:end],
        all_atom_mask=None if mask is None else mask[start:end],
        template_aatype=np.ascontiguousarray(record.template_aatype[:, start:end]),
        template_all_atom_positions=np.ascontiguousarray(
            record.template_all_atom_positions[:, start:end]
        ),
        template_all_atom_mask=np.ascontiguousarray(record.template_all_atom_mask[:, start:end]),
        template_sequence=tuple(s[start:end] for s in record.template_sequence),
        confidence=record.confidence[start:end],
        dropped=(*record.dropped, note),
    )


def max_rows(num_res: int, crop: CropConfig) -> int | None:
    """MSA rows a chain of that length may keep; None is all."""
    limits = [crop.max_msa_rows] if crop.max_msa_rows is not None else []
    if crop.msa_budget is not None:
        limits.append(max(1, int(crop.msa_budget / num_res)))
    return min(limits, default=None)


def _within(record: ChainRecord, crop: CropConfig) -> ChainRecord:
    rows = max_rows(record.num_res, crop)
    if rows is not None and rows < record.num_alignments:
        record = _keep_rows(record, _choose_rows(record, rows, crop))
    if crop.max_templates is not None and crop.max_templates < record.num_templates:
        record = _keep_templates(record, crop.max_templates)
    return record


def _choose_rows(record: ChainRecord, rows: int, crop: CropConfig) -> Int[np.ndarray, " R"]:
    """Row numbers to keep, ascending, the query among them."""
    if crop.row_choice == "first":
        return np.arange(rows)
    # Raw Philox words: their stream is promised not to change with numpy's version.
    key = _draw(1 << 64, crop.seed, record.chain_id, 0, "rows")
    words = np.random.Philox(key=key).random_raw(record.num_alignments - 1)
    return np.concatenate([[0], np.sort(np.argsort(words, kind="stable")[: rows - 1] + 1)])


def _keep_rows(record: ChainRecord, rows: Int[np.ndarray, " R"]) -> ChainRecord:
    place = np.full(record.num_alignments, -1, np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    new_row = place[record.deletion_row]
    here = new_row >= 0
    msa = record.msa[rows]
    counts = [(msa == code).sum(0, dtype=np.int32) for code in range(_CODES)]
    return record.replace(
        msa=msa,
        deletion_row=new_row[here],
        deletion_column=record.deletion_column[here],
        deletion_count=record.deletion_count[here],
        msa_source=record.msa_source[rows],
        msa_species=tuple(record.msa_species[row] for row in rows.tolist()),
        hhblits_profile_counts=np.stack(counts, axis=-1),
        dropped=(*record.dropped, f"{len(rows)} of {record.num_alignments} MSA rows kept"),
    )


def _keep_templates(record: ChainRecord, count: int) -> ChainRecord:
    return record.replace(
        template_aatype=record.template_aatype[:count],
        template_all_atom_positions=record.template_all_atom_positions[:count],
        template_all_atom_mask=record.template_all_atom_mask[:count],
        template_center=record.template_center[:count],
        template_sum_probs=record.template_sum_probs[:count],
        template_domain_names=record.template_domain_names[:count],
        template_sequence=record.template_sequence[:count],
        template_release_date=record.template_release_date[:count],
        dropped=(*record.dropped, f"{count} of {record.num_templates} templates kept"),
    )


def _draw(bound: int, seed: int, chain_id: str, view: int, purpose: str) -> int:
    """A number below `bound` that depends on nothing but the arguments."""
    text = f"{seed}:{chain_id}:{view}:{purpose}".encode()
    return int.from_bytes(hashlib.sha256(text).digest(), "big") % bound
