"""Small synthetic complexes: separated copies of a chain, rows to pair by species."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.loader.records import make_record, write_dataset
from tests.store.records import profile_counts

from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.store import Dataset, add_assemblies

__all__ = ["make_complex", "pairing_of", "three_complexes"]


def pairing_of(chain: ChainRecord, rows: int, seed: int) -> ChainRecord:
    """A chain's alignment for pairing, of few species."""
    record = make_record(chain.chain_id, chain.num_res, rows, 0, seed=seed, structure=False)
    msa = record.msa.copy()
    msa[0] = chain.aatype
    msa[2] = chain.msa[min(3, len(chain.msa) - 1)]  # also among the unpaired ones
    species = np.random.default_rng(seed).choice(["", "HUMAN", "MOUSE", "YEAST", "9606"], rows)
    species[0] = ""
    return record.replace(
        sequence=chain.sequence,
        aatype=chain.aatype,
        msa=msa,
        msa_species=tuple(species.tolist()),
        hhblits_profile_counts=profile_counts(msa),
    )


def make_complex(
    name: str, chains: list[ChainRecord], copies: list[int], seed: int
) -> AssemblyRecord:
    random = np.random.default_rng(seed)
    parts = [c for c, n in zip(chains, copies, strict=True) for _ in range(n)]
    positions, masks = [], []
    for chain in parts:
        assert chain.all_atom_positions is not None and chain.all_atom_mask is not None
        shift = np.round(random.normal(size=3) * 15, 3).astype(np.float32)
        moved = np.round((chain.all_atom_positions + shift).astype(np.float64), 3)
        positions.append((moved * chain.all_atom_mask[..., None]).astype(np.float32) + 0.0)
        masks.append(chain.all_atom_mask)
    several = len(chains) > 1
    letters = iter("HLMNOPQRST")
    return AssemblyRecord(
        assembly_id=name,
        chains=tuple(chains),
        pairing=tuple(
            pairing_of(c, 20 + 5 * i, seed + i) if several else None for i, c in enumerate(chains)
        ),
        copies=tuple(tuple(next(letters) for _ in range(n)) for n in copies),
        all_atom_positions=np.concatenate(positions).astype(np.float32),
        all_atom_mask=np.concatenate(masks),
        resolution=2.0,
    )


def three_complexes(folder: Path) -> Dataset:
    """A dataset of three chains and three complexes of them: A2B, A2 and ABC3."""
    first, second = make_record("1abc_A", 18, 60, 3), make_record("1abc_B", 11, 50, 1)
    third = make_record("2def_A", 25, 30, 0)
    base = write_dataset(folder, [first, second, third])
    complexes = [
        make_complex("1abc", [first, second], [2, 1], 1),
        make_complex("2def", [third], [2], 2),
        make_complex("3ghi", [second, third, first], [1, 1, 3], 3),
    ]
    add_assemblies(base, complexes)
    return Dataset.open(str(folder))
