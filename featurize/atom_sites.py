"""Atom records of an entry as arrays, and a chain's atoms placed on its sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

from evofeed.featurize.structure import Chain
from evofeed.residues import ATOM37_NUM, ATOM_ORDER
from evofeed.shapes import Bool, Float, Int, UInt8

UNSET: Final = (".", "?")
"""How mmCIF writes that a value does not apply, or is not known."""
_NO_START: Final = -(1 << 40)
BLANK: Final = 0
"""Code of no altloc, no insertion code."""


@dataclass(frozen=True, slots=True, eq=False)
class AtomSites:
    """Atom records of the first model that belong to a polymer, in file order.

    Strings are codes into the lists beside them.
    """

    internal: Int[np.ndarray, " A"]
    author: Int[np.ndarray, " A"]
    component: Int[np.ndarray, " A"]
    number: Int[np.ndarray, " A"]
    author_number: Int[np.ndarray, " A"]
    insertion: Int[np.ndarray, " A"]
    hetero: Bool[np.ndarray, " A"]
    atom37: Int[np.ndarray, " A"]
    altloc: Int[np.ndarray, " A"]
    occupancy: Float[np.ndarray, " A"]
    positions: Float[np.ndarray, "A 3"]
    internals: list[str]
    authors: list[str]
    components: list[str]
    insertions: list[str]
    author_of: dict[str, str]
    """Author's chain id of every internal one, polymer or not."""
    b_factor: Float[np.ndarray, " A"] | None = None
    """Where it was asked for: predictions have their confidence there."""
    absent: Mapping[str, int] = field(default_factory=dict)
    """Atoms without coordinates by author's chain; they are not among the rest."""
    by_author: bool = False
    """Residue labels were missing: `number` is the author's, rising along each chain."""
    chains_by_author: bool = False
    """Chain labels were missing too: `internals` are the author's."""


def place_chain(
    sites: AtomSites,
    author: str,
    starts: Mapping[str, int],
    sequence: str,
    prefer: Mapping[int, str] | None = None,
    confidence_threshold: float | None = None,
) -> Chain:
    """Atoms of an author's chain on the positions of its sequence.

    The last record of a position names its residue; records of that residue
    count, others at the same position (another residue type, another hetero
    flag) do not. Of alternative locations the one with the highest occupancy
    stays, the first of equals, as in Biopython. Arginine's NH1 is the one
    nearer to CD (OpenFold).

    Args:
        sites: the entry's atoms.
        author: author's chain id.
        starts: first residue number of each internal chain under that author id.
        sequence: what to place on.
        prefer: residue name to take at a position that has atoms of several.
        confidence_threshold: residues none of whose B factors exceeds it lose their atoms.
    """
    num_res = len(sequence)
    first = np.full(len(sites.internals), _NO_START, np.int64)
    for internal, start in starts.items():
        if internal in sites.internals:
            first[sites.internals.index(internal)] = start
    code = sites.authors.index(author) if author in sites.authors else -1
    here = (sites.author == code) & (first[sites.internal] > _NO_START)
    rows = np.flatnonzero(here)
    index = sites.number[rows] - first[sites.internal[rows]]
    inside = (index >= 0) & (index < num_res)
    rows, index = rows[inside], index[inside]
    if prefer:
        chosen = _of_preferred(sites, rows, index, prefer)
        rows, index = rows[chosen], index[chosen]
    last = np.full(num_res, -1, np.int64)
    last[index] = rows  # of equal indices numpy keeps the last
    observed = last >= 0
    same = np.ones(len(rows), bool)
    for column in (sites.component, sites.author_number, sites.insertion, sites.hetero):
        same &= column[rows] == column[last[index]]
    best = _select(
        index, sites.atom37[rows], sites.altloc[rows], sites.occupancy[rows], same, num_res
    )
    positions = np.zeros([num_res, ATOM37_NUM, 3], np.float32)
    found = best >= 0
    positions[found] = sites.positions[rows[best[found]]]
    mask = found.astype(np.uint8)
    notes = _notes(int((~inside).sum()), int((~same).sum()), sites.absent.get(author, 0))
    kept: tuple[float, ...] = ()
    if confidence_threshold is not None and sites.b_factor is not None:
        confidence = np.where(found, sites.b_factor[rows[best]], -np.inf).max(-1)
        notes += mask_unconfident(mask, confidence, confidence_threshold)
        kept = rounded(confidence)
    if "ARG" in sites.components:
        arginine = observed & (sites.component[last] == sites.components.index("ARG"))
        _fix_arginines(positions, mask, arginine)
    codes = sites.insertion[last[observed]]
    where = np.flatnonzero(observed)[codes != BLANK]
    return Chain(
        chain_id=author,
        sequence=sequence,
        positions=positions,
        mask=mask,
        observed=observed,
        insertion_codes={
            int(i): sites.insertions[c] for i, c in zip(where, codes[codes != BLANK], strict=True)
        },
        notes=notes,
        confidence=kept,
    )


def rounded(confidence: Float[np.ndarray, " L"]) -> tuple[float, ...]:
    """Confidences to one decimal, -1 where there is none: as records keep them."""
    known = np.where(np.isfinite(confidence), confidence, -1.0)
    return tuple(np.round(known.astype(np.float64), 1).tolist())


def mask_unconfident(
    mask: UInt8[np.ndarray, "L 37"], confidence: Float[np.ndarray, " L"], threshold: float
) -> tuple[str, ...]:
    """Take away the atoms of residues whose confidence does not exceed it; says how many."""
    seen = mask.any(-1)
    unsure = seen & ~(confidence > threshold)
    mask[unsure] = 0
    if not unsure.any():
        return ()
    notes = [f"{unsure.sum()} residues below confidence"]
    highest = confidence[seen].max()
    if highest <= 1:
        notes.append(f"the highest confidence is {highest:.3g}: pLDDT goes to 100")
    return tuple(notes)


def _of_preferred(
    sites: AtomSites,
    rows: Int[np.ndarray, " R"],
    index: Int[np.ndarray, " R"],
    prefer: Mapping[int, str],
) -> Bool[np.ndarray, " R"]:
    """False for atoms of another residue where the preferred one has atoms too."""
    keep = np.ones(len(rows), bool)
    for position, name in prefer.items():
        at = index == position
        if name in sites.components:
            wanted = at & (sites.component[rows] == sites.components.index(name))
            if wanted.any():
                keep &= ~at | wanted
    return keep


def _notes(outside: int, other: int, absent: int) -> tuple[str, ...]:
    notes = []
    if absent:
        notes.append(f"{absent} atoms without coordinates")
    if outside:
        notes.append(f"{outside} atoms outside the sequence")
    if other:
        notes.append(f"{other} atoms of a second residue type at the same position")
    return tuple(notes)


@njit(cache=True, nogil=True)
@no_type_check
def _select(index: Any, atom37: Any, altloc: Any, occupancy: Any, same: Any, num_res: Any) -> Any:
    """Row that gives each atom of each residue, -1 where there is none."""
    best = np.full((num_res, 37), -1, np.int64)
    occupied = np.zeros((num_res, 37), np.float64)
    blank = np.zeros((num_res, 37), np.bool_)
    for row in range(index.size):
        atom = atom37[row]
        if atom < 0 or not same[row]:
            continue
        residue = index[row]
        known = best[residue, atom]
        if known < 0:
            best[residue, atom] = row
            occupied[residue, atom] = occupancy[row]
            blank[residue, atom] = altloc[row] == 0
        elif altloc[row] != 0:
            # An unlabelled record before a labelled one yields unless it is fuller.
            if blank[residue, atom]:
                blank[residue, atom] = False
                better = not occupied[residue, atom] > occupancy[row]
            else:
                better = occupancy[row] > occupied[residue, atom]
            if better:
                best[residue, atom] = row
                occupied[residue, atom] = occupancy[row]
    return best


def _fix_arginines(
    positions: Float[np.ndarray, "L 37 3"], mask: Any, arginine: Bool[np.ndarray, " L"]
) -> None:
    """Swap NH1 and NH2 where NH2 is the one nearer to CD; in place."""
    cd, nh1, nh2 = (ATOM_ORDER[name] for name in ("CD", "NH1", "NH2"))
    rows = np.flatnonzero(arginine & (mask[:, [cd, nh1, nh2]] > 0).all(-1))
    far1 = np.square(positions[rows, nh1] - positions[rows, cd]).sum(-1)
    far2 = np.square(positions[rows, nh2] - positions[rows, cd]).sum(-1)
    swap = rows[far1 > far2]
    positions[swap[:, None], [nh1, nh2]] = positions[swap[:, None], [nh2, nh1]]
