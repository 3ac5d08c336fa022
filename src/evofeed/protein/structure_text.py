"""Atoms to text: PDB and mmCIF with a confidence in the B column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np

from evofeed.protein.residues import ATOM_TYPES, RESTYPE_3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Structure:
    """Atoms of a chain, or of a complex.

    Attributes:
        name: usually the chain's id.
        aatype: `[L]` restype 0 to 20.
        residue_index: `[L]` counted from 0; files count from 1.
        positions: `[L, 37, 3]`, ångström.
        mask: `[L, 37]`, 1 for atoms that are present.
        confidence: `[L]`, the B column, 0 to 100 for pLDDT.
        chain: of a complex: number of each residue's chain, `[L]`, from 1, named A, B and so on.
        entity: of a complex: number of each residue's sequence, `[L]`, from 1.
        remark: a line for the top of the file.
        chain_names: of a complex: names of its chains, if they are not A, B and so on.
    """

    name: str
    aatype: np.ndarray
    residue_index: np.ndarray
    positions: np.ndarray
    mask: np.ndarray
    confidence: np.ndarray
    chain: np.ndarray | None = None
    entity: np.ndarray | None = None
    remark: str = ""
    chain_names: tuple[str, ...] = ()

    def chain_and_entity(self, residue: int) -> tuple[str, int]:
        """Name of a residue's chain, A for a single one, and number of its entity."""
        number = 0 if self.chain is None else int(self.chain[residue])
        named = bool(self.chain_names and number)
        name = self.chain_names[number - 1] if named else chain_name(number or 1)
        return name, 1 if self.entity is None else int(self.entity[residue])

    def atoms(self) -> Iterator[tuple[int, int, str, str, int, np.ndarray, float]]:
        """Residue from 0, serial, atom name, residue name and number, position, confidence."""
        serial = 0
        for i, code in enumerate(self.aatype):
            residue = RESTYPE_3[code] if code < len(RESTYPE_3) else "UNK"
            for k in np.flatnonzero(self.mask[i]):
                serial += 1
                number = int(self.residue_index[i]) + 1
                yield (
                    i,
                    serial,
                    ATOM_TYPES[k],
                    residue,
                    number,
                    self.positions[i, k],
                    float(self.confidence[i]),
                )


def chain_name(number: int) -> str:
    """Name of chain 1, 2, ...: A to Z, then AA, BA, as the PDB names assemblies' chains."""
    name = ""
    while number > 0:
        number, letter = divmod(number - 1, len(ascii_uppercase))
        name += ascii_uppercase[letter]
    return name


def to_pdb(structure: Structure) -> str:
    """The structure in PDB format.

    Raises:
        ValueError: it does not fit the format's columns (write mmCIF then).
    """
    lines = [f"REMARK   1 {structure.remark}".ljust(80)] if structure.remark else []
    last: tuple[str, str, int] | None = None
    ends = 0  # serial numbers of TER lines so far
    for i, serial, atom, residue, number, xyz, confidence in structure.atoms():
        name_of_chain, _ = structure.chain_and_entity(i)
        if last is not None and last[0] != name_of_chain:
            lines.append(_end(serial + ends, last))
            ends += 1
        serial += ends
        if len(name_of_chain) > 1:
            raise ValueError(
                f"chain {name_of_chain} does not fit the PDB format, which has one letter for a "
                "chain; write mmCIF (.cif) instead"
            )
        if serial > 99998 or number > 9999 or np.abs(xyz).max() >= 1000:
            raise ValueError(
                f"atom {serial} of residue {number} at {xyz.round(1).tolist()} does not fit the "
                "PDB format; write mmCIF (.cif) instead"
            )
        name = atom if len(atom) == 4 else f" {atom}"
        x, y, z = xyz
        lines.append(
            f"ATOM  {serial:5d} {name:<4s} {residue:3s} {name_of_chain}{number:4d}    "
            f"{x:8.3f}{y:8.3f}{z:8.3f}{1.0:6.2f}{confidence:6.2f}          {atom[0]:>2s}  "
        )
        last = name_of_chain, residue, number
        last_serial = serial
    if last is not None:
        lines.append(_end(last_serial + 1, last))
    lines.append("END".ljust(80))
    return "\n".join(lines) + "\n"


def _end(serial: int, last: tuple[str, str, int]) -> str:
    chain, residue, number = last
    return f"TER   {serial:5d}      {residue:3s} {chain}{number:4d}".ljust(80)


ATOM_ITEMS = (
    "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id "
    "label_entity_id label_seq_id pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy "
    "B_iso_or_equiv auth_seq_id auth_asym_id pdbx_PDB_model_num"
)
"""Items of `_atom_site` in written files."""


def to_mmcif(structure: Structure, *, head: Sequence[str] = ()) -> str:
    """The structure in mmCIF format, after `head`, lines of other categories."""
    name = "".join(c if c.isalnum() or c in "_-." else "_" for c in structure.name) or "prediction"
    lines = [f"data_{name}", "#", f"_entry.id {name}", "#"]
    if structure.remark:
        lines += [f"_struct.entry_id {name}", f"_struct.title '{structure.remark}'", "#"]
    lines += head
    rows = []
    for i, serial, atom, residue, number, (x, y, z), confidence in structure.atoms():
        chain, entity = structure.chain_and_entity(i)
        rows.append(
            f"ATOM {serial} {atom[0]} {atom} . {residue} {chain} {entity} {number} ? "
            f"{x:.3f} {y:.3f} {z:.3f} 1.00 {confidence:.2f} {number} {chain} 1"
        )
    return "\n".join([*lines, *loop("_atom_site", ATOM_ITEMS, rows)]) + "\n"


def to_model_cif(structure: Structure) -> str:
    """The structure as ModelCIF: with sequences, and the mean pLDDT and that of every residue.

    `_ma_qa_metric_local` is written as in AlphaFold DB's files.

    Source: ModelCIF dictionary (mmcif_ma.dic) 1.4.
    """
    return to_mmcif(
        structure,
        head=[
            "_audit_conform.dict_name mmcif_ma.dic",
            "_audit_conform.dict_version 1.4.5",
            "#",
            *polymer_head(structure),
            *loop(
                "_ma_qa_metric", "id mode name software_group_id type",
                [(1, "global", "pLDDT", ".", "pLDDT"), (2, "local", "pLDDT", ".", "pLDDT")],
            ),
            *loop(
                "_ma_qa_metric_global", "metric_id metric_value model_id ordinal_id",
                [(1, f"{structure.confidence.mean():.2f}", 1, 1)],
            ),
            *loop(
                "_ma_qa_metric_local",
                "label_asym_id label_comp_id label_seq_id metric_id metric_value model_id "
                "ordinal_id",
                [
                    (name, code, number, 2, f"{confidence:.2f}", 1, row + 1)
                    for row, (name, _, code, number, confidence) in enumerate(
                        _residues(structure)
                    )
                ],
            ),
        ],
    )  # fmt: skip


def polymer_head(structure: Structure, date: str = "") -> list[str]:
    """Lines of the categories of sequences and chains, and of the release date if given."""
    residues = _residues(structure)
    chains = {name: entity for name, entity, *_ in residues}
    first = {entity: name for name, entity in reversed(chains.items())}
    monomers = [(e, number, code) for name, e, code, number, _ in residues if name == first[e]]
    entities, codes = sorted(first), sorted({code for *_, code in monomers})
    history = "ordinal data_content_type major_revision minor_revision revision_date"
    dated = [(1, "'Structure model'", 1, 0, date)] if date else []
    return [
        *loop("_entity", "id type", [(row, "polymer") for row in entities]),
        *loop("_entity_poly", "entity_id type", [(row, "polypeptide(L)") for row in entities]),
        *loop("_entity_poly_seq", "entity_id num mon_id", monomers),
        *loop("_struct_asym", "id entity_id", list(chains.items())),
        *loop("_chem_comp", "id type", [(code, "'L-peptide linking'") for code in codes]),
        *(loop("_pdbx_audit_revision_history", history, dated) if dated else ()),
    ]


def _residues(structure: Structure) -> list[tuple[str, int, str, int, float]]:
    """Chain, entity, component, number from 1 and confidence of every residue."""
    return [
        (*structure.chain_and_entity(i), RESTYPE_3[code] if code < len(RESTYPE_3) else "UNK",
         int(number) + 1, float(confidence))
        for i, (code, number, confidence) in enumerate(
            zip(structure.aatype, structure.residue_index, structure.confidence, strict=True)
        )
    ]  # fmt: skip


def loop(category: str, names: str, rows: Sequence[str | tuple[object, ...]]) -> list[str]:
    """Lines of a category: its items, and one line for each row, a text or values."""
    columns = [f"{category}.{name}" for name in names.split()]
    texts = (row if isinstance(row, str) else " ".join(map(str, row)) for row in rows)
    return ["loop_", *columns, *texts, "#"]


def ca_of_mmcif(text: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The CA atoms of a predicted structure with one line for each atom, as `to_mmcif` writes.

    Returns:
        Chain and number of each, as `A 12`, positions `[n, 3]` in ångström, B column `[n]`.

    Raises:
        ValueError: there is none, or a line is not an atom.
    """
    columns: dict[str, int] = {}
    names, rows = [], []
    name_items = ("label_asym_id", "label_seq_id")
    number_items = ("Cartn_x", "Cartn_y", "Cartn_z", "B_iso_or_equiv")
    needed = {*name_items, *number_items, "label_atom_id"}
    for line in text.splitlines():
        if line.startswith("_atom_site."):
            columns[line.strip().removeprefix("_atom_site.")] = len(columns)
        elif line.startswith("ATOM "):
            cells = line.split()
            if not needed <= set(columns) or len(cells) != len(columns):
                raise ValueError(f"not an atom: {line[:80]!r}")
            if cells[columns["label_atom_id"]] == "CA":
                names.append(" ".join(cells[columns[item]] for item in name_items))
                rows.append([float(cells[columns[item]]) for item in number_items])
    values = np.array(rows, float).reshape(-1, 4)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("no CA atom")
    return names, values[:, :3], values[:, 3]
