"""Chain records out of thin air, for measurements on machines without featurize's parsers.

A smooth random chain of ideal residues with templates of half an ångström noise
and an MSA of independent mutations: real sizes and real information content per
cell, no biology.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.trainer.synthetic_batch import synthetic_batch

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP, RESTYPES
from evofeed.store import DatasetWriter


def synthetic_record(
    number: int, *, num_res: int, num_rows: int, num_templates: int
) -> ChainRecord:
    """One chain, a pure function of its number and sizes."""
    rng = np.random.default_rng(number)
    batch = synthetic_batch(
        num_res=num_res, num_seq=1, num_extra_seq=1, num_templates=num_templates, seed=number
    )
    structure = {name: value[0].numpy() for name, value in batch.items() if value.shape[:1] == (1,)}
    aatype = structure["aatype"].astype(np.uint8)
    msa = _msa(aatype, num_rows, rng)
    row, column = np.nonzero(rng.random(msa.shape) < 0.005)  # as rare as in real alignments
    positions = structure["template_all_atom_positions"]
    mask = structure["template_all_atom_mask"]
    centre = positions.reshape(num_templates, num_res * 37, 3).mean(1)
    return ChainRecord(
        chain_id=f"syn{number:04d}_A",
        sequence="".join(RESTYPES[code] for code in aatype),
        aatype=aatype,
        residue_index=np.arange(num_res, dtype=np.int32),
        msa=msa,
        deletion_row=row.astype(np.int32),
        deletion_column=column.astype(np.int32),
        deletion_count=rng.geometric(0.4, len(row)).astype(np.int32),
        msa_source=np.zeros(num_rows, np.uint8),
        msa_sources=("synthetic",),
        msa_species=("",) * num_rows,
        hhblits_profile_counts=np.stack([(msa == code).sum(0) for code in range(22)], 1).astype(
            np.int32
        ),
        all_atom_positions=np.round(structure["all_atom_positions"], 3).astype(np.float32),
        all_atom_mask=structure["all_atom_mask"].astype(np.uint8),
        template_aatype=structure["template_aatype"].astype(np.uint8),
        template_all_atom_positions=(
            np.round(positions - centre[:, None, None], 3) * mask[..., None]
        ).astype(np.float32),
        template_all_atom_mask=mask.astype(np.uint8),
        template_center=centre.astype(np.float32),
        template_sum_probs=np.full(num_templates, 100.0, np.float32),
        template_domain_names=tuple(f"tmp{i}_A" for i in range(num_templates)),
        template_sequence=("".join(RESTYPES[code] for code in aatype),) * num_templates,
        template_release_date=("2000-01-01",) * num_templates,
        resolution=2.0,
        release_date="2010-01-01",
        method="SYNTHETIC",
    ).validate()


def _msa(aatype: np.ndarray, num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """The query, then rows that keep 30 to 90 % of it, with gaps."""
    rows = np.broadcast_to(aatype, (num_rows, len(aatype))).copy()
    kept = rng.uniform(0.3, 0.9, (num_rows, 1))
    kept[0] = 1.0
    other = rng.random(rows.shape) >= kept
    rows[other] = rng.integers(0, 20, other.sum())
    gaps = rng.random(rows.shape) < 0.1
    gaps[0] = False
    rows[gaps] = GAP
    return rows.astype(np.uint8)


def write_dataset(uri: Path, chains: int, *, tiny: bool = False) -> str:
    """Write a dataset of `chains` records of 250 to 700 residues; returns its URI."""
    writer = DatasetWriter(str(uri))
    rng = np.random.default_rng(0)
    for number in range(chains):
        num_res = int(rng.integers(40, 80) if tiny else rng.integers(250, 700))
        num_rows = int(rng.integers(30, 120) if tiny else rng.integers(1500, 6000))
        writer.add(synthetic_record(number, num_res=num_res, num_rows=num_rows, num_templates=4))
    writer.commit()
    return str(uri)
