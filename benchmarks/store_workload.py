"""Chains of PDB-like sizes with realistic redundancy, for measuring storage.

Sizes as in an OpenProteinSet sample: residues mean 263, MSA rows mean 1953 (at
most 5000), 4 templates. Rows descend from a query by way of families and clades, with
terminal gaps and gap runs (about a quarter of the cells), and 0.8 % of cells
carry a deletion. Coordinates are random walks with three decimals, atoms those
of each residue's type, one template residue in seven missing.
"""

from __future__ import annotations

import numpy as np

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residue_geometry import ATOM37_MASK
from evofeed.protein.residues import GAP, RESTYPES

TEMPLATES = 4


def workload_chain(number: int) -> ChainRecord:
    """Chain `number` of the workload; a pure function of it."""
    rng = np.random.default_rng([20_261_120, number])
    L = int(np.clip(rng.gamma(2.6, 101), 40, 1400))
    N = int(np.clip(rng.lognormal(7.25, 0.95), 16, 5000))
    aatype = rng.integers(0, 20, L).astype(np.uint8)
    msa = _msa(rng, aatype, N)
    row, column = np.nonzero(rng.random([N, L], np.float32) < 0.008)
    positions, mask = _atoms(rng, aatype[None])
    template_aatype = np.where(rng.random([TEMPLATES, L]) < 0.5, aatype, rng.integers(0, 20, L))
    template_positions, template_mask = _atoms(rng, template_aatype, missing=1 / 7)
    center = np.stack(
        [p[m.astype(bool)].mean(0) for p, m in zip(template_positions, template_mask, strict=True)]
    )
    moved = (template_positions - center[:, None, None]) * template_mask[..., None] + np.float32(0)
    return ChainRecord(
        chain_id=f"work{number:05d}_A",
        sequence="".join(RESTYPES[code] for code in aatype),
        aatype=aatype,
        residue_index=np.arange(L, dtype=np.int32),
        msa=msa,
        deletion_row=row.astype(np.int32),
        deletion_column=column.astype(np.int32),
        deletion_count=np.minimum(rng.geometric(0.3, len(row)), 255).astype(np.int32),
        msa_source=np.sort(rng.integers(0, 3, N)).astype(np.uint8),
        msa_sources=("bfd_uniclust_hits.a3m", "mgnify_hits.sto", "uniref90_hits.sto"),
        msa_species=("",) * N,
        hhblits_profile_counts=(msa[:, :, None] == np.arange(GAP + 1)).sum(0).astype(np.int32),
        all_atom_positions=positions[0],
        all_atom_mask=mask[0],
        template_aatype=template_aatype.astype(np.uint8),
        template_all_atom_positions=moved.astype(np.float32),
        template_all_atom_mask=template_mask,
        template_center=center.astype(np.float32),
        template_sum_probs=np.full(TEMPLATES, 150.0, np.float32),
        template_domain_names=("1abc_A",) * TEMPLATES,
        template_sequence=("".join(RESTYPES[code] for code in aatype),) * TEMPLATES,
        template_release_date=("2010-01-01",) * TEMPLATES,
    )


def _msa(rng: np.random.Generator, query: np.ndarray, rows: int) -> np.ndarray:
    L = len(query)
    conservation = rng.beta(1.6, 0.5, L).astype(np.float32)
    families = np.stack([_mutate(rng, query, conservation) for _ in range(rng.integers(1, 13))])
    # Substitutions go to a few residues a column, as in real families.
    likely = rng.integers(0, 20, [L, 4]).astype(np.uint8)
    clades = _vary(rng, families, max(rows // 6, 1), 0.9 * conservation, likely)
    msa = _vary(rng, clades, rows, 0.65 + 0.3 * conservation, likely)
    start = np.minimum(rng.geometric(min(9 / L, 1), rows), L)[:, None]
    stop = L - np.minimum(rng.geometric(min(11 / L, 1), rows), L)[:, None]
    place = np.arange(L)
    msa = np.where((place < start - 1) | (place > stop), GAP, msa)
    holes = rng.random([rows, L], np.float32) < 0.0045
    for shift in range(8):  # runs of eight gaps
        msa[:, shift:][holes[:, : L - shift]] = GAP
    msa[0] = query
    return msa.astype(np.uint8)


def _vary(
    rng: np.random.Generator,
    parents: np.ndarray,
    rows: int,
    keep: np.ndarray,
    likely: np.ndarray,
) -> np.ndarray:
    """Children of random parents; a column keeps its residue with probability `keep`."""
    L = parents.shape[1]
    children = parents[rng.integers(0, len(parents), rows)]
    change = rng.random([rows, L], np.float32) > keep
    pick = np.minimum(rng.geometric(0.5, [rows, L]) - 1, 3)
    return np.where(change, likely[np.arange(L), pick], children).astype(np.uint8)


def _mutate(rng: np.random.Generator, query: np.ndarray, conservation: np.ndarray) -> np.ndarray:
    keep = rng.random(len(query)) < conservation
    return np.where(keep, query, rng.integers(0, 20, len(query))).astype(np.uint8)


def _atoms(
    rng: np.random.Generator, aatype: np.ndarray, missing: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    mask = ATOM37_MASK[aatype].astype(bool)
    mask &= rng.random([*aatype.shape, 1]) >= missing
    walk = np.cumsum(rng.normal(0, 2.2, [*aatype.shape, 1, 3]), axis=-3)
    positions = np.round(walk + rng.normal(0, 2, [*mask.shape, 3]), 3) * mask[..., None]
    return (positions + 0.0).astype(np.float32), mask.astype(np.uint8)
