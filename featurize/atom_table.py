"""The `_atom_site` table of a file as gemmi reads it, row by row: any file, and slower.

`atom_loop` reads the regular tables, which are nearly all; this is its oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from evofeed.errors import MmcifError
from evofeed.featurize.atom_labels import AtomRows, lacks_labels, with_author_labels
from evofeed.featurize.atom_sites import BLANK, UNSET, AtomSites
from evofeed.featurize.config import FeaturizeConfig
from evofeed.residues import ATOM_ORDER
from evofeed.shapes import Float, Int

_INSTEAD: Final = {
    "label_asym_id": "auth_asym_id",
    "label_seq_id": "auth_seq_id",
    "auth_asym_id": "label_asym_id",
    "auth_seq_id": "label_seq_id",
}
"""Items that say the same by other names."""
_ABSENT: Final = (*UNSET, "nan")


def read_atom_sites(
    block: Any, path: str, config: FeaturizeConfig, *, b_factor: bool = False
) -> AtomSites:
    """The polymer atoms of the first model of a gemmi block.

    Args:
        block: of the file.
        path: for errors.
        config: what may be missing, and caps.
        b_factor: read it too, if it is there.

    Raises:
        MmcifError: no atoms, too many, a needed item is missing, or a number is none.
    """
    table = _Columns(block, path, config)
    internal = table.text("label_asym_id")
    author = table.filled("auth_asym_id", internal)
    number = table.text("label_seq_id")
    by_author = not config.require_labels and lacks_labels(internal, number)
    chains_by_author = by_author and any(text in UNSET for text in internal)
    if by_author:
        internal, number = with_author_labels(
            AtomRows(
                internal=internal,
                number=number,
                author=author,
                author_number=table.filled("auth_seq_id", number),
                insertion=table.text("pdbx_PDB_ins_code", "."),
                component=table.text("label_comp_id"),
                atom=table.text("label_atom_id"),
            )
        )
    author_of = dict(zip(internal, author, strict=True))
    polymer = [row for row, text in enumerate(number) if text not in UNSET]
    absent: dict[str, int] = {}
    if not config.require_coordinates:
        polymer = _with_coordinates(polymer, table, author, absent)

    def of(values: list[str]) -> list[str]:
        return values if len(polymer) == len(values) else [values[row] for row in polymer]

    internal_codes, internals = _codes(of(internal))
    author_codes, authors = _codes(of(author))
    component_codes, components = _codes(of(table.text("label_comp_id")))
    atoms = of(table.text("label_atom_id"))
    insertion_codes, insertions = _codes(of(table.text("pdbx_PDB_ins_code", ".")), first=UNSET)
    altloc_codes, _ = _codes(of(table.text("label_alt_id", ".")), first=UNSET)
    atom37 = np.array([ATOM_ORDER.get(atom, -1) for atom in atoms], np.int32)
    if "MSE" in components:  # the selenium takes the sulphur's place
        mse = component_codes == components.index("MSE")
        selenium = np.array([name.upper() == "SE" for name in atoms])
        atom37[mse & selenium] = ATOM_ORDER["SD"]
    numbers = of(number)
    author_numbers = of(table.filled("auth_seq_id", number))
    groups = of(table.text("group_PDB", "ATOM"))
    return AtomSites(
        internal=internal_codes,
        author=author_codes,
        component=component_codes,
        number=np.array([int(text) for text in numbers], np.int64),
        author_number=np.array([int(text) for text in author_numbers], np.int64),
        insertion=insertion_codes,
        hetero=np.array([group == "HETATM" for group in groups], bool),
        atom37=atom37,
        altloc=altloc_codes,
        occupancy=table.floats("occupancy", of, "1"),
        positions=np.stack([table.floats(f"Cartn_{axis}", of) for axis in "xyz"], axis=-1).astype(
            np.float32
        ),
        internals=internals,
        authors=authors,
        components=components,
        insertions=insertions,
        author_of=author_of,
        b_factor=_b_factor(table, of) if b_factor else None,
        absent=absent,
        by_author=by_author,
        chains_by_author=chains_by_author,
    )


def _with_coordinates(
    polymer: list[int], table: _Columns, author: list[str], absent: dict[str, int]
) -> list[int]:
    """The rows that have all three; the others are counted by author's chain."""
    columns = [table.text(f"Cartn_{axis}") for axis in "xyz"]
    unknown = {
        row
        for column in columns
        if not {"nan", "NaN", "NAN", *UNSET}.isdisjoint(column)
        for row, text in enumerate(column)
        if text.lower() in _ABSENT
    }
    if not unknown:
        return polymer
    for row in polymer:
        if row in unknown:
            absent[author[row]] = absent.get(author[row], 0) + 1
    return [row for row in polymer if row not in unknown]


def _b_factor(table: _Columns, of: Any) -> Float[np.ndarray, " A"] | None:
    return table.floats("B_iso_or_equiv", of, "0") if table.has("B_iso_or_equiv") else None


class _Columns:
    """Columns of the atom table by name, unquoted; rows of the first model."""

    def __init__(self, block: Any, path: str, config: FeaturizeConfig) -> None:
        self._block, self._path, self._strict = block, path, config.require_labels
        self._cache: dict[str, list[str]] = {}
        items = ("label_asym_id", "auth_asym_id", "label_atom_id", "Cartn_x")
        size = max(len(block.find_values(f"_atom_site.{item}")) for item in items)
        if size == 0:
            raise MmcifError(
                "no atoms (_atom_site is missing or empty): to be left out, or replaced by the "
                "file that has the coordinates",
                path=path or None,
            )
        if size > config.caps.max_atoms:
            raise MmcifError(
                f"{size} atoms, more than the cap of {config.caps.max_atoms}; raise "
                "InputCaps.max_atoms if meant",
                path=path or None,
            )
        self._size = size
        models = self._read("pdbx_PDB_model_num", "1")  # the first comes first, it says
        self._rows = next((row for row, m in enumerate(models) if m != models[0]), size)

    def has(self, name: str) -> bool:
        """Whether the item is there."""
        return bool(self._block.find_values(f"_atom_site.{name}"))

    def text(self, name: str, instead: str = "") -> list[str]:
        """A column; `instead` is a constant where there is none."""
        if name not in self._cache:
            self._cache[name] = self._read(name, instead)[: self._rows]
        return self._cache[name]

    def filled(self, name: str, other: list[str]) -> list[str]:
        """A column in which `other` replaces what is unset."""
        values = self.text(name)
        if self._strict or not any(text in values for text in UNSET):
            return values
        pairs = zip(values, other, strict=True)
        return [instead if text in UNSET else text for text, instead in pairs]

    def _read(self, name: str, instead: str) -> list[str]:
        from gemmi import cif

        values = list(self._block.find_values(f"_atom_site.{name}"))
        if not values and name in _INSTEAD and not (self._strict and name.startswith("label")):
            values = list(self._block.find_values(f"_atom_site.{_INSTEAD[name]}"))
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

    def floats(
        self, name: str, of: Callable[[list[str]], list[str]], instead: str = ""
    ) -> Float[np.ndarray, " A"]:
        """Numbers of a column's chosen rows; `instead` where one is not known."""
        values = of(self.text(name, instead))
        if instead and not self._strict and any(text in values for text in UNSET):
            values = [instead if text in UNSET else text for text in values]
        numbers = np.fromiter(map(float, values), np.float64, len(values))
        if not np.all(np.abs(numbers) < 1e7):  # NaN fails too
            raise MmcifError(
                f"_atom_site.{name} holds {values[int(np.argmin(np.abs(numbers) < 1e7))]!r}",
                path=self._path or None,
            )
        return numbers


def _codes(values: list[str], first: Iterable[str] = ()) -> tuple[Int[np.ndarray, " A"], list[str]]:
    """Codes of strings by first appearance; those of `first` all get code 0."""
    known: dict[str, int] = dict.fromkeys(first, BLANK)
    start = 1 if known else 0
    for value in dict.fromkeys(values):
        if value not in known:
            known[value] = start
            start += 1
    labels = ([""] if first else []) + [v for v, code in known.items() if code or not first]
    return np.array([known[value] for value in values], np.int32), labels
