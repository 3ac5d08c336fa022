"""Words of a sample: its sizes and column offsets, and its random decisions as keys."""

from __future__ import annotations

import array
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from evofeed.loader.checks import ROW_COUNTS
from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.draws import Crop, use_clamped_fape
from evofeed.loader.features import row_spans
from evofeed.loader.fused.sample_words import (
    COORDINATES,
    INT32,
    INTEGERS,
    RANGE,
    SPANS,
    UINT8,
    UINT16,
    WORDS,
    Recycle,
    Sample,
)
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.loader.read_chain import Slab, SlotColumn
from evofeed.store.inner import Codec, row_nbytes

_KIND_OF_CODEC: Final[dict[int, int]] = {
    Codec.UINT8: UINT8,
    Codec.UINT16: UINT16,
    Codec.RANGE: RANGE,
    Codec.ROW_COUNTS8: UINT8,
    Codec.ROW_COUNTS16: UINT16,
}
_STORED_BYTES: Final = ("aatype", "template_aatype", "msa")
"""Columns with one byte a value in the RAW codec; other integers have four."""


def recycle_words(
    num_rows: int, *, is_distillation: bool, draws: RecycleDraws, config: LoaderConfig
) -> Recycle:
    """Sizes and random keys of one recycle, with `num_blocks + 3` spans of rows.

    At most `num_blocks + 2` spans hold rows; the others mark the end.
    """
    firsts, starts, remaining = [], [], 0
    for start, stop in row_spans(num_rows, draws, config):
        firsts.append(remaining)
        starts.append(start)
        remaining += stop - start
    missing = config.num_blocks + 3 - len(firsts)
    rows = min(remaining, config.max_distillation_msa_clusters) if is_distillation else remaining
    centres = min(rows, config.max_msa_clusters)
    return Recycle(
        distillation_key=draws.key(Purpose.DISTILLATION_ROWS),
        distillation_count=remaining - 1 if is_distillation else 0,
        row_key=draws.key(Purpose.ROW_ORDER),
        row_count=rows - 1,
        extra_key=draws.key(Purpose.EXTRA_ORDER),
        extra_count=rows - centres,
        mask_key=draws.key(Purpose.MASK),
        replacement_key=draws.key(Purpose.REPLACEMENT),
        rows=rows,
        centres=centres,
        kept_extra=min(rows - centres, config.max_extra_msa),
        firsts=(*firsts, *[remaining] * missing),
        starts=(*starts, *[num_rows] * missing),
    )


def sample_words(
    slab: Slab,
    sizes: tuple[int, int, int, int],
    crop: Crop,
    config: LoaderConfig,
    *,
    key: int,
    number: int,
    batch: int,
    recycles: int,
    max_rows: int,
    resolution: float,
    is_distillation: bool,
) -> Sample:
    """The words of a sample whose bytes `slab.start .. slab.stop` are on the device."""
    length, rows, deletions, templates = sizes
    columns = {column.name: column for column in slab.columns}
    edges = np.cumsum((config.uniform_prob, config.profile_prob, config.same_prob))

    def column_at(name: str) -> int:
        return columns[name].offset - slab.start if name in columns else 0

    def column_kind(name: str) -> int:
        raw = UINT8 if name in _STORED_BYTES else INT32
        return _KIND_OF_CODEC.get(columns[name].codec, raw)

    return dict(
        residues=length,
        rows=rows,
        deletions=deletions,
        pitch=length + -length % 16,
        crop_start=crop.start,
        crop_length=crop.length,
        out_residues=config.crop_size or length,
        out_centres=config.max_msa_clusters,
        out_extra=config.max_extra_msa,
        out_templates=config.max_templates,
        sample=number,
        batch=batch,
        recycles=recycles,
        max_rows=max_rows,
        is_distillation=int(is_distillation),
        masked_below=int(config.masked_fraction * 2**32),
        uniform_below=int(edges[0] * 2**32),
        profile_below=int(edges[1] * 2**32),
        same_below=int(edges[2] * 2**32),
        recycles_at=len(WORDS) + config.max_templates,
        recycle_words=_recycle_stride(config),
        **{f"{prefix}_at": column_at(stored) for prefix, stored in INTEGERS.items()},
        **{f"{prefix}_kind": column_kind(stored) for prefix, stored in INTEGERS.items()},
        deletion_by_row=int(columns["deletion_row"].codec in ROW_COUNTS),
        msa_at=column_at("msa"),
        msa_pitch=_packed_pitch(columns["msa"], length),
        **_coordinates("truth", columns, "all_atom", slab, length),
        **_coordinates("template", columns, "template_all_atom", slab, length * templates),
        template_center_at=column_at("template_center"),
        template_aatype_at=column_at("template_aatype"),
        template_aatype_pitch=_packed_pitch(columns.get("template_aatype"), length),
        sum_probs_at=column_at("template_sum_probs"),
        chosen=len(crop.templates),
        seq_length=crop.length,
        resolution=_bits(resolution),
        use_clamped_fape=_bits(use_clamped_fape(config, key)),
    )


def _packed_pitch(column: SlotColumn | None, length: int) -> int:
    return row_nbytes(length) if column is not None and column.codec == Codec.MSA5 else 0


def _coordinates(
    prefix: str, columns: dict[str, SlotColumn], stored: str, slab: Slab, residues: int
) -> dict[str, int]:
    mask, xyz = columns.get(f"{stored}_mask"), columns.get(f"{stored}_positions")
    if mask is None or xyz is None:
        return {f"{prefix}_{name}": 0 for name in COORDINATES}
    anchors, atoms, exceptions = xyz.counts or (0, 0, 0)
    return {
        f"{prefix}_residues": residues,
        f"{prefix}_mask_at": mask.offset - slab.start,
        f"{prefix}_mask_packed": int(mask.codec == Codec.MASK37),
        f"{prefix}_at": xyz.offset - slab.start,
        f"{prefix}_fixed": int(xyz.codec == Codec.FIXED),
        f"{prefix}_anchors": anchors,
        f"{prefix}_atoms": atoms,
        f"{prefix}_exceptions": exceptions,
    }


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _recycle_stride(config: LoaderConfig) -> int:
    return SPANS + 2 * (config.num_blocks + 3)


def words_nbytes(config: LoaderConfig) -> int:
    """Upper bound of the bytes of a sample's words, rounded up to cache lines."""
    recycles = (config.max_recycling_iters + 1) * _recycle_stride(config)
    nbytes = 8 * (len(WORDS) + config.max_templates + recycles)
    return nbytes + -nbytes % 64 + 64


def pack_words(
    sample: Sample, templates: tuple[int, ...], recycles: Sequence[Recycle]
) -> np.ndarray:
    """The `i64` words of a sample: its own, its template numbers, those of each recycle."""
    words: list[Any] = [sample[name] for name in WORDS]
    words += [*templates, *[0] * (sample["out_templates"] - len(templates))]
    for recycle in recycles:
        words += [*recycle[:SPANS], *recycle.firsts, *recycle.starts]
    # Keys are unsigned: host and device both read the two's complement.
    return np.frombuffer(array.array("Q", words), np.int64)
