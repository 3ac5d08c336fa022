"""Families of chains and of complexes, whose interfaces covary and whose chains come in copies.

A family of complexes is drawn like a family of chains, but over the columns of all entities at
once: one tree of organisms, each with a row in the alignment of every entity.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from evofeed.protein.chain_numbers import superposed
from evofeed.protein.residues import GAP
from evofeed.synth import fold as folds
from evofeed.synth.docking import Placement
from evofeed.synth.evolve import Family, evolve
from evofeed.synth.families import (
    FamilySet,
    Member,
    draw_chain,
    draw_depth,
    draw_entry,
    draw_length,
    single_member,
)
from evofeed.synth.mmcif import Chain

STOICHIOMETRIES = ("A2", "AB", "A2B2", "A3")
"""The defaults, in turn; copies of all entities are about one axis."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_CHAINS = 12


def read_stoichiometry(text: str) -> tuple[int, int]:
    """Number of entities and of copies of each: `A2B2` gives (2, 2).

    Raises:
        ValueError: it cannot be simulated.
    """
    parts = re.findall(r"([A-Z])([0-9]*)", text)
    counts = {int(number or 1) for _, number in parts}
    is_full_match = "".join(letter + number for letter, number in parts) == text
    is_in_order = [letter for letter, _ in parts] == list(_LETTERS[: len(parts)])
    if not (parts and is_full_match and is_in_order and len(counts) == 1):
        raise ValueError(f"stoichiometry {text!r}: give equal counts of each, as A2, AB or A2B2")
    (copies,) = counts
    if not 2 <= len(parts) * copies <= _MAX_CHAINS:
        raise ValueError(f"stoichiometry {text!r}: give 2 to {_MAX_CHAINS} chains")
    return len(parts), copies


def simulate_family(
    seed: int,
    number: int,
    stoichiometry: str,
    num_members: int,
    first_entry: int,
    mean_length: int,
    mean_depth: int,
) -> tuple[FamilySet, ...]:
    """Family `number` of the set `seed`, with `num_members` complexes, or single chains if the
    stoichiometry is empty.

    Returns:
        A family for each entity, of the chains that have alignments: one from each complex.
    """
    stream = [seed, number, *([2] if stoichiometry else [])]
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(stream)))
    entities, copies = read_stoichiometry(stoichiometry) if stoichiometry else (1, 1)
    lengths = [draw_length(rng, mean_length) for _ in range(entities)]
    leaves = draw_depth(rng, mean_depth)
    families, placements = evolve(rng, lengths, copies, leaves)
    picked = rng.choice(np.arange(1, leaves + 1), size=num_members, replace=num_members > leaves)
    entries = [
        _draw_complex(rng, families, placements, leaf, number)
        if stoichiometry
        else [single_member(rng, families[0], leaf, number)]
        for number, leaf in enumerate(picked.tolist(), first_entry)
    ]
    return tuple(
        FamilySet(family=family, members=members)
        for family, members in zip(families, zip(*entries, strict=True), strict=True)
    )


def _draw_complex(
    rng: np.random.Generator,
    families: tuple[Family, ...],
    placements: tuple[Placement, ...],
    leaf: int,
    number: int,
) -> list[Member]:
    """The complex of an organism, as its first chain of each entity."""
    entities = [draw_chain(rng, family, leaf) for family in families]
    placements = tuple(placements[i] for i in rng.permutation(len(placements)))
    chains = tuple(
        _place_chain(rng, families[placement.entity], entities[placement.entity], placement, letter)
        for placement, letter in zip(placements, _LETTERS, strict=False)
    )
    entry = draw_entry(rng, number, chains)
    members = []
    for entity, (row, _) in enumerate(entities):
        first = next(k for k, placement in enumerate(placements) if placement.entity == entity)
        name = f"{entry.entry_id}_{_LETTERS[first]}"
        members.append(Member(chain_id=name, row=row, entry=entry))
    return members


def _place_chain(
    rng: np.random.Generator,
    family: Family,
    entity: tuple[np.ndarray, Chain],
    placement: Placement,
    letter: str,
) -> Chain:
    """A copy of an entity (its row and chain), superposed on the placed fold of its family."""
    row, chain = entity
    core = family.core[row != GAP]
    core_index = (np.cumsum(family.core) - 1)[row != GAP][core]
    ca = placement.move(folds.frames(family.fold)[1])[core_index]
    atoms = chain.atoms.copy()
    atoms[core] = superposed(chain.atoms[core, 1], ca, atoms[core]) + 40.0
    resolved = chain.resolved.copy()
    resolved[: rng.integers(0, 4)] = False  # unresolved N-termini differ between copies
    return dataclasses.replace(chain, author_id=letter, atoms=atoms, resolved=resolved)


def species_names(num_leaves: int) -> list[str]:
    """Distinct UniProt mnemonics of organisms 0 to n - 1."""
    letters = np.array(list(_LETTERS))
    index = np.arange(num_leaves)[:, None] // 26 ** np.arange(5) % 26
    return ["".join(row) for row in letters[index].tolist()]
