"""Atom records of a structure file as columns, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.base.shapes import Bool, Float, Int, Shaped
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.structures.cif import UNSET, unquoted
from evofeed.protein.residues import ATOM_ORDER

NO_NUMBER: Final = -(1 << 40)
"""`label_seq_id` of records outside polymers."""
MAX_COORDINATE: Final = 1e7
"""Ångström: a larger value is not a coordinate."""
_SYNONYMS: Final = {
    "label_asym_id": "auth_asym_id",
    "label_seq_id": "auth_seq_id",
    "auth_asym_id": "label_asym_id",
    "auth_seq_id": "label_seq_id",
}
"""Item to read where another is missing."""


class Coded(NamedTuple):
    """A column of texts as codes into the distinct ones."""

    codes: Int[np.ndarray, " A"]
    names: list[str]

    @classmethod
    def of(cls, texts: Sequence[str], blank: Iterable[str] = ()) -> Coded:
        """Codes by first appearance; with `blank`, code 0 is '' and replaces those texts."""
        import pyarrow as pa

        column = pa.array(texts, pa.utf8()).dictionary_encode()
        codes, names = column.indices.to_numpy().astype(np.int32), column.dictionary.to_pylist()
        blank = tuple(blank)
        if not blank:
            return cls(codes, names)
        other = [name for name in names if name not in blank]
        code_of = {name: code for code, name in enumerate(other, 1)}
        new_codes = np.array([code_of.get(name, 0) for name in names], np.int32)
        return cls(new_codes[codes], ["", *other])

    def code(self, name: str) -> int:
        """Code of a text, -1 if no row has it."""
        return self.names.index(name) if name in self.names else -1

    def where(self, predicate: Callable[[str], bool]) -> Bool[np.ndarray, " A"]:
        """Mask of the rows whose text satisfies a predicate."""
        return np.asarray(np.array([predicate(name) for name in self.names], bool)[self.codes])


@dataclass(frozen=True, slots=True, eq=False)
class AtomTable:
    """Atom records of the first model, in file order.

    Attributes:
        label: `label_asym_id`; the author's where the file has none.
        number: `label_seq_id`, `NO_NUMBER` where it is unset.
        author_number, insertion: of the residue; code 0 means none.
        component, atom: names.
        altloc: 0 for no alternative location.
        xyz: ångström, NaN where an atom has no coordinates.
        occupancy, b_factor: unchanged; None for B factors that are missing or were not read.
        ters: rows that follow a TER record.
        unlabelled: the file has no `label_seq_id`, or lacks some `label_asym_id`.
    """

    chain: Coded
    label: Coded
    number: Int[np.ndarray, " A"]
    author_number: Int[np.ndarray, " A"]
    insertion: Coded
    component: Coded
    atom: Coded
    altloc: Int[np.ndarray, " A"]
    hetero: Bool[np.ndarray, " A"]
    xyz: Float[np.ndarray, "A 3"]
    occupancy: Float[np.ndarray, " A"]
    b_factor: Float[np.ndarray, " A"] | None = None
    ters: Int[np.ndarray, " T"] = field(default_factory=lambda: np.zeros(0, np.int64))
    unlabelled: bool = False

    @property
    def absent(self) -> Bool[np.ndarray, " A"]:
        """Atoms without coordinates."""
        return np.asarray(np.isnan(self.xyz).any(-1))

    @property
    def atom37(self) -> Int[np.ndarray, " A"]:
        """Slot of each atom, -1 for none; selenium of MSE has the sulphur's."""
        slots = np.array([ATOM_ORDER.get(name, -1) for name in self.atom.names], np.int32)
        slots = slots[self.atom.codes]
        if "MSE" in self.component.names:
            mse = self.component.codes == self.component.code("MSE")
            slots[mse & self.atom.where(lambda name: name.upper() == "SE")] = ATOM_ORDER["SD"]
        return np.asarray(slots)


def read_atom_table(
    block: Any, path: str, config: FeaturizeConfig, *, b_factor: bool = False
) -> AtomTable:
    """The atom table of an mmCIF block.

    Raises:
        MmcifError: no atoms, too many, a required item is missing, or a number is invalid.
    """
    items = AtomItems(block, path, config)
    strict = config.require_labels
    label, number = items.coded("label_asym_id"), items.integers("label_seq_id")
    chain, author_number = items.coded("auth_asym_id"), items.integers("auth_seq_id")
    unlabelled = any(text in UNSET for text in label.names) or bool((number == NO_NUMBER).all())
    if not strict:
        author_number = np.where(author_number == NO_NUMBER, number, author_number)
        if any(text in UNSET for text in chain.names):
            pairs = zip(chain.codes.tolist(), label.codes.tolist(), strict=True)
            texts = ((chain.names[a], label.names[b]) for a, b in pairs)
            chain = Coded.of([b if a in UNSET else a for a, b in texts])
    elif (author_number[number != NO_NUMBER] == NO_NUMBER).any():
        raise items.error("_atom_site.auth_seq_id is not set everywhere")
    xyz = np.stack([items.floats(f"Cartn_{axis}") for axis in "xyz"], axis=-1)
    if config.require_coordinates and np.isnan(xyz[number != NO_NUMBER]).any():
        raise items.error("_atom_site.Cartn_x, y or z is not a number")
    has_b_factor = b_factor and items.has("B_iso_or_equiv")
    return AtomTable(
        chain=chain,
        label=label,
        number=number,
        author_number=author_number,
        insertion=items.coded("pdbx_PDB_ins_code", ".", blank=UNSET),
        component=items.coded("label_comp_id"),
        atom=items.coded("label_atom_id"),
        altloc=items.coded("label_alt_id", ".", blank=UNSET).codes,
        hetero=items.coded("group_PDB", "ATOM").where(lambda group: group == "HETATM"),
        xyz=xyz,
        occupancy=items.floats("occupancy", 1.0),
        b_factor=items.floats("B_iso_or_equiv", 0.0) if has_b_factor else None,
        unlabelled=not strict and unlabelled,
    )


class AtomItems:
    """Columns of `_atom_site` by item, unquoted; rows of the first model."""

    def __init__(self, block: Any, path: str, config: FeaturizeConfig) -> None:
        self._block, self._path, self._strict = block, path, config.require_labels
        items = ("label_asym_id", "auth_asym_id", "label_atom_id", "Cartn_x")
        self.size = size = max(len(block.find_values(f"_atom_site.{item}")) for item in items)
        if size == 0:
            raise self.error(
                "no atoms (_atom_site is missing or empty): leave the file out, or replace it by "
                "one with coordinates"
            )
        if message := config.caps.excess("max_atoms", size, f"{size} atoms"):
            raise self.error(message)
        self.rows = size
        models = self.coded("pdbx_PDB_model_num", "1").codes
        self.rows = int(np.argmax(models > 0)) or size  # codes count by first appearance

    def error(self, message: str) -> MmcifError:
        """An error of the table, with its file."""
        return MmcifError(message, path=self._path)

    def has(self, item: str) -> bool:
        """True if the file has the item."""
        return bool(self._block.find_values(f"_atom_site.{item}"))

    def texts(self, item: str, default: str = "") -> list[str]:
        """A column; of a missing one, rows of `default` if given."""
        values = list(self._block.find_values(f"_atom_site.{item}"))
        if not values and item in _SYNONYMS and not (self._strict and item.startswith("label")):
            values = list(self._block.find_values(f"_atom_site.{_SYNONYMS[item]}"))
        if not values and default:
            return [default] * self.rows
        if len(values) != self.size:
            raise self.error(f"_atom_site.{item} has {len(values)} values for {self.size} atoms")
        return values[: self.rows]

    def coded(self, item: str, default: str = "", blank: Iterable[str] = ()) -> Coded:
        """A column of texts."""
        quoted = Coded.of(self.texts(item, default))
        distinct = Coded.of([unquoted(name) for name in quoted.names], blank)
        return Coded(distinct.codes[quoted.codes], distinct.names)

    def names(
        self, item: str, default: str = "", blank: Iterable[str] = ()
    ) -> Shaped[np.ndarray, " A"]:
        """A column of texts as an array."""
        column = self.coded(item, default, blank)
        texts: np.ndarray = np.array(column.names, np.str_)[column.codes]
        return texts

    def integers(self, item: str) -> Int[np.ndarray, " A"]:
        """A column of integers, `NO_NUMBER` where it is unset."""
        column = self.coded(item)
        values = [NO_NUMBER if name in UNSET else int(name) for name in column.names]
        return np.asarray(np.array(values, np.int64)[column.codes])

    def floats(self, item: str, default: float | None = None) -> Float[np.ndarray, " A"]:
        """A column of numbers; unset ones are `default`, else NaN."""
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = self.texts(item, "" if default is None else str(default))
        try:
            values: Any = pc.cast(pa.array(texts, pa.utf8()), pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            numbers = ["nan" if t in UNSET else t.partition("(")[0] for t in texts]
            values = np.array([float(text) for text in numbers])
            if default is not None and self._strict and np.isnan(values).any():
                raise self.error(f"_atom_site.{item} is not set everywhere") from None
        if default is not None:
            values = np.where(np.isnan(values), default, values)
        too_large = np.abs(values) >= MAX_COORDINATE
        if too_large.any():
            raise self.error(f"_atom_site.{item} holds {texts[int(too_large.argmax())]!r}")
        return np.asarray(values)
