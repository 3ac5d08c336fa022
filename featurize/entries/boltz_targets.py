"""Boltz's prepared set -> records: `manifest.json`, `structures/*.npz` and `msa/*.npz` as they are.

A structure has Boltz's own cleaning behind it, so its section is exact and the other projects have
none. Chains of the assembly stand as chains of the file; what Boltz left out is not in its tables.
Layout: Boltz's `data/types.py`, version 1 (structured arrays).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.base.errors import InputError, MsaError
from evofeed.featurize.entries.prepare import PreparedEntry
from evofeed.protein.alignment import Alignment, letter_codes
from evofeed.protein.datapoints import RESTYPES, alignment_name
from evofeed.protein.entry_record import ALTLOC_NONE, Entity, EntryRecord, offsets
from evofeed.protein.molecules import ELEMENTS, Molecule
from evofeed.protein.ruleset_section import RulesetSection

_LETTERS: Final = "--ARNDCQEGHILKMFPSTWYVX"
"""Of Boltz's codes: padding, gap, amino acids and the unknown one."""
_POLYMERS: Final = ("polypeptide(L)", "polydeoxyribonucleotide", "polyribonucleotide", "")
_TABLES: Final = {
    "atoms": "name element charge coords conformer is_present",
    "bonds": "atom_1 atom_2 type",
    "residues": "name res_idx atom_idx atom_num",
    "chains": "name mol_type entity_id res_idx res_num",
    "connections": "atom_1 atom_2",
    "interfaces": "chain_1 chain_2",
    "mask": "",
}
_ROWS: Final = {
    "sequences": "taxonomy res_start res_end del_start del_end",
    "deletions": "res_idx deletion",
    "residues": "res_type",
}


class Target(NamedTuple):
    """What a prepared structure gives."""

    entry: PreparedEntry
    molecules: dict[str, Molecule]
    """Conformers by component, of the atoms that the entry has."""
    clusters: dict[str, str]
    """Boltz's cluster of every polymer, by `ENTRY_entity`."""


def target_items(folder: str | Path, alignments: str) -> list[tuple[str, ...]] | None:
    """Name, structure, entry of the manifest and alignments of every target; None if it is no
    prepared set of Boltz's.

    Raises:
        InputError: the manifest is none.
    """
    root = Path(folder)
    manifest = root / "manifest.json"
    if not manifest.is_file() or not (root / "structures").is_dir():
        return None
    try:
        read = json.loads(manifest.read_bytes())
        records = read["records"] if isinstance(read, dict) else read
        items = []
        for record in records:
            ids = sorted({str(c["msa_id"]) for c in record["chains"] if _has_rows(c["msa_id"])})
            rows = [str(Path(alignments or root / "msa") / f"{one}.npz") for one in ids]
            path = str(root / "structures" / f"{record['id']}.npz")
            items.append((str(record["id"]), path, json.dumps(record), *rows))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"no manifest of Boltz: {error!r}", path=str(manifest)) from None
    return items


def _has_rows(msa_id: Any) -> bool:
    return msa_id not in ("", None, -1, "-1")


def read_target(path: str, about: str, alignments: Sequence[str]) -> Target:
    """A prepared structure.

    Args:
        path: `structures/<id>.npz`.
        about: its entry of the manifest, JSON.
        alignments: of its chains.

    Raises:
        InputError: a file is damaged or another version's, or its tables contradict each other.
    """
    record = json.loads(about)
    tables = _tables(path, _TABLES)
    queries = {Path(one).stem: query_of_rows(one) for one in alignments}
    try:
        return _target(record, tables, queries)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise InputError(f"its tables do not fit together: {error!r}", path=path) from None


def _target(
    about: Mapping[str, Any], tables: Mapping[str, np.ndarray], queries: Mapping[str, str]
) -> Target:
    atoms, residues, chains = (tables[name] for name in ("atoms", "residues", "chains"))
    present = atoms["is_present"]
    residue_atom = _ends(residues["atom_idx"], residues["atom_num"], len(atoms))
    chain_residue = _ends(chains["res_idx"], chains["res_num"], len(residues))
    names = np.array([_text(row) for row in atoms["name"]])
    elements = np.array(["", *ELEMENTS])[atoms["element"]]
    seen = np.add.reduceat(present, residue_atom[:-1])
    entities, clusters = _entities(about, chains, residues["name"], chain_residue, queries)
    where = about["structure"]
    dates = tuple(where[name] for name in ("released", "revised") if where.get(name))
    rows = np.flatnonzero(present)
    with_atoms = np.flatnonzero(seen)
    record = EntryRecord(
        entry=str(about["id"]),
        assembly="",
        deposit_date=where.get("deposited") or "",
        release_dates=dates,
        resolutions=(("_refine.ls_d_res_high", str(where["resolution"])),)
        if where.get("resolution")
        else (),
        methods=(where["method"].upper(),) if where.get("method") else (),
        oligomeric_count="",
        entities=entities,
        copies=(),
        operators=np.eye(3, 4)[None],
        component_types={},
        chain_label=tuple(chains["name"].tolist()),
        chain_author=tuple(chains["name"].tolist()),
        chain_entity=np.unique(chains["entity_id"], return_inverse=True)[1],
        chain_residue=np.searchsorted(with_atoms, chain_residue),
        residue_name=residues["name"][with_atoms],
        residue_seq=residues["res_idx"][with_atoms] + 1,
        residue_author=residues["res_idx"][with_atoms] + 1,
        residue_insertion=np.full(len(with_atoms), ""),
        residue_hetero=np.zeros(len(with_atoms), bool),
        residue_atom=offsets(seen[with_atoms]),
        atom_name=names[rows],
        atom_element=elements[rows],
        atom_charge=atoms["charge"][rows].astype(np.int32),
        atom_altloc=np.full(len(rows), ALTLOC_NONE, np.int32),
        atom_occupancy=np.ones(len(rows)),
        atom_b_factor=np.full(len(rows), np.nan),
        atom_position=atoms["coords"][rows].astype(np.float64),
        links=(),
        dropped=(),
    )
    pairs = [
        np.stack([tables[name]["atom_1"], tables[name]["atom_2"]], 1).astype(np.int64)
        for name in ("bonds", "connections")
    ]
    kinds = [tables["bonds"]["type"], np.zeros(len(tables["connections"]), np.int8)]
    near = tables["interfaces"]
    count = np.arange(len(chains))
    section = RulesetSection(
        project="boltz",
        chain_name=chains["name"],
        chain_asym=count,
        chain_operator=np.full(len(chains), -1),
        chain_copy=np.zeros(len(chains), np.int64),
        chain_number=count,
        chain_type=chains["mol_type"].astype(np.int64),
        chain_valid=tables["mask"].astype(bool),
        chain_entity=chains["entity_id"].astype(np.int64),
        chain_residue=chain_residue,
        residue_name=residues["name"],
        residue_index=residues["res_idx"].astype(np.int64),
        residue_insertion=np.full(len(residues), ""),
        residue_hetero=np.zeros(len(residues), bool),
        residue_atom=residue_atom,
        atom_name=names,
        atom_element=elements,
        atom_charge=atoms["charge"].astype(np.int64),
        atom_row=np.where(present, np.cumsum(present) - 1, -1),
        bond_atom=np.concatenate(pairs),
        bond_type=np.concatenate(kinds).astype(np.int64),
        interface=np.stack([near["chain_1"], near["chain_2"]], 1).astype(np.int64),
        dropped=(),
    )
    molecules = _molecules(section, atoms)
    return Target(
        PreparedEntry(record=record, sections={"boltz": section}, refused={}), molecules, clusters
    )


def _entities(
    about: Mapping[str, Any],
    chains: np.ndarray,
    names: np.ndarray,
    chain_residue: np.ndarray,
    queries: Mapping[str, str],
) -> tuple[tuple[Entity, ...], dict[str, str]]:
    """Entities by number; the sequence of one with an alignment is the alignment's query."""
    found, clusters = [], {}
    for number in np.unique(chains["entity_id"]).tolist():
        row = int(np.flatnonzero(chains["entity_id"] == number)[0])
        own = about["chains"][row]
        monomers = tuple(names[chain_residue[row] : chain_residue[row + 1]].tolist())
        polymer = _POLYMERS[int(chains["mol_type"][row])]
        msa = str(own["msa_id"])
        found.append(
            Entity(
                name=str(number),
                kind="polymer" if polymer else "non-polymer",
                polymer=polymer,
                monomers=monomers if polymer else (),
                rivals=(),
                sequence=queries.get(msa) or (_sequence(monomers) if polymer else ""),
            )
        )
        if polymer:
            clusters[f"{str(about['id']).upper()}_{number}"] = str(own["cluster_id"])
    return tuple(found), clusters


_ONE_LETTER: Final = dict(zip(RESTYPES, "ARNDCQEGHILKMFPSTWYVXAGCUNAGCTN", strict=True))


def _sequence(monomers: Sequence[str]) -> str:
    return "".join(_ONE_LETTER.get(name, "X") for name in monomers)


def _molecules(section: RulesetSection, atoms: np.ndarray) -> dict[str, Molecule]:
    found: dict[str, Molecule] = {}
    bounds = section.residue_atom.tolist()
    for name, low, high in zip(section.residue_name.tolist(), bounds, bounds[1:], strict=False):
        known = found.get(name)
        mine = section.atom_name[low:high]
        if known is None or not np.isin(mine, known.name).all():
            there = Molecule(
                name=mine,
                element=atoms["element"][low:high].astype(np.int64),
                charge=atoms["charge"][low:high].astype(np.int64),
                position=atoms["conformer"][None, low:high],
                mask=np.ones(high - low, bool),
                bond=np.zeros((0, 2), np.int64),
                orders=np.arange(high - low)[None],
            )
            found[name] = there if known is None else known.overlaid(there)
    return found


def query_of_rows(path: str) -> str:
    """The query of a prepared alignment, `X` for what is no standard amino acid.

    Raises:
        MsaError: the file is none.
    """
    tables = _tables(path, _ROWS)
    if not len(tables["sequences"]):
        raise MsaError("an alignment without a row", path=path)
    first = tables["sequences"][0]
    letters = _letters(tables["residues"]["res_type"][first["res_start"] : first["res_end"]])
    return letters.tobytes().decode()


def _letters(codes: np.ndarray) -> np.ndarray:
    table = np.frombuffer(_LETTERS.encode(), np.uint8)
    return table[np.where((codes < 0) | (codes >= len(table)), len(table) - 1, codes)]


def read_rows(path: str) -> Alignment:
    """A prepared alignment, its rows as Boltz has them: no two differ by gaps alone.

    Raises:
        MsaError: the file is damaged, or its rows are not of one length.
    """
    tables = _tables(path, _ROWS)
    rows, deleted = tables["sequences"], tables["deletions"]
    query = query_of_rows(path)
    sizes = rows["res_end"] - rows["res_start"]
    if (sizes != len(query)).any() or len(tables["residues"]) < sizes.sum():
        raise MsaError(f"rows are not all of {len(query)} columns", path=path)
    at = rows["res_start"][:, None].astype(np.int64) + np.arange(len(query))
    counts = (rows["del_end"] - rows["del_start"]).astype(np.int64)
    try:
        codes = letter_codes(_letters(tables["residues"]["res_type"][at]))
        which = np.repeat(rows["del_start"] - offsets(counts)[:-1], counts)
        which = which + np.arange(counts.sum())
        column, number = deleted["res_idx"][which], deleted["deletion"][which]
    except (IndexError, ValueError) as error:
        raise MsaError(f"rows name cells that are not there: {error}", path=path) from None
    letters, row_letters = np.unique(codes, axis=0, return_inverse=True)
    species = [str(one) if one >= 0 else "" for one in rows["taxonomy"].tolist()]
    table = sorted(set(species) - {""})
    rank = {name: row for row, name in enumerate(table)} | {"": -1}
    return Alignment(
        name=alignment_name(query),
        sources=("boltz",),
        letters=letters,
        row_letters=row_letters.reshape(-1).astype(np.int32),
        row_source=np.zeros(len(rows), np.int32),
        row_species=np.array([rank[one] for one in species], np.int32),
        row_gapless=np.arange(len(rows)),
        species=tuple(table),
        deletion_start=offsets(counts),
        deletion_column=column.astype(np.int64),
        deletion_count=number.astype(np.int64),
    )


def _tables(path: str, wanted: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Tables of a file with the columns that are read.

    Raises:
        InputError: one is not there, or the file is damaged.
    """
    kind = MsaError if wanted is _ROWS else InputError
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as members:
            found = {name: members[name] for name in wanted}
    except Exception as error:  # zipfile, zlib and numpy each have errors of their own
        raise kind(f"no prepared file of Boltz 1: {error}", path=path) from None
    for name, columns in wanted.items():
        if missing := set(columns.split()) - set(found[name].dtype.names or ()):
            raise kind(f"its table of {name} has no {min(missing)}", path=path)
    return found


def _ends(starts: np.ndarray, counts: np.ndarray, total: int) -> np.ndarray:
    """Offsets of rows that stand end to end.

    Raises:
        ValueError: they do not.
    """
    ends = offsets(counts)
    if not np.array_equal(ends[:-1], starts) or ends[-1] != total:
        raise ValueError("rows do not stand end to end")
    return ends


def _text(codes: np.ndarray) -> str:
    return "".join(chr(code + 32) for code in codes.tolist() if code)
