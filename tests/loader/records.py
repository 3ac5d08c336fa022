"""Small made-up chains, and datasets of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.store.records import profile_counts, published

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residue_geometry import ATOM37_MASK
from evofeed.protein.residues import GAP, RESTYPES
from evofeed.store import Dataset


def make_record(
    name: str,
    length: int = 40,
    rows: int = 60,
    templates: int = 3,
    *,
    seed: int = 0,
    structure: bool = True,
) -> ChainRecord:
    rng = np.random.default_rng([seed, *name.encode()])
    aatype = rng.integers(0, 20, length).astype(np.uint8)
    msa = rng.integers(0, GAP + 1, [rows, length]).astype(np.uint8)
    keep = rng.random([rows, length]) < 0.6
    msa[keep] = np.broadcast_to(aatype, [rows, length])[keep]
    msa[0] = aatype
    dense = np.where(rng.random([rows, length]) < 0.02, rng.integers(1, 300, [rows, length]), 0)
    dense[0] = 0
    at = np.nonzero(dense)
    mask = (ATOM37_MASK[aatype] * (rng.random([length, 37]) < 0.95)).astype(np.uint8)
    mask[rng.random(length) < 0.1] = 0
    template_mask = (rng.random([templates, length, 37]) < 0.2).astype(np.uint8)
    center = np.round(rng.normal(size=[templates, 3]) * 20, 5).astype(np.float32)
    template_xyz = _thousandths(rng, template_mask.shape) - center[:, None, None]
    return ChainRecord(
        chain_id=name,
        sequence="".join(RESTYPES[code] for code in aatype),
        aatype=aatype,
        residue_index=np.arange(length, dtype=np.int32),
        msa=msa,
        deletion_row=at[0].astype(np.int32),
        deletion_column=at[1].astype(np.int32),
        deletion_count=dense[at].astype(np.int32),
        msa_source=np.zeros(rows, np.uint8),
        msa_sources=("made_up.a3m",),
        msa_species=("",) * rows,
        hhblits_profile_counts=profile_counts(msa),
        all_atom_positions=_there(_thousandths(rng, mask.shape), mask) if structure else None,
        all_atom_mask=mask if structure else None,
        template_aatype=rng.integers(0, GAP + 1, [templates, length]).astype(np.uint8),
        template_all_atom_positions=_there(template_xyz, template_mask),
        template_all_atom_mask=template_mask,
        template_center=center,
        template_sum_probs=rng.random(templates).astype(np.float32),
        template_domain_names=tuple(f"t{i}_A" for i in range(templates)),
        template_sequence=("A" * length,) * templates,
        template_release_date=("2000-01-01",) * templates,
        resolution=2.0,
        release_date="2001-02-03",
        method="x-ray diffraction",
    )


def _there(xyz: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Zeros where no atom is; a product would leave -0.0 there, which fixed point does not know."""
    return np.where(mask[..., None], xyz, np.float32(0))


def _thousandths(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    steps = rng.integers(-15_000, 15_000, [*shape, 3])  # atoms of a residue lie near each other
    return (steps.astype(np.float32) / np.float32(1000)).astype(np.float32)


def write_dataset(
    folder: Path, records: list[ChainRecord], *, shard_nbytes: int = 120_000, **commit: Any
) -> Dataset:
    published(folder, records, shard_nbytes=shard_nbytes, **commit)
    return Dataset.open(str(folder))


def small_dataset(folder: Path, count: int = 12) -> Dataset:
    sizes = [(20 + 7 * i % 50, 30 + 31 * i % 150, i % 5) for i in range(count)]
    return write_dataset(folder, [make_record(f"c{i:03}_A", *size) for i, size in enumerate(sizes)])
