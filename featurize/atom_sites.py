"""The `_atom_site` table as arrays, and a chain's atoms placed on its sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

from evofeed.errors import MmcifError
from evofeed.featurize.config import InputCaps
from evofeed.featurize.structure import Chain
from evofeed.residues import ATOM37_NUM, ATOM_ORDER
from evofeed.shapes import Bool, Float, Int, UInt8

_UNSET: Final = (".", "?")
_NO_START: Final = -(1 << 40)
_BLANK: Final = 0
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


def read_atom_sites(block: Any, path: str, caps: InputCaps) -> AtomSites:
    """The polymer atoms of the first model of a gemmi block.

    Raises:
        MmcifError: no atoms, too many, a needed item is missing, or a number is none.
    """
    table = _Columns(block, path, caps)
    rows = table.first_model()
    internal = table.text("label_asym_id", rows)
    author = table.text("auth_asym_id", rows, "label_asym_id")
    author_of = dict(zip(internal, author, strict=True))
    number = table.text("label_seq_id", rows)
    polymer = [row for row, text in enumerate(number) if text not in _UNSET]

    def column(name: str, instead: str = "") -> list[str]:
        values = table.text(name, rows, instead)
        return values if len(polymer) == len(values) else [values[row] for row in polymer]

    internal_codes, internals = _codes(column("label_asym_id"))
    author_codes, authors = _codes(column("auth_asym_id", "label_asym_id"))
    names = column("label_comp_id")
    component_codes, components = _codes(names)
    atoms = [ATOM_ORDER.get(atom, -1) for atom in column("label_atom_id")]
    insertion_codes, insertions = _codes(column("pdbx_PDB_ins_code", "."), first=_UNSET)
    altloc_codes, _ = _codes(column("label_alt_id", "."), first=_UNSET)
    atom37 = np.array(atoms, np.int32)
    if "MSE" in components:  # the selenium takes the sulphur's place
        mse = component_codes == components.index("MSE")
        selenium = np.array([name.upper() == "SE" for name in column("label_atom_id")])
        atom37[mse & selenium] = ATOM_ORDER["SD"]
    return AtomSites(
        internal=internal_codes,
        author=author_codes,
        component=component_codes,
        number=np.array([int(text) for text in column("label_seq_id")], np.int64),
        author_number=np.array(
            [int(text) for text in column("auth_seq_id", "label_seq_id")], np.int64
        ),
        insertion=insertion_codes,
        hetero=np.array([group == "HETATM" for group in column("group_PDB", "ATOM")], bool),
        atom37=atom37,
        altloc=altloc_codes,
        occupancy=table.floats(column("occupancy", "1"), "occupancy"),
        positions=np.stack(
            [table.floats(column(f"Cartn_{axis}"), f"Cartn_{axis}") for axis in "xyz"], axis=-1
        ).astype(np.float32),
        internals=internals,
        authors=authors,
        components=components,
        insertions=insertions,
        author_of=author_of,
    )


class _Columns:
    """Columns of the atom table by name, unquoted."""

    def __init__(self, block: Any, path: str, caps: InputCaps) -> None:
        self._block = block
        self._path = path
        self._cache: dict[str, list[str]] = {}
        size = len(block.find_values("_atom_site.label_asym_id"))
        if size == 0:
            raise MmcifError("no atoms (_atom_site is missing or empty)", path=path or None)
        if size > caps.max_atoms:
            raise MmcifError(
                f"{size} atoms, more than the cap of {caps.max_atoms}; raise "
                "InputCaps.max_atoms if meant",
                path=path or None,
            )
        self._size = size

    def first_model(self) -> int:
        """Rows of the first model; it comes first, as the dictionary asks."""
        models = self.text("pdbx_PDB_model_num", self._size, "1")
        first = models[0]
        return next((row for row, model in enumerate(models) if model != first), len(models))

    def text(self, name: str, rows: int, instead: str = "") -> list[str]:
        """A column's first rows; `instead` is another item's name or a constant."""
        if name not in self._cache:
            self._cache[name] = self._read(name, instead)
        values = self._cache[name]
        return values if len(values) == rows else values[:rows]

    def _read(self, name: str, instead: str) -> list[str]:
        from gemmi import cif

        values = list(self._block.find_values(f"_atom_site.{name}"))
        if not values and instead in ("label_asym_id", "label_seq_id"):
            return self._read(instead, "")
        if not values and instead:
            return [instead] * self._size
        if len(values) != self._size:
            raise MmcifError(
                f"_atom_site.{name} has {len(values)} values for {self._size} atoms",
                path=self._path or None,
            )
        if any(value[0] in "'\";" for value in set(values)):
            values = [cif.as_string(v) if v[0] in "'\";" else v for v in values]
        return values

    def floats(self, values: list[str], name: str) -> Float[np.ndarray, " A"]:
        numbers = np.fromiter(map(float, values), np.float64, len(values))
        if not np.all(np.abs(numbers) < 1e7):  # NaN fails too
            raise MmcifError(
                f"_atom_site.{name} holds {values[int(np.argmin(np.abs(numbers) < 1e7))]!r}",
                path=self._path or None,
            )
        return numbers


def _codes(values: list[str], first: Iterable[str] = ()) -> tuple[Int[np.ndarray, " A"], list[str]]:
    """Codes of strings by first appearance; those of `first` all get code 0."""
    known: dict[str, int] = dict.fromkeys(first, _BLANK)
    start = 1 if known else 0
    for value in dict.fromkeys(values):
        if value not in known:
            known[value] = start
            start += 1
    labels = ([""] if first else []) + [v for v, code in known.items() if code or not first]
    return np.array([known[value] for value in values], np.int32), labels


def place_chain(
    sites: AtomSites,
    author: str,
    starts: Mapping[str, int],
    sequence: str,
    prefer: Mapping[int, str] | None = None,
    confidence_threshold: float | None = None,
) -> Chain:
    """Atoms of an author's chain on the positions of its sequence.

    The last record of a position tells its residue; records of that residue
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
    for field in (sites.component, sites.author_number, sites.insertion, sites.hetero):
        same &= field[rows] == field[last[index]]
    best = _select(
        index, sites.atom37[rows], sites.altloc[rows], sites.occupancy[rows], same, num_res
    )
    positions = np.zeros([num_res, ATOM37_NUM, 3], np.float32)
    found = best >= 0
    positions[found] = sites.positions[rows[best[found]]]
    mask = found.astype(np.uint8)
    notes = _notes(int((~inside).sum()), int((~same).sum()))
    if confidence_threshold is not None and sites.b_factor is not None:
        confidence = np.where(found, sites.b_factor[rows[best]], -np.inf).max(-1)
        notes += mask_unconfident(mask, confidence, confidence_threshold)
    if "ARG" in sites.components:
        arginine = observed & (sites.component[last] == sites.components.index("ARG"))
        _fix_arginines(positions, mask, arginine)
    codes = sites.insertion[last[observed]]
    where = np.flatnonzero(observed)[codes != _BLANK]
    return Chain(
        chain_id=author,
        sequence=sequence,
        positions=positions,
        mask=mask,
        observed=observed,
        insertion_codes={
            int(i): sites.insertions[c] for i, c in zip(where, codes[codes != _BLANK], strict=True)
        },
        notes=notes,
    )


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


def _notes(outside: int, other: int) -> tuple[str, ...]:
    notes = []
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
