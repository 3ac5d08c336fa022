"""Chain records out of thin air, for measurements on machines without featurize's parsers.

A smooth random chain of ideal residues with templates of half an ångström noise
and an MSA of independent mutations: real sizes and real information content per
cell, no biology.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tests.store.records import profile_counts

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP, RESTYPES
from evofeed.store import DatasetWriter
from evofeed.trainer.model.constants import table
from evofeed.trainer.model.rigid import Rigid, quaternion_to_matrix
from evofeed.trainer.model.torsion import (
    atom14_to_atom37,
    frames_to_atom14,
    torsion_angles_to_frames,
)

_CA_CA = 3.8  # ångström between neighbouring CA atoms


def synthetic_record(
    number: int, *, num_res: int, num_rows: int, num_templates: int
) -> ChainRecord:
    """One chain, a pure function of its number and sizes."""
    rng = np.random.default_rng(number)
    aatype = rng.integers(0, 20, num_res).astype(np.uint8)
    positions, mask = _structure(aatype, number)
    msa = _msa(aatype, num_rows, rng)
    row, column = np.nonzero(rng.random(msa.shape) < 0.005)  # as rare as in real alignments
    copies = positions + rng.normal(0, 0.5, (num_templates, *positions.shape))
    centre = copies[..., 1, :].mean(1)
    sequence = "".join(RESTYPES[code] for code in aatype)
    return ChainRecord(
        chain_id=f"syn{number:04d}_A",
        sequence=sequence,
        aatype=aatype,
        residue_index=np.arange(num_res, dtype=np.int32),
        msa=msa,
        deletion_row=row.astype(np.int32),
        deletion_column=column.astype(np.int32),
        deletion_count=rng.geometric(0.4, len(row)).astype(np.int32),
        msa_source=np.zeros(num_rows, np.uint8),
        msa_sources=("synthetic",),
        msa_species=("",) * num_rows,
        hhblits_profile_counts=profile_counts(msa),
        all_atom_positions=_stored(positions, mask),
        all_atom_mask=mask,
        template_aatype=np.tile(aatype, (num_templates, 1)),
        template_all_atom_positions=_stored(copies - centre[:, None, None], mask),
        template_all_atom_mask=np.tile(mask, (num_templates, 1, 1)),
        template_center=centre.astype(np.float32),
        template_sum_probs=np.full(num_templates, 100.0, np.float32),
        template_domain_names=tuple(f"tmp{i}_A" for i in range(num_templates)),
        template_sequence=(sequence,) * num_templates,
        template_release_date=("2000-01-01",) * num_templates,
        resolution=2.0,
        release_date="2010-01-01",
        method="SYNTHETIC",
    ).validate()


def _structure(aatype: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Atoms of a smooth random chain of ideal residues: every structural loss can reach zero."""
    generator = torch.Generator().manual_seed(seed)
    turns = 0.4 * torch.randn([len(aatype), 4], generator=generator)
    rots = quaternion_to_matrix(F.normalize(torch.cumsum(turns, 0) + turns[:1], dim=-1))
    trans = torch.cumsum(_CA_CA * rots[..., 0], dim=-2)
    angles = F.normalize(torch.randn([len(aatype), 7, 2], generator=generator), dim=-1)
    codes = torch.from_numpy(aatype).long()
    frames = torsion_angles_to_frames(Rigid(rots, trans), angles, codes)
    places, mask = (table(n, codes.device)[codes] for n in ("ATOM37_TO_ATOM14", "ATOM37_MASK"))
    atoms = atom14_to_atom37(frames_to_atom14(frames, codes), places, mask)
    return atoms.numpy(), mask.numpy().astype(np.uint8)


def _stored(positions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Thousandths of an ångström, and zeros where no atom is."""
    return np.where(mask[..., None], np.round(positions, 3), 0.0).astype(np.float32)


def _msa(aatype: np.ndarray, num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """The query, then rows that keep 30 to 90 % of it, with gaps."""
    rows = np.broadcast_to(aatype, (num_rows, len(aatype))).copy()
    identity = rng.uniform(0.3, 0.9, (num_rows, 1))
    identity[0] = 1.0
    other = rng.random(rows.shape) >= identity
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
