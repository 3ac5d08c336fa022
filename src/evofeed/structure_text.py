"""Atoms to text: PDB and mmCIF with a confidence in the B column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evofeed.residues import ATOM_TYPES, RESTYPE_3

__all__ = ["Structure", "to_mmcif", "to_pdb"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Structure:
    """One chain of atoms.

    Attributes:
        name: what it is called, usually the chain's id.
        aatype: `[L]` restype 0 to 20.
        residue_index: `[L]` counted from 0; files count from 1.
        positions: `[L, 37, 3]`, ångström.
        mask: `[L, 37]`, 1 where the atom is there.
        confidence: `[L]`, what is in the B column, 0 to 100 for pLDDT.
    """

    name: str
    aatype: np.ndarray
    residue_index: np.ndarray
    positions: np.ndarray
    mask: np.ndarray
    confidence: np.ndarray

    def atoms(self) -> Iterator[tuple[int, str, str, int, np.ndarray, float]]:
        """Serial number, atom name, residue name, residue number, position, confidence."""
        serial = 0
        for i, code in enumerate(self.aatype):
            residue = RESTYPE_3[code] if code < len(RESTYPE_3) else "UNK"
            for k in np.flatnonzero(self.mask[i]):
                serial += 1
                number = int(self.residue_index[i]) + 1
                yield (
                    serial,
                    ATOM_TYPES[k],
                    residue,
                    number,
                    self.positions[i, k],
                    float(self.confidence[i]),
                )


def to_pdb(structure: Structure, chain: str = "A") -> str:
    """The structure in PDB format.

    Raises:
        ValueError: it does not fit the format's columns (write mmCIF then).
    """
    lines = []
    last = None
    for serial, atom, residue, number, xyz, confidence in structure.atoms():
        if serial > 99998 or number > 9999 or np.abs(xyz).max() >= 1000:
            raise ValueError(
                f"atom {serial} of residue {number} at {xyz.round(1).tolist()} does not fit the "
                "PDB format; write mmCIF (.cif) instead"
            )
        name = atom if len(atom) == 4 else f" {atom}"
        x, y, z = xyz
        lines.append(
            f"ATOM  {serial:5d} {name:<4s} {residue:3s} {chain}{number:4d}    "
            f"{x:8.3f}{y:8.3f}{z:8.3f}{1.0:6.2f}{confidence:6.2f}          {atom[0]:>2s}  "
        )
        last = serial, residue, number
    if last is not None:
        serial, residue, number = last
        lines.append(f"TER   {serial + 1:5d}      {residue:3s} {chain}{number:4d}".ljust(80))
    lines.append("END".ljust(80))
    return "\n".join(lines) + "\n"


_MMCIF_COLUMNS = (
    "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id "
    "label_entity_id label_seq_id pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy "
    "B_iso_or_equiv auth_seq_id auth_asym_id pdbx_PDB_model_num"
).split()


def to_mmcif(structure: Structure, chain: str = "A") -> str:
    """The structure in mmCIF format."""
    name = "".join(c if c.isalnum() or c in "_-." else "_" for c in structure.name) or "prediction"
    lines = [f"data_{name}", "#", f"_entry.id {name}", "#", "loop_"]
    lines += [f"_atom_site.{column}" for column in _MMCIF_COLUMNS]
    for serial, atom, residue, number, (x, y, z), confidence in structure.atoms():
        lines.append(
            f"ATOM {serial} {atom[0]} {atom} . {residue} {chain} 1 {number} ? "
            f"{x:.3f} {y:.3f} {z:.3f} 1.00 {confidence:.2f} {number} {chain} 1"
        )
    lines.append("#")
    return "\n".join(lines) + "\n"
