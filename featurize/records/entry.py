"""mmCIF text -> `EntryRecord`: every table that a project reads, as the file has it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any, Final

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.base.shapes import Float, Shaped
from evofeed.protein.entry_record import (
    ALTLOC_NONE,
    AssemblyCopies,
    Dropped,
    Entity,
    EntryRecord,
    Link,
    LinkEnd,
)

_UNKNOWN: Final = (".", "?")
_RESOLUTIONS: Final = (
    "_refine.ls_d_res_high",
    "_em_3d_reconstruction.resolution",
    "_reflns.d_resolution_high",
)
_HISTORY: Final = "_pdbx_audit_revision_history.revision_date"
_DEPOSITED: Final = "_pdbx_database_status.recvd_initial_deposition_date"


def entry_record(data: bytes, *, path: str = "", assembly: str | None = None) -> EntryRecord:
    """The record of the first model of an entry and of one assembly.

    Args:
        data: mmCIF text.
        path: named in errors.
        assembly: `_pdbx_struct_assembly_gen.assembly_id`; None is `1`, or the first where no
            assembly has that name.

    Raises:
        MmcifError: it is no mmCIF, has no atoms, or its tables contradict each other.
    """
    import gemmi

    try:
        block = gemmi.cif.read_string(data.decode("utf-8", "replace")).sole_block()
    except (RuntimeError, ValueError) as error:
        raise MmcifError(f"no mmCIF: {error}", path=path or None) from None
    tables = _Tables(block, path)
    try:
        return tables.record(assembly)
    except (ValueError, IndexError, KeyError) as error:
        why = f"its tables do not fit together: {error}"
        raise MmcifError(why, path=path or None) from error


class _Tables:
    def __init__(self, block: Any, path: str) -> None:
        self.block = block
        self.path = path
        self.dropped: list[Dropped] = []

    def column(self, item: str) -> list[str]:
        import gemmi

        return [gemmi.cif.as_string(value) for value in self.block.find_values(item)]

    def names(self, item: str, rows: slice) -> Shaped[np.ndarray, " A"]:
        # Few distinct texts among many rows: each is unquoted once.
        import gemmi

        raw = np.array(list(self.block.find_values(item))[rows], np.str_)
        values, inverse = np.unique(raw, return_inverse=True)
        return np.array([_quoted(gemmi, value) for value in values], np.str_)[inverse]

    def numbers(self, item: str, rows: slice, missing: float) -> Float[np.ndarray, " A"]:
        raw = list(self.block.find_values(item))[rows]
        try:
            return np.array(raw, np.float64)
        except ValueError:
            pass
        try:
            return np.array(
                [missing if v in _UNKNOWN else float(v.split("(")[0]) for v in raw], np.float64
            )
        except ValueError as error:
            raise self.error(f"{item}: {error}") from None

    def error(self, message: str) -> MmcifError:
        return MmcifError(message, path=self.path or None)

    def record(self, assembly: str | None) -> EntryRecord:
        entry = (self.column("_entry.id") or [self.block.name])[0].lower()
        rows = self._first_model()
        size = rows.stop - rows.start
        if size <= 0:
            raise self.error("no atoms: the table _atom_site is missing or empty")
        atoms = {
            name: self.names("_atom_site." + name, rows)
            for name in (
                "label_asym_id label_entity_id label_comp_id label_seq_id label_atom_id "
                "type_symbol group_PDB"
            ).split()
        }
        for name, other in (
            ("auth_asym_id", "label_asym_id"),
            ("auth_seq_id", "label_seq_id"),
        ):
            atoms[name] = self.names("_atom_site." + name, rows)
            if len(atoms[name]) != size:
                atoms[name] = atoms[other]
        for name in ("label_alt_id", "pdbx_PDB_ins_code", "pdbx_formal_charge"):
            values = self.names("_atom_site." + name, rows)
            atoms[name] = (
                np.where(np.isin(values, _UNKNOWN), "", values)
                if len(values)
                else (np.full(size, ""))
            )
        for name, values in atoms.items():
            if len(values) != size:
                raise self.error(f"_atom_site.{name} is missing")
        position = np.stack(
            [self.numbers(f"_atom_site.Cartn_{axis}", rows, np.nan) for axis in "xyz"], axis=1
        )
        order = _chain_order(atoms["label_asym_id"])
        atoms = {name: values[order] for name, values in atoms.items()}
        seq = _integers(atoms["label_seq_id"], 0)
        author = _integers(atoms["auth_seq_id"], -1)
        starts = _run_starts(
            atoms["label_asym_id"], atoms["label_comp_id"], seq, author, atoms["pdbx_PDB_ins_code"]
        )
        chain_starts = _run_starts(atoms["label_asym_id"][starts])
        first = starts[chain_starts]
        entities = self._entities()
        numbers = {entity.name: row for row, entity in enumerate(entities)}
        residue = {
            "label_asym_id": atoms["label_asym_id"][starts],
            "auth_asym_id": atoms["auth_asym_id"][starts],
            "name": atoms["label_comp_id"][starts],
            "seq": atoms["label_seq_id"][starts],
            "author": atoms["auth_seq_id"][starts],
            "insertion": atoms["pdbx_PDB_ins_code"][starts],
        }
        copies, operators, name = self._assembly(assembly)
        altloc = atoms["label_alt_id"]
        occupancy = self.numbers("_atom_site.occupancy", rows, 1.0)
        b_factor = self.numbers("_atom_site.B_iso_or_equiv", rows, np.nan)
        return EntryRecord(
            entry=entry,
            assembly=name,
            deposit_date=_known((self.column(_DEPOSITED) or [""])[0]),
            release_dates=tuple(self.column(_HISTORY)),
            resolutions=tuple(
                (item, column[0]) for item in _RESOLUTIONS if (column := self.column(item))
            ),
            methods=tuple(value.upper() for value in self.column("_exptl.method")),
            oligomeric_count=self._count(name),
            entities=entities,
            copies=copies,
            operators=operators,
            component_types=dict(
                zip(
                    self.column("_chem_comp.id"),
                    (value.upper() for value in self.column("_chem_comp.type")),
                    strict=False,
                )
            ),
            chain_label=tuple(atoms["label_asym_id"][first].tolist()),
            chain_author=tuple(atoms["auth_asym_id"][first].tolist()),
            chain_entity=np.array(
                [numbers.get(value, -1) for value in atoms["label_entity_id"][first].tolist()]
            ),
            chain_residue=np.append(chain_starts, len(starts)),
            residue_name=residue["name"],
            residue_seq=seq[starts],
            residue_author=author[starts],
            residue_insertion=residue["insertion"],
            residue_hetero=atoms["group_PDB"][starts] == "HETATM",
            residue_atom=np.append(starts, size),
            atom_name=atoms["label_atom_id"],
            atom_element=np.char.upper(atoms["type_symbol"]),
            atom_charge=_integers(atoms["pdbx_formal_charge"], 0),
            atom_altloc=np.where(
                altloc == "", ALTLOC_NONE, altloc.astype("U1").view(np.uint32).reshape(-1)
            ).astype(np.int32),
            atom_occupancy=occupancy[order] if len(occupancy) else np.ones(size),
            atom_b_factor=b_factor[order] if len(b_factor) else np.full(size, np.nan),
            atom_position=position[order],
            links=self._links(residue),
            dropped=tuple(self.dropped),
        )

    def _first_model(self) -> slice:
        models = list(self.block.find_values("_atom_site.pdbx_PDB_model_num"))
        total = len(self.block.find_values("_atom_site.id")) or len(models)
        if not models:
            return slice(0, total)
        stop = next((row for row, model in enumerate(models) if model != models[0]), total)
        if stop < total:
            self.dropped.append(
                Dropped(what="model", chain="", component="", reason="a further model")
            )
        return slice(0, stop)

    def _entities(self) -> tuple[Entity, ...]:
        polymers = dict(
            zip(
                self.column("_entity_poly.entity_id"),
                self.column("_entity_poly.type"),
                strict=False,
            )
        )
        sequences = dict(
            zip(
                self.column("_entity_poly.entity_id"),
                self.column("_entity_poly.pdbx_seq_one_letter_code_can"),
                strict=False,
            )
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
        return tuple(
            Entity(
                name=name,
                kind=kind.lower(),
                polymer=polymers.get(name, ""),
                monomers=tuple(monomers.get(name, ())),
                rivals=tuple(rivals.get(name, ())),
                sequence="".join(sequences.get(name, "").split()),
            )
            for name, kind in zip(
                self.column("_entity.id"), self.column("_entity.type"), strict=True
            )
        )

    def _assembly(
        self, wanted: str | None
    ) -> tuple[tuple[AssemblyCopies, ...], Float[np.ndarray, "K 3 4"], str]:
        prefix = "_pdbx_struct_assembly_gen."
        ids = self.column(prefix + "assembly_id")
        identity = np.eye(3, 4)[None]
        if not ids:
            return (), identity, ""
        if wanted is None:
            wanted = "1" if "1" in ids else ids[0]
        elif wanted not in ids:
            raise self.error(f"no assembly {wanted!r}: the file has {', '.join(sorted(set(ids)))}")
        matrices = self._matrices()
        copies: list[AssemblyCopies] = []
        operators: list[np.ndarray] = []
        for name, expression, asyms in zip(
            ids,
            self.column(prefix + "oper_expression"),
            self.column(prefix + "asym_id_list"),
            strict=True,
        ):
            if name != wanted:
                continue
            rows = []
            for steps in operations(expression):
                try:
                    product = np.eye(4)
                    for step in steps:
                        product = matrices[step] @ product
                except KeyError as error:
                    raise self.error(f"assembly {name}: operator {error} is not defined") from None
                rows.append(len(operators))
                operators.append(product[:3])
            parts = tuple(part.strip() for part in asyms.split(","))
            copies.append(AssemblyCopies(asyms=parts, operators=tuple(rows)))
        return tuple(copies), np.array(operators).reshape(-1, 3, 4), wanted

    def _count(self, assembly: str) -> str:
        """`oligomeric_count` of an assembly, or of the first if the table lacks that name."""
        counts = self.column("_pdbx_struct_assembly.oligomeric_count")
        names = self.column("_pdbx_struct_assembly.id")
        return dict(zip(names, counts, strict=False)).get(assembly, (counts or [""])[0])

    def _matrices(self) -> dict[str, np.ndarray]:
        prefix = "_pdbx_struct_oper_list."
        everything = slice(None)
        matrices = {}
        names = self.column(prefix + "id")
        cells = np.zeros((len(names), 4, 4))
        cells[:, 3, 3] = 1
        for row in range(3):
            for column in range(3):
                item = f"{prefix}matrix[{row + 1}][{column + 1}]"
                cells[:, row, column] = self.numbers(item, everything, np.nan)
            cells[:, row, 3] = self.numbers(f"{prefix}vector[{row + 1}]", everything, np.nan)
        for name, matrix in zip(names, cells, strict=True):
            matrices[name] = matrix
        return matrices

    def _links(self, residue: dict[str, Shaped[np.ndarray, " R"]]) -> tuple[Link, ...]:
        kinds = self.column("_struct_conn.conn_type_id")
        if not kinds:
            return ()
        keys = zip(*(residue[name].tolist() for name in residue), strict=True)
        found = {key: row for row, key in reversed(list(enumerate(keys)))}
        ends = [self._link_ends(which, len(kinds), found) for which in (1, 2)]
        lengths = self.numbers("_struct_conn.pdbx_dist_value", slice(None), np.nan)
        if len(lengths) != len(kinds):
            lengths = np.full(len(kinds), np.nan)
        return tuple(
            Link(kind=kind, ends=pair, length=float(length))
            for kind, pair, length in zip(kinds, zip(*ends, strict=True), lengths, strict=True)
        )

    def _link_ends(self, which: int, rows: int, found: dict[tuple[str, ...], int]) -> list[LinkEnd]:
        def column(item: str) -> list[str]:
            values = self.column(f"_struct_conn.{item}")
            return values if len(values) == rows else [""] * rows

        asym = column(f"ptnr{which}_label_asym_id")
        component = column(f"ptnr{which}_label_comp_id")
        seq = column(f"ptnr{which}_label_seq_id")
        atom = column(f"ptnr{which}_label_atom_id")
        altloc = column(f"pdbx_ptnr{which}_label_alt_id")
        author_asym = column(f"ptnr{which}_auth_asym_id")
        author_seq = column(f"ptnr{which}_auth_seq_id")
        insertion = column(f"pdbx_ptnr{which}_PDB_ins_code")
        symmetry = column(f"ptnr{which}_symmetry")
        ends = []
        for row in range(rows):
            code = _known(insertion[row])
            key = (
                asym[row],
                author_asym[row],
                component[row],
                seq[row] or ".",
                author_seq[row],
                code,
            )
            ends.append(
                LinkEnd(
                    asym=asym[row],
                    seq=_known(seq[row]),
                    component=component[row],
                    atom=atom[row],
                    altloc=_known(altloc[row]),
                    author=(author_asym[row], author_seq[row], code),
                    symmetry=_known(symmetry[row]),
                    residue=found.get(key, -1),
                )
            )
        return ends


def operations(expression: str) -> list[tuple[str, ...]]:
    """Operators of an expression such as `(1-3)(X0)`, each as the steps to take, first to last."""
    steps = []
    for part in reversed([part for part in expression.replace(")", "").split("(") if part]):
        names: list[str] = []
        for piece in part.split(","):
            low, dash, high = piece.strip().partition("-")
            if dash:
                names.extend(str(number) for number in range(int(low), int(high) + 1))
            else:
                names.append(low)
        steps.append(names)
    return list(itertools.product(*steps))


def _chain_order(asym: Shaped[np.ndarray, " A"]) -> np.ndarray:
    """Rows with the atoms of a chain together, chains as they first appear."""
    _names, first, inverse = np.unique(asym, return_index=True, return_inverse=True)
    return np.argsort(first[inverse], kind="stable")


def _run_starts(*columns: np.ndarray) -> np.ndarray:
    change = np.zeros(len(columns[0]), bool)
    change[:1] = True
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(change)


def _integers(values: Shaped[np.ndarray, " A"], missing: int) -> np.ndarray:
    texts, inverse = np.unique(values, return_inverse=True)
    return np.array(
        [missing if text in ("", *_UNKNOWN) else int(text) for text in texts.tolist()], np.int32
    )[inverse]


def _quoted(gemmi: Any, value: str) -> str:
    return str(gemmi.cif.as_string(value)) if value[:1] in "'\";" else value


def _known(value: str) -> str:
    return "" if value in _UNKNOWN else value
