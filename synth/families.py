"""A family of simulated chains: their entries, structures, homologs and template hits.

Each family has its own random generator, so that family 7 is the same whether ten
chains are written or ten thousand.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evofeed.protein.residues import GAP
from evofeed.synth import fold as folds
from evofeed.synth.evolve import BACKGROUND, Family
from evofeed.synth.formats import Hit
from evofeed.synth.mmcif import Chain, Entry

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_FIRST_RELEASE = datetime.date(1996, 1, 3)
_RELEASE_DAYS = 9000  # to August 2020: before AF2's own template cut-off


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A chain with a structure: `row` over its family's columns, and its entry."""

    chain_id: str
    row: np.ndarray
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySet:
    """A family and its members, the homologs with a structure."""

    family: Family
    members: tuple[Member, ...]


def entry_id(number: int) -> str:
    """A PDB-like id: a digit from 1, then three letters or digits; unique by number."""
    scattered = number * 7919 % (9 * 36**3)  # ids of a family's members should not be adjacent
    first, rest = divmod(scattered, 36**3)
    return f"{first + 1}{_DIGITS[rest // 1296]}{_DIGITS[rest // 36 % 36]}{_DIGITS[rest % 36]}"


def draw_length(rng: np.random.Generator, mean: int) -> int:
    """A random number of residues of a fold."""
    return int(np.clip(rng.lognormal(np.log(mean), 0.35), 30, 8 * mean))


def draw_depth(rng: np.random.Generator, mean: int) -> int:
    """A random number of homologs of a family."""
    return int(np.clip(rng.lognormal(np.log(mean), 0.8), 16, 12 * mean))


def single_member(rng: np.random.Generator, family: Family, leaf: int, number: int) -> Member:
    """The chain of an organism in an entry of one chain."""
    row, chain = draw_chain(rng, family, leaf)
    entry = draw_entry(rng, number, (chain,))
    return Member(chain_id=f"{entry.entry_id}_{chain.author_id}", row=row, entry=entry)


def _construct(rng: np.random.Generator, family: Family, leaf: int) -> np.ndarray:
    """The row of a homolog with a structure: its deletions filled, its termini trimmed."""
    row: np.ndarray = family.rows[leaf].copy()
    deleted = family.core & (row == GAP)
    row[deleted] = rng.choice(20, size=int(deleted.sum()), p=BACKGROUND)
    core = np.flatnonzero(family.core)
    start, end = rng.integers(0, 4), rng.integers(0, 4)  # another construct of the same domain
    row[: core[start]] = GAP
    row[core[len(core) - 1 - end] + 1 :] = GAP
    return row


def draw_entry(rng: np.random.Generator, number: int, chains: tuple[Chain, ...]) -> Entry:
    """Entry `number` of these chains, with a random method, resolution and release date."""
    method = str(rng.choice(_METHODS, p=[0.88, 0.07, 0.05]))
    resolution = None if method == "SOLUTION NMR" else round(float(rng.gamma(6, 0.35) + 0.9), 2)
    released = _FIRST_RELEASE + datetime.timedelta(days=int(rng.integers(_RELEASE_DAYS)))
    return Entry(
        entry_id=entry_id(number),
        method=method,
        resolution=resolution,
        release_date=released.isoformat(),
        num_models=2 if method == "SOLUTION NMR" else 1,
        chains=chains,
    )


_METHODS = ["X-RAY DIFFRACTION", "ELECTRON MICROSCOPY", "SOLUTION NMR"]


def draw_chain(rng: np.random.Generator, family: Family, leaf: int) -> tuple[np.ndarray, Chain]:
    """The row and the chain of a homolog with a structure, insertions and termini unresolved."""
    row = _construct(rng, family, leaf)
    has_residue = row != GAP
    core = family.core[has_residue]
    core_index = (np.cumsum(family.core) - 1)[has_residue]
    aatype = row[has_residue].astype(np.int64)
    fold = family.fold
    noise = rng.normal(0, np.radians(0.8), [2, len(fold.ss)])  # homologs differ by about 1-2 A
    noisy_fold = folds.Fold(ss=fold.ss, phi=fold.phi + noise[0], psi=fold.psi + noise[1])
    fold_aatype = np.zeros(len(fold.ss), np.int64)
    fold_aatype[core_index[core]] = aatype[core]
    fold_atoms = folds.all_atoms(rng, fold_aatype, noisy_fold)
    atoms = np.zeros([len(aatype), 14, 3])
    atoms[core] = fold_atoms[core_index[core]] + rng.uniform(5, 60, 3)
    resolved = core.copy()
    resolved[: rng.integers(0, 3)] = False
    resolved[len(resolved) - rng.integers(0, 3) :] = False
    chain = Chain(
        author_id=str(rng.choice(list("ABCDLX"), p=[0.7, 0.1, 0.05, 0.05, 0.05, 0.05])),
        aatype=aatype,
        atoms=atoms,
        resolved=resolved,
        first_number=int(rng.integers(1, 40)),
        selenium=bool(rng.random() < 0.06),
    )
    return row, chain


def homologs(rng: np.random.Generator, family: Family, share: float) -> np.ndarray:
    """Rows of the family that a database has: a share of it, some of these as fragments too."""
    leaves = family.rows[1:]
    rows = leaves[rng.random(len(leaves)) < share].copy()
    columns = rows.shape[1]
    for row in rows[rng.random(len(rows)) < 0.3]:  # a copy: fragments are appended, not swapped
        start, end = sorted(rng.integers(0, columns, 2).tolist())
        if end - start > columns // 3:
            fragment = np.full(columns, GAP, np.uint8)
            fragment[start:end] = row[start:end]
            rows = np.concatenate([rows, fragment[None]])
    return rows


def template_hits(rng: np.random.Generator, member: Member, others: list[Member]) -> list[Hit]:
    """Template hits of a member in its family, best identity first."""
    hits = [
        Hit(
            name=other.chain_id[:4].upper() + other.chain_id[4:],
            description="Simulated protein; family member {synthetic construct}",
            query=member.row,
            template=other.row,
            prob=round(100 - 5 * float(rng.random()) ** 3, 2),
        )
        for other in others
    ]
    identity = [np.mean(member.row[h.query != GAP] == h.template[h.query != GAP]) for h in hits]
    return [hits[k] for k in np.argsort(np.array(identity), kind="stable")[::-1]]


def family_sizes(seed: int, num_chains: int, mean_members: int) -> Iterator[int]:
    """Numbers of chains of each family, `num_chains` in total."""
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, 2**31])))
    remaining = num_chains
    while remaining:
        size = min(remaining, 1 + int(rng.geometric(1 / mean_members)))
        yield size
        remaining -= size
