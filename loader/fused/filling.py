"""A sample's words: what is known about it on the host, and its random decisions as keys."""

from __future__ import annotations

import array
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

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
from evofeed.loader.read_chain import Part, Slab
from evofeed.store.inner import Codec, row_nbytes

_KINDS: Final[dict[int, int]] = {
    Codec.UINT8: UINT8,
    Codec.UINT16: UINT16,
    Codec.RANGE: RANGE,
    Codec.ROW_COUNTS8: UINT8,
    Codec.ROW_COUNTS16: UINT16,
}
_BY_ROW: Final = (Codec.ROW_COUNTS8, Codec.ROW_COUNTS16, Codec.ROW_COUNTS32)
_STORED_BYTES: Final = ("aatype", "template_aatype", "msa")
"""Columns whose RAW codec is one byte a value; that of the other integers is four."""


def recycle_words(
    num_rows: int, *, is_distillation: bool, draws: RecycleDraws, config: LoaderConfig
) -> Recycle:
    """Sizes and keys of one recycle: all of its random decisions, not yet drawn.

    Its spans are `num_blocks + 2` pairs and the end.
    """
    firsts, starts, left = [], [], 0
    for start, stop in row_spans(num_rows, draws, config):
        firsts.append(left)
        starts.append(start)
        left += stop - start
    missing = config.num_blocks + 3 - len(firsts)
    rows = min(left, config.max_distillation_msa_clusters) if is_distillation else left
    centres = min(rows, config.max_msa_clusters)
    return Recycle(
        distillation_key=draws.key(Purpose.DISTILLATION_ROWS),
        distillation_count=left - 1 if is_distillation else 0,
        row_key=draws.key(Purpose.ROW_ORDER),
        row_count=rows - 1,
        extra_key=draws.key(Purpose.EXTRA_ORDER),
        extra_count=rows - centres,
        mask_key=draws.key(Purpose.MASK),
        replacement_key=draws.key(Purpose.REPLACEMENT),
        rows=rows,
        centres=centres,
        kept_extra=min(rows - centres, config.max_extra_msa),
        firsts=(*firsts, *[left] * missing),
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
    parts = {part.name: part for part in slab.parts}
    edges = np.cumsum((config.uniform_prob, config.profile_prob, config.same_prob))

    def at(name: str) -> int:
        return parts[name].offset - slab.start if name in parts else 0

    def kind(name: str) -> int:
        raw = UINT8 if name in _STORED_BYTES else INT32
        return _KINDS.get(parts[name].codec, raw)

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
        **{f"{ours}_at": at(stored) for ours, stored in INTEGERS.items()},
        **{f"{ours}_kind": kind(stored) for ours, stored in INTEGERS.items()},
        deletion_by_row=int(parts["deletion_row"].codec in _BY_ROW),
        msa_at=at("msa"),
        msa_pitch=_packed_pitch(parts["msa"], length),
        **_coordinates("truth", parts, "all_atom", slab, length),
        **_coordinates("template", parts, "template_all_atom", slab, length * templates),
        template_center_at=at("template_center"),
        template_aatype_at=at("template_aatype"),
        template_aatype_pitch=_packed_pitch(parts.get("template_aatype"), length),
        sum_probs_at=at("template_sum_probs"),
        chosen=len(crop.templates),
        seq_length=crop.length,
        resolution=_bits(resolution),
        use_clamped_fape=_bits(use_clamped_fape(config, key)),
    )


def _packed_pitch(part: Part | None, length: int) -> int:
    return row_nbytes(length) if part is not None and part.codec == Codec.MSA5 else 0


def _coordinates(
    ours: str, parts: dict[str, Part], stored: str, slab: Slab, residues: int
) -> dict[str, int]:
    mask, xyz = parts.get(f"{stored}_mask"), parts.get(f"{stored}_positions")
    if mask is None or xyz is None:
        return {f"{ours}_{name}": 0 for name in COORDINATES}
    anchors, atoms, exceptions = xyz.counts or (0, 0, 0)
    return {
        f"{ours}_residues": residues,
        f"{ours}_mask_at": mask.offset - slab.start,
        f"{ours}_mask_packed": int(mask.codec == Codec.MASK37),
        f"{ours}_at": xyz.offset - slab.start,
        f"{ours}_fixed": int(xyz.codec == Codec.FIXED),
        f"{ours}_anchors": anchors,
        f"{ours}_atoms": atoms,
        f"{ours}_exceptions": exceptions,
    }


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _recycle_stride(config: LoaderConfig) -> int:
    return SPANS + 2 * (config.num_blocks + 3)


def words_nbytes(config: LoaderConfig) -> int:
    """Bytes that a sample's words need at most, in whole cache lines."""
    recycles = (config.max_recycling_iters + 1) * _recycle_stride(config)
    nbytes = 8 * (len(WORDS) + config.max_templates + recycles)
    return nbytes + -nbytes % 64 + 64


def pack_words(
    sample: Sample, templates: tuple[int, ...], recycles: Sequence[Recycle]
) -> np.ndarray:
    """`i64` words: the sample's, its templates', each recycle's."""
    words: list[Any] = [sample[name] for name in WORDS]
    words += [*templates, *[0] * (sample["out_templates"] - len(templates))]
    for recycle in recycles:
        words += [*recycle[:SPANS], *recycle.firsts, *recycle.starts]
    # Keys are unsigned; two's complement is what both sides mean.
    return np.frombuffer(array.array("Q", words), np.int64)
