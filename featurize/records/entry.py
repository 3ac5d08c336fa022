"""mmCIF text -> `EntryRecord`: every table that a project reads, unchanged."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any, Final

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.base.shapes import Float, Shaped
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.structures.atom_table import AtomItems
from evofeed.featurize.structures.cif import RESOLUTIONS, UNSET, pairs_of, read_block, values_of
from evofeed.protein.entry_record import (
    ALTLOC_NONE,
    AssemblyCopies,
    Dropped,
    Entity,
    EntryRecord,
    Link,
    LinkEnd,
    run_starts,
)

_LABELLED: Final = FeaturizeConfig(require_labels=True)
_REQUIRED: Final = (
    "label_asym_id label_entity_id label_comp_id label_seq_id label_atom_id type_symbol group_PDB "
    "auth_asym_id auth_seq_id"
).split()
_OPTIONAL: Final = ("label_alt_id", "pdbx_PDB_ins_code", "pdbx_formal_charge")
_RESIDUE_ITEMS: Final = (
    "label_asym_id label_seq_id label_comp_id auth_asym_id auth_seq_id pdbx_PDB_ins_code"
).split()
"""Items that identify the residue at the end of a link, as far as `_struct_conn` has them."""
_LINK_ITEMS: Final = (
    "ptnr{0}_label_asym_id ptnr{0}_label_seq_id ptnr{0}_label_comp_id ptnr{0}_label_atom_id "
    "pdbx_ptnr{0}_label_alt_id ptnr{0}_auth_asym_id ptnr{0}_auth_seq_id "
    "pdbx_ptnr{0}_PDB_ins_code ptnr{0}_symmetry"
).split()
_MAX_OPERATORS: Final = 10_000
"""Operators of an assembly: the wwPDB's have a few thousand."""
_HISTORY: Final = "_pdbx_audit_revision_history.revision_date"
_DEPOSITED: Final = "_pdbx_database_status.recvd_initial_deposition_date"


def entry_record(data: bytes, *, path: str = "") -> EntryRecord:
    """The record of an entry's first model and of assembly `1`, or the first if none has that name.

    Raises:
        MmcifError: the file is not mmCIF, has no atoms, or its tables contradict each other.
    """
    tables = _Tables(read_block(data, path), path)
    try:
        return tables.record()
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise MmcifError(f"its tables do not fit together: {error}", path=path) from error


class _Tables:
    def __init__(self, block: Any, path: str) -> None:
        self.block = block
        self.path = path
        self.dropped: list[Dropped] = []

    def column(self, item: str) -> list[str]:
        return values_of(self.block, item)

    def numbers(self, item: str) -> Float[np.ndarray, " n"]:
        texts = self.column(item)
        try:
            return np.array([np.nan if v in UNSET else float(v.split("(")[0]) for v in texts])
        except ValueError as error:
            raise self.error(f"{item}: {error}") from None

    def error(self, message: str) -> MmcifError:
        return MmcifError(message, path=self.path)

    def record(self) -> EntryRecord:
        items = AtomItems(self.block, self.path, _LABELLED)
        size = items.rows
        if size < items.size:
            further = Dropped(what="model", chain="", component="", reason="a further model")
            self.dropped.append(further)
        atoms = {name: items.names(name) for name in _REQUIRED}
        atoms |= {name: items.names(name, ".", UNSET) for name in _OPTIONAL}
        xyz = np.stack([items.floats(f"Cartn_{axis}") for axis in "xyz"], axis=1)
        for row in np.flatnonzero(np.isnan(xyz).any(axis=1))[:1].tolist():
            raise self.error(f"_atom_site.Cartn_x, y or z of atom {row + 1} is not a number")
        occupancy, b_factor = np.ones(size), np.full(size, np.nan)
        if items.has("occupancy"):
            values = items.floats("occupancy")
            occupancy = np.where(np.isnan(values), 1.0, values)
        if items.has("B_iso_or_equiv"):
            b_factor = items.floats("B_iso_or_equiv")
        order = _chain_order(atoms["label_asym_id"])
        atoms = {name: column[order] for name, column in atoms.items()}
        seq = _integers(atoms["label_seq_id"], 0)
        author = _integers(atoms["auth_seq_id"], -1)
        starts = run_starts(
            atoms["label_asym_id"], atoms["label_comp_id"], seq, author, atoms["pdbx_PDB_ins_code"]
        )
        chain_starts = run_starts(atoms["label_asym_id"][starts])
        first_atom = starts[chain_starts]
        chain_entities = atoms["label_entity_id"][first_atom]
        entities = self._entities(chain_entities)
        numbers = {chain_entity.name: row for row, chain_entity in enumerate(entities)}
        chain_entity = np.array([numbers[name] for name in chain_entities.tolist()])
        self._check_numbers(seq[starts], chain_starts, chain_entity, entities)
        copies, operators, name = self._assembly()
        altloc = atoms["label_alt_id"]
        types = pairs_of(self.block, "_chem_comp.id", "_chem_comp.type")
        ids = "_pdbx_struct_assembly."
        counts = dict(pairs_of(self.block, f"{ids}id", f"{ids}oligomeric_count"))
        return EntryRecord(
            entry=(self.column("_entry.id") or [self.block.name])[0].lower(),
            assembly=name,
            deposit_date=_or_empty((self.column(_DEPOSITED) or [""])[0]),
            release_dates=tuple(self.column(_HISTORY)),
            resolutions=tuple(
                (item, column[0]) for item in RESOLUTIONS if (column := self.column(item))
            ),
            methods=tuple(value.upper() for value in self.column("_exptl.method")),
            oligomeric_count=counts.get(name, next(iter(counts.values()), "")),
            entities=entities,
            copies=copies,
            operators=operators,
            component_types={code: kind.upper() for code, kind in types},
            chain_label=tuple(atoms["label_asym_id"][first_atom].tolist()),
            chain_author=tuple(atoms["auth_asym_id"][first_atom].tolist()),
            chain_entity=chain_entity,
            chain_residue=np.append(chain_starts, len(starts)),
            residue_name=atoms["label_comp_id"][starts],
            residue_seq=seq[starts],
            residue_author=author[starts],
            residue_insertion=atoms["pdbx_PDB_ins_code"][starts],
            residue_hetero=atoms["group_PDB"][starts] == "HETATM",
            residue_atom=np.append(starts, size),
            atom_name=atoms["label_atom_id"],
            atom_element=np.char.upper(atoms["type_symbol"]),
            atom_charge=_integers(atoms["pdbx_formal_charge"], 0),
            atom_altloc=np.where(
                altloc == "", ALTLOC_NONE, altloc.astype("U1").view(np.uint32).reshape(-1)
            ).astype(np.int32),
            atom_occupancy=occupancy[order],
            atom_b_factor=b_factor[order],
            atom_position=xyz[order],
            links=self._links(
                [[*map(_or_empty, atoms[name][starts].tolist())] for name in _RESIDUE_ITEMS]
            ),
            dropped=tuple(self.dropped),
        )

    def _check_numbers(
        self, seq: np.ndarray, chains: np.ndarray, entity: np.ndarray, entities: tuple[Entity, ...]
    ) -> None:
        """Raises for a residue number outside its polymer's sequence, which every project reads."""
        lengths = np.array([len(polymer.monomers) for polymer in entities])[entity]
        limit = np.repeat(lengths, np.diff(np.append(chains, len(seq))))
        for row in np.flatnonzero((limit > 0) & ((seq < 1) | (seq > limit)))[:1]:
            raise self.error(f"label_seq_id {seq[row]} in a chain of {limit[row]} residues")

    def _entities(self, of_chains: Shaped[np.ndarray, " C"]) -> tuple[Entity, ...]:
        """The entities of `_entity`, and then those that only chains name."""
        polymers, sequences = (
            dict(pairs_of(self.block, "_entity_poly.entity_id", f"_entity_poly.{item}"))
            for item in ("type", "pdbx_seq_one_letter_code_can")
        )
        monomers: dict[str, list[str]] = defaultdict(list)
        rivals: dict[str, list[tuple[int, str]]] = defaultdict(list)
        last: dict[str, str] = {}
        for entity, number, monomer in zip(
            self.column("_entity_poly_seq.entity_id"),
            self.column("_entity_poly_seq.num"),
            self.column("_entity_poly_seq.mon_id"),
            strict=False,
        ):
            if last.get(entity) == number:
                rivals[entity].append((len(monomers[entity]) - 1, monomer))
            else:
                monomers[entity].append(monomer)
            last[entity] = number
        names, types = self.column("_entity.id"), self.column("_entity.type")
        for name in np.setdiff1d(of_chains, names).tolist():
            names.append(name)
            types.append("polymer" if name in polymers or name in monomers else "non-polymer")
        return tuple(
            Entity(
                name=name,
                kind=kind.lower(),
                polymer=polymers.get(name, ""),
                monomers=tuple(monomers.get(name, ())),
                rivals=tuple(rivals.get(name, ())),
                sequence="".join(sequences.get(name, "").split()),
            )
            for name, kind in zip(names, types, strict=True)
        )

    def _assembly(self) -> tuple[tuple[AssemblyCopies, ...], Float[np.ndarray, "K 3 4"], str]:
        prefix = "_pdbx_struct_assembly_gen."
        ids = self.column(prefix + "assembly_id")
        if not ids:
            return (), np.eye(3, 4)[None], ""
        assembly = "1" if "1" in ids else ids[0]
        matrices = self._matrices()
        copies: list[AssemblyCopies] = []
        operators: list[np.ndarray] = []
        for name, expression, asyms in zip(
            ids,
            self.column(prefix + "oper_expression"),
            self.column(prefix + "asym_id_list"),
            strict=True,
        ):
            if name != assembly:
                continue
            start = len(operators)
            for steps in operations(expression):
                try:
                    product = np.eye(4)
                    for step in steps:
                        product = matrices[step] @ product
                except KeyError as error:
                    raise self.error(f"assembly {name}: operator {error} is not defined") from None
                operators.append(product[:3])
            if len(operators) > _MAX_OPERATORS or not np.isfinite(operators[start:]).all():
                raise self.error(f"assembly {name}: operators that are not numbers, or too many")
            parts = tuple(part.strip() for part in asyms.split(","))
            rows = tuple(range(start, len(operators)))
            copies.append(AssemblyCopies(asyms=parts, operators=rows))
        return tuple(copies), np.array(operators).reshape(-1, 3, 4), assembly

    def _matrices(self) -> dict[str, np.ndarray]:
        prefix = "_pdbx_struct_oper_list."
        names = self.column(prefix + "id")
        cells = np.zeros((len(names), 4, 4))
        cells[:, 3, 3] = 1
        for row, column in itertools.product(range(3), range(4)):
            item = f"matrix[{row + 1}][{column + 1}]" if column < 3 else f"vector[{row + 1}]"
            cells[:, row, column] = self.numbers(prefix + item)
        return dict(zip(names, cells, strict=True))

    def _links(self, residues: list[list[str]]) -> tuple[Link, ...]:
        kinds = self.column("_struct_conn.conn_type_id")
        if not kinds:
            return ()
        ends = [self._link_ends(partner, len(kinds), residues) for partner in (1, 2)]
        lengths = self.numbers("_struct_conn.pdbx_dist_value")
        if len(lengths) != len(kinds):
            lengths = np.full(len(kinds), np.nan)
        return tuple(
            Link(kind=kind, ends=pair, length=float(length))
            for kind, pair, length in zip(kinds, zip(*ends, strict=True), lengths, strict=True)
        )

    def _link_ends(self, end: int, rows: int, residues: list[list[str]]) -> list[LinkEnd]:
        items = [self.column(f"_struct_conn.{item.format(end)}") for item in _LINK_ITEMS]
        has_item = [len(values) == rows for values in items]
        columns = [
            [_or_empty(value) for value in values] if has else [""] * rows
            for values, has in zip(items, has_item, strict=True)
        ]
        compared = has_item[:3] + has_item[5:8]
        names_of_row = list(zip(*residues, strict=True))
        row_of_key: dict[tuple[str, ...], int] = {}
        for row, names in enumerate(names_of_row):
            key = tuple(itertools.compress(names, compared))
            first = row_of_key.setdefault(key, row)
            if first >= 0 and names_of_row[first] != names:
                row_of_key[key] = -1  # residues that only the missing items tell apart
        ends = []
        for asym, seq, name, atom, altloc, chain, number, code, symmetry in zip(
            *columns, strict=True
        ):
            key = tuple(itertools.compress((asym, seq, name, chain, number, code), compared))
            ends.append(
                LinkEnd(
                    asym=asym,
                    seq=seq,
                    component=name,
                    atom=atom,
                    altloc=altloc,
                    author=(chain, number, code),
                    symmetry=symmetry,
                    residue=row_of_key.get(key, -1),
                )
            )
        return ends


def operations(expression: str) -> list[tuple[str, ...]]:
    """Operators of an expression such as `(1-3)(X0)`, each as its steps in order."""
    steps = []
    for part in reversed([part for part in expression.replace(")", "").split("(") if part]):
        names: list[str] = []
        for piece in part.split(","):
            low, dash, high = piece.strip().partition("-")
            values = range(int(low), int(high) + 1) if dash else (low,)
            names.extend(map(str, values[: _MAX_OPERATORS + 1]))
        steps.append(names)
        if math.prod(map(len, steps)) > _MAX_OPERATORS:
            raise ValueError(f"more than {_MAX_OPERATORS} operators in {expression[:40]}")
    return list(itertools.product(*steps))


def _chain_order(asym: Shaped[np.ndarray, " A"]) -> np.ndarray:
    """Order of rows that puts a chain's atoms together, chains by first appearance."""
    _names, first, inverse = np.unique(asym, return_index=True, return_inverse=True)
    return np.argsort(first[inverse], kind="stable")


def _integers(values: Shaped[np.ndarray, " A"], missing: int) -> np.ndarray:
    texts, inverse = np.unique(values, return_inverse=True)
    return np.array(
        [missing if text in ("", *UNSET) else int(text) for text in texts.tolist()], np.int32
    )[inverse]


def _or_empty(value: str) -> str:
    return "" if value in UNSET else value
