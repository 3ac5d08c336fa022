"""Made-up chains of realistic sizes, and a storage that is sometimes slow."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import numpy as np

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residue_geometry import ATOM37_MASK
from evofeed.protein.residues import GAP, RESTYPES
from evofeed.store import Dataset, DatasetWriter
from evofeed.store.storage import LocalStorage


def made_up_chain(name: str, length: int, rows: int, templates: int, seed: int) -> ChainRecord:
    """A chain with random content: sizes, gaps and deletions are what costs time, not biology."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    aatype = rng.integers(0, 20, length).astype(np.uint8)
    msa = rng.integers(0, 20, [rows, length]).astype(np.uint8)
    draw = rng.random([rows, length], np.float32)
    msa = np.where(draw < 0.45, aatype[None], np.where(draw < 0.7, np.uint8(GAP), msa))
    msa[0] = aatype
    cells = np.unique(rng.integers(length, max(rows, 2) * length, max(rows * length // 150, 1)))
    cells = cells[cells < rows * length]
    counts = np.stack([(msa == code).sum(0) for code in range(22)], -1).astype(np.int32)
    mask = ATOM37_MASK[aatype].astype(np.uint8)
    template_mask = np.zeros([templates, length, 37], np.uint8)
    template_mask[..., :5] = rng.random([templates, length, 1]) < 0.85
    center = rng.normal(size=[templates, 3]).astype(np.float32)
    template_xyz = _walk(rng, templates * length).reshape(templates, length, 37, 3)
    template_xyz = (template_xyz - center[:, None, None]) * template_mask[..., None]
    return ChainRecord(
        chain_id=name,
        sequence="".join(RESTYPES[code] for code in aatype),
        aatype=aatype,
        residue_index=np.arange(length, dtype=np.int32),
        msa=msa.astype(np.uint8),
        deletion_row=(cells // length).astype(np.int32),
        deletion_column=(cells % length).astype(np.int32),
        deletion_count=rng.integers(1, 30, len(cells)).astype(np.int32),
        msa_source=np.zeros(rows, np.uint8),
        msa_sources=("made_up.a3m",),
        msa_species=("",) * rows,
        hhblits_profile_counts=counts,
        all_atom_positions=_walk(rng, length) * mask[..., None],
        all_atom_mask=mask,
        template_aatype=rng.integers(0, 20, [templates, length]).astype(np.uint8),
        template_all_atom_positions=template_xyz.astype(np.float32),
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


def _walk(rng: np.random.Generator, length: int) -> np.ndarray:
    """Coordinates in thousandths of an ångström, as PDB files have them."""
    centre = rng.normal(size=[length, 1, 3]).cumsum(0) * 2 % 100
    steps = np.rint((centre + rng.normal(size=[length, 37, 3])) * 1000)
    return (steps.astype(np.float32) / np.float32(1000)).astype(np.float32)


def write_chains(folder: Path, count: int, seed: int = 0, scale: float = 1.0) -> Dataset:
    """`count` chains: lengths around 260, rows around 2000 (median 1400), up to 20 templates.

    The distributions are those of OpenProteinSet's chains (P(L > 256) = 0.41, rows capped
    by work at 5e7 / L and by 15,000); `scale` shrinks them for a test on a small machine.
    """
    rng = np.random.default_rng(seed)
    writer = DatasetWriter(str(folder))
    for number in range(count):
        length = int(np.clip(np.exp(rng.normal(5.37, 0.6)), 30, 1000) * scale) + 1
        rows = int(min(np.exp(rng.normal(7.24, 0.85)), 15_000, 5e7 / length) * scale) + 2
        templates = int(rng.integers(0, 21))
        writer.add(made_up_chain(f"m{number:05}_A", length, rows, templates, seed))
    writer.commit()
    return Dataset.open(str(folder))


class SlowStorage(LocalStorage):
    """Every twentieth read, by place in the file, waits: a slow disk or a far shard.

    Args:
        root: the folder.
        seconds: how long the slow reads wait.
    """

    def __init__(self, root: Path | str, seconds: float) -> None:
        super().__init__(root)
        self.seconds = seconds

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Read, sometimes late."""
        if zlib.crc32(f"{key}{offset}".encode()) % 20 == 0:
            time.sleep(self.seconds)
        super().read_into(key, offset, out)

    def __reduce__(self) -> tuple[type[LocalStorage], tuple]:
        return SlowStorage, (str(self.root), self.seconds)
