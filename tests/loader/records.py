"""Small synthetic chains, and datasets of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.store.records import profile_counts, published, random_record

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residue_geometry import ATOM37_MASK
from evofeed.protein.residues import RESTYPES
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
    """A random record without unknown residues, with most atoms, for training."""
    rng = np.random.default_rng([seed, *name.encode()])
    sizes = {"num_res": length, "num_alignments": rows, "num_templates": templates}
    record = random_record(int(rng.integers(2**31)), chain_id=name, **sizes)
    aatype = rng.integers(0, 20, length).astype(np.uint8)
    msa = np.where(rng.random([rows, length]) < 0.6, aatype, record.msa).astype(np.uint8)
    msa[0] = aatype
    mask = ATOM37_MASK[aatype] * (rng.random([length, 37]) < 0.95) * (rng.random([length, 1]) < 0.9)
    steps = rng.integers(-15_000, 15_000, [length, 37, 3])  # atoms of a residue lie near each other
    xyz = np.where(mask[..., None], steps.astype(np.float32) / np.float32(1000), np.float32(0))
    return record.replace(
        sequence="".join(RESTYPES[code] for code in aatype),
        aatype=aatype,
        msa=msa,
        hhblits_profile_counts=profile_counts(msa),
        all_atom_positions=xyz if structure else None,
        all_atom_mask=mask.astype(np.uint8) if structure else None,
        resolution=2.0,
        release_date="2001-02-03",
        is_distillation=False,
    )


def write_dataset(
    folder: Path, records: list[ChainRecord], *, shard_nbytes: int = 120_000, **commit: Any
) -> Dataset:
    published(folder, records, shard_nbytes=shard_nbytes, **commit)
    return Dataset.open(str(folder))


def small_dataset(folder: Path, count: int = 12) -> Dataset:
    sizes = [(20 + 7 * i % 50, 30 + 31 * i % 150, i % 5) for i in range(count)]
    return write_dataset(folder, [make_record(f"c{i:03}_A", *size) for i, size in enumerate(sizes)])
