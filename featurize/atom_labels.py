"""Chain and residue labels of an mmCIF file that lacks them, from the author's own.

`label_asym_id` and `label_seq_id` tie atoms to the polymer tables. PyMOL and some converters
write '.' there; the author's ids then say which atoms are of one chain, and of one residue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.errors import MmcifError
from evofeed.featurize.atom_sites import UNSET, AtomSites
from evofeed.featurize.residue_names import is_nucleotide, is_water, model_letter
from evofeed.featurize.seqres import fits, place_on_sequence

_BACKBONE: Final = frozenset(("N", "CA", "C"))

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class AtomRows:
    """Columns of an atom table, row by row.

    Attributes:
        internal, number: `label_asym_id`, `label_seq_id`; '.' or '?' where unknown.
        author, author_number, insertion, component, atom: as they are called.
    """

    internal: Sequence[str]
    number: Sequence[str]
    author: Sequence[str]
    author_number: Sequence[str]
    insertion: Sequence[str]
    component: Sequence[str]
    atom: Sequence[str]


def lacks_labels(internal: Sequence[str], number: Sequence[str]) -> bool:
    """Whether an atom has no chain label, or none of them a residue label."""
    return any(text in UNSET for text in internal) or all(text in UNSET for text in number)


def with_author_labels(rows: AtomRows) -> tuple[list[str], list[str]]:
    """Chain and residue labels, the author's where there are none; '.' for no polymer's.

    Residues of proteins are numbered as the author's, or one after the other where those
    repeat or go back.
    """
    unnumbered = all(text in UNSET for text in rows.number)
    own = [text in UNSET or unnumbered for text in rows.internal]
    internal = [
        author if text in UNSET else text
        for text, author in zip(rows.internal, rows.author, strict=True)
    ]
    texts = [
        author if text in UNSET else text
        for text, author in zip(rows.number, rows.author_number, strict=True)
    ]
    keys: list[_Key] = list(zip(internal, texts, rows.insertion, strict=True))
    protein = _protein_residues(rows, keys, own)
    numbers = _numbered(
        dict.fromkeys(k for k, mine in zip(keys, own, strict=True) if mine), protein
    )
    number = [
        numbers.get(key, ".") if unlabelled else text
        for key, unlabelled, text in zip(keys, own, rows.number, strict=True)
    ]
    return internal, number


def _protein_residues(rows: AtomRows, keys: list[_Key], own: list[bool]) -> set[_Key]:
    """Amino acids with a letter, and what else has a backbone and is before the last of them.

    Without TER or labels nothing else distinguishes a modified residue from a ligand like it.
    """
    amino, strange = set(), set()
    atoms: dict[_Key, set[str]] = {}
    last: dict[str, int] = {}
    for row, (key, mine, name) in enumerate(zip(keys, own, rows.component, strict=True)):
        if not mine:
            continue
        if model_letter(name) != "X" or name == "UNK":
            amino.add(key)
            last[key[0]] = row
        elif not is_water(name) and not is_nucleotide(name):
            atoms.setdefault(key, set()).add(rows.atom[row])
    for row, key in enumerate(keys):
        if atoms.get(key, set()) >= _BACKBONE and row < last.get(key[0], 0):
            strange.add(key)
    return amino | strange


def _numbered(keys: Mapping[_Key, None], protein: set[_Key]) -> dict[_Key, str]:
    """Residue number of each protein residue, rising along its chain."""
    last: dict[str, tuple[int, int]] = {}
    numbers = {}
    for key in keys:
        if key not in protein:
            continue
        chain, text, _ = key
        written = int(text)
        before, number = last.get(chain, (written - 1, written - 1))
        number += max(written - before, 1)
        last[chain] = (written, number)
        numbers[key] = str(number)
    return numbers


def aligned_to(sites: AtomSites, sequences: Mapping[str, tuple[int, Sequence[str]]]) -> AtomSites:
    """The atoms renumbered along sequences that their file gives, if its labels are missing.

    Args:
        sites: atoms with the author's labels.
        sequences: first number and residue names by internal chain id.

    Raises:
        MmcifError: a chain's residues are not those of its sequence.
    """
    numbers = sites.number.copy()
    for internal, (start, names) in sequences.items():
        code = sites.internals.index(internal) if internal in sites.internals else -1
        rows = np.flatnonzero(sites.internal == code)
        seen, first, residue = np.unique(sites.number[rows], return_index=True, return_inverse=True)
        found = [sites.components[c] for c in sites.component[rows[first]]]
        placed = place_on_sequence(
            [(int(n), " ", name) for n, name in zip(seen, found, strict=True)], names
        )
        if placed is None or not fits(placed, found, names):
            raise MmcifError(
                f"atoms have no label_seq_id, and those of chain {internal} are not the "
                "residues of its _entity_poly_seq"
            )
        numbers[rows] = np.where(placed < 0, -(1 << 40), placed + start)[residue]
    return dataclasses.replace(sites, number=numbers)
