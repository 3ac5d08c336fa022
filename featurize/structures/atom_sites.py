"""Placement of a chain's atoms on its sequence, in the 37 atom slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Bool, Float, Int, UInt8
from evofeed.featurize.structures.atom_table import AtomTable
from evofeed.featurize.structures.structure import Chain
from evofeed.protein.residues import ATOM37_NUM, ATOM_ORDER


@dataclass(frozen=True, slots=True, eq=False)
class PlacedRows:
    """The atom records of a chain, and their positions in its sequence.

    Attributes:
        rows: of the atom table, with coordinates.
        index: position of each; those outside the sequence are counted and left out.
        prefer: residue name to use, by position with atoms of several residue names.
        absent: number of atoms without coordinates.
        residue_index, notes: as in `Chain`.
    """

    chain_id: str
    sequence: str
    rows: Int[np.ndarray, " A"]
    index: Int[np.ndarray, " A"]
    prefer: Mapping[int, str] = field(default_factory=dict)
    absent: int = 0
    residue_index: Int[np.ndarray, " L"] | None = None
    notes: tuple[str, ...] = ()


def place_chain(
    table: AtomTable, placed: PlacedRows, confidence_threshold: float | None = None
) -> Chain:
    """The chain of placed atom records.

    The last record of a position names its residue; records of that residue
    count, others at the same position (another residue type, another hetero
    flag) do not. Of alternative locations the one with the highest occupancy
    is used, the first of equals, as in Biopython. Arginine's NH1 is the one
    nearer to CD (OpenFold). Residues of which no B factor exceeds the
    threshold of confidence lose their atoms.
    """
    num_res = len(placed.sequence)
    inside = (placed.index >= 0) & (placed.index < num_res)
    rows, index = placed.rows[inside], placed.index[inside]
    if placed.prefer:
        preferred = _preferred(table, rows, index, placed.prefer)
        rows, index = rows[preferred], index[preferred]
    last = np.full(num_res, -1, np.int64)
    last[index] = rows  # of equal indices numpy keeps the last
    observed = last >= 0
    same = np.ones(len(rows), bool)
    component, insertion = table.component.codes, table.insertion.codes
    for column in (component, table.author_number, insertion, table.hetero):
        same &= column[rows] == column[last[index]]
    atom37 = table.atom37[rows]
    best = _select(index, atom37, table.altloc[rows], table.occupancy[rows], same, num_res)
    positions = np.zeros([num_res, ATOM37_NUM, 3], np.float32)
    has_atom = best >= 0
    positions[has_atom] = table.xyz[rows[best[has_atom]]].astype(np.float32)
    mask = has_atom.astype(np.uint8)
    omitted = {
        "atoms without coordinates": placed.absent,
        "atoms outside the sequence": int((~inside).sum()),
        "atoms of a second residue type at the same position": int((~same).sum()),
    }
    notes = tuple(f"{count} {atoms}" for atoms, count in omitted.items() if count)
    confidences: tuple[float, ...] = ()
    if confidence_threshold is not None and table.b_factor is not None:
        confidence = np.where(has_atom, table.b_factor[rows[best]], -np.inf).max(-1)
        notes += mask_unconfident(mask, confidence, confidence_threshold)
        confidences = rounded(confidence)
    if "ARG" in table.component.names:
        arginine = observed & (component[last] == table.component.code("ARG"))
        _fix_arginines(positions, mask, arginine)
    return Chain(
        chain_id=placed.chain_id,
        sequence=placed.sequence,
        positions=positions,
        mask=mask,
        observed=observed,
        notes=(*notes, *placed.notes),
        confidence=confidences,
        residue_index=placed.residue_index,
    )


def rounded(confidence: Float[np.ndarray, " L"]) -> tuple[float, ...]:
    """Confidences to one decimal, -1 where there is none, as records store them."""
    finite = np.where(np.isfinite(confidence), confidence, -1.0)
    return tuple(np.round(finite.astype(np.float64), 1).tolist())


def mask_unconfident(
    mask: UInt8[np.ndarray, "L 37"], confidence: Float[np.ndarray, " L"], threshold: float
) -> tuple[str, ...]:
    """Masks the atoms of residues whose confidence does not exceed `threshold`, in place; returns
    notes on their number."""
    observed = mask.any(-1)
    unconfident = observed & ~(confidence > threshold)
    mask[unconfident] = 0
    if not unconfident.any():
        return ()
    notes = [f"{unconfident.sum()} residues below confidence"]
    highest = confidence[observed].max()
    if highest <= 1:
        notes.append(f"the highest confidence is {highest:.3g}: pLDDT goes to 100")
    return tuple(notes)


def _preferred(
    table: AtomTable,
    rows: Int[np.ndarray, " R"],
    index: Int[np.ndarray, " R"],
    prefer: Mapping[int, str],
) -> Bool[np.ndarray, " R"]:
    """False for atoms of another residue at a position where the preferred one has atoms."""
    selected = np.ones(len(rows), bool)
    for position, name in prefer.items():
        at_position = index == position
        preferred = at_position & (table.component.codes[rows] == table.component.code(name))
        if preferred.any():
            selected &= ~at_position | preferred
    return selected


@njit(cache=True, nogil=True)
@no_type_check
def _select(index: Any, atom37: Any, altloc: Any, occupancy: Any, same: Any, num_res: Any) -> Any:
    """Row of each atom of each residue, -1 where there is none."""
    best = np.full((num_res, 37), -1, np.int64)
    occupied = np.zeros((num_res, 37), np.float64)
    blank = np.zeros((num_res, 37), np.bool_)
    for row in range(index.size):
        atom = atom37[row]
        if atom < 0 or not same[row]:
            continue
        residue = index[row]
        if best[residue, atom] < 0:
            best[residue, atom] = row
            occupied[residue, atom] = occupancy[row]
            blank[residue, atom] = altloc[row] == 0
        elif altloc[row] != 0:
            # A record without altloc is replaced by one with altloc unless its occupancy is higher.
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
    """Swaps NH1 and NH2 where NH2 is the one nearer to CD; in place."""
    cd, nh1, nh2 = (ATOM_ORDER[name] for name in ("CD", "NH1", "NH2"))
    rows = np.flatnonzero(arginine & (mask[:, [cd, nh1, nh2]] > 0).all(-1))
    squared1 = np.square(positions[rows, nh1] - positions[rows, cd]).sum(-1)
    squared2 = np.square(positions[rows, nh2] - positions[rows, cd]).sum(-1)
    swap = rows[squared1 > squared2]
    positions[swap[:, None], [nh1, nh2]] = positions[swap[:, None], [nh2, nh1]]
