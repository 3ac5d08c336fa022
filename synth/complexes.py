"""Families of chains, and of complexes: chains that touch, remember it, and come in copies.

A family is drawn as a family of chains is, but over the columns of all its entities at once: one
tree of organisms, each with a row in the alignment of every entity.
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
    construct,
    draw_depth,
    draw_entry,
    draw_length,
    lone_member,
    structure,
)
from evofeed.synth.mmcif import Model

STOICHIOMETRIES = ("A2", "AB", "A2B2", "A3")
"""What is simulated unasked, in turn; copies of all entities are about one axis."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MOST_CHAINS = 12


def read_stoichiometry(text: str) -> tuple[int, int]:
    """Number of entities and of copies of each: `A2B2` gives (2, 2).

    Raises:
        ValueError: it is none that can be simulated.
    """
    parts = re.findall(r"([A-Z])([0-9]*)", text)
    counts = {int(number or 1) for _, number in parts}
    named = "".join(letter + number for letter, number in parts) == text
    in_order = [letter for letter, _ in parts] == list(_LETTERS[: len(parts)])
    if not (parts and named and in_order and len(counts) == 1):
        raise ValueError(f"stoichiometry {text!r}: give equal counts of each, as A2, AB or A2B2")
    (copies,) = counts
    if not 2 <= len(parts) * copies <= _MOST_CHAINS:
        raise ValueError(f"stoichiometry {text!r}: give 2 to {_MOST_CHAINS} chains")
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
    """Family `number` of the set `seed`, with `num_members` complexes; chains if it has no
    stoichiometry.

    Returns:
        For each entity the chains that have alignments, one of each complex, as a family.
    """
    stream = [seed, number, *([2] if stoichiometry else [])]
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(stream)))
    entities, copies = read_stoichiometry(stoichiometry) if stoichiometry else (1, 1)
    lengths = [draw_length(rng, mean_length) for _ in range(entities)]
    leaves = draw_depth(rng, mean_depth)
    families, placed = evolve(rng, lengths, copies, leaves)
    picked = rng.choice(np.arange(1, leaves + 1), size=num_members, replace=num_members > leaves)
    made = [
        _complex(rng, families, placed, leaf, entry)
        if stoichiometry
        else [lone_member(rng, families[0], leaf, entry)]
        for entry, leaf in enumerate(picked.tolist(), first_entry)
    ]
    return tuple(
        FamilySet(family=family, members=members)
        for family, members in zip(families, zip(*made, strict=True), strict=True)
    )


def _complex(
    rng: np.random.Generator,
    families: tuple[Family, ...],
    placed: tuple[Placement, ...],
    leaf: int,
    number: int,
) -> list[Member]:
    """An organism's complex: of each entity the first chain of its entry."""
    shown = [structure(rng, family, construct(rng, family, leaf)) for family in families]
    order = rng.permutation(len(placed))  # which copy comes first is nobody's rule
    chains = tuple(
        _placed(rng, families[place.entity], shown[place.entity], place, letter)
        for place, letter in zip((placed[i] for i in order), _LETTERS, strict=False)
    )
    entry = draw_entry(rng, number, chains)
    members = []
    for entity, (row, _) in enumerate(shown):
        first = next(k for k, i in enumerate(order) if placed[i].entity == entity)
        name = f"{entry.entry_id}_{_LETTERS[first]}"
        members.append(Member(chain_id=name, row=row, entry=entry))
    return members


def _placed(
    rng: np.random.Generator,
    family: Family,
    shown: tuple[np.ndarray, Model],
    place: Placement,
    letter: str,
) -> Model:
    """A chain's atoms laid on the family's fold where a copy of it is."""
    row, model = shown
    core = family.core[row != GAP]
    at = (np.cumsum(family.core) - 1)[row != GAP][core]
    ca = place.move(folds.frames(family.fold)[1])[at]
    atoms = model.atoms.copy()
    atoms[core] = superposed(model.atoms[core, 1], ca, atoms[core]) + 40.0
    resolved = model.resolved.copy()
    resolved[: rng.integers(0, 4)] = False  # each copy is frayed in its own way
    return dataclasses.replace(model, author_id=letter, atoms=atoms, resolved=resolved)


def species_names(num_leaves: int) -> list[str]:
    """UniProt's mnemonics of organisms 0 to n - 1, each another."""
    letters = np.array(list(_LETTERS))
    at = np.arange(num_leaves)[:, None] // 26 ** np.arange(5) % 26
    return ["".join(row) for row in letters[at].tolist()]
