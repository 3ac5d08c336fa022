"""Structure files in the forms that other programs give them, made from an entry of the PDB."""

from __future__ import annotations

import io
from collections.abc import Callable

import gemmi
from gemmi import cif


def polymers(data: bytes) -> gemmi.Structure:
    """An entry as gemmi has it."""
    structure = gemmi.make_structure_from_block(cif.read_string(data)[0])
    structure.setup_entities()
    return structure


def by_biopython(data: bytes) -> bytes:
    """MMCIFIO's form: `label_asym_id` changes at each HETATM, `label_seq_id` is '.' there."""
    from Bio.PDB.mmcifio import MMCIFIO
    from Bio.PDB.MMCIFParser import MMCIFParser

    parser = MMCIFParser(QUIET=True)  # type: ignore[no-untyped-call]
    writer = MMCIFIO()  # type: ignore[no-untyped-call]
    writer.set_structure(parser.get_structure("t", io.StringIO(data.decode())))  # type: ignore[no-untyped-call]
    out = io.StringIO()
    writer.save(out)  # type: ignore[no-untyped-call]
    return out.getvalue().encode()


def by_gemmi(data: bytes) -> bytes:
    """gemmi's mmCIF, polymer tables and labels included."""
    return polymers(data).make_mmcif_document().as_string().encode()


def _atoms(data: bytes, items: str, cell: Callable[[gemmi.CRA, int, int], list[str]]) -> str:
    """An `_atom_site` loop of some items, a row an atom of every model."""
    rows = []
    for number, model in enumerate(polymers(data), 1):
        for serial, cra in enumerate(model.all(), 1):
            rows.append(" ".join(cell(cra, serial, number)))
    head = "".join(f"_atom_site.{item}\n" for item in items.split())
    return f"loop_\n{head}" + "\n".join(rows) + "\n#\n"


def _quoted(text: str) -> str:
    return f'"{text}"' if "'" in text else text


def _altloc(atom: gemmi.Atom) -> str:
    return "." if atom.altloc == "\0" else atom.altloc


def by_pymol(data: bytes) -> bytes:
    """PyMOL's form: labels are the author's numbers, no polymer tables, waters and all."""
    items = (
        "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id "
        "label_entity_id label_seq_id pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy "
        "B_iso_or_equiv auth_asym_id pdbx_PDB_model_num"
    )

    def cell(cra: gemmi.CRA, serial: int, model: int) -> list[str]:
        chain, residue, atom = cra.chain, cra.residue, cra.atom
        return [
            "HETATM" if residue.het_flag == "H" else "ATOM", str(serial), atom.element.name,
            _quoted(atom.name), _altloc(atom), residue.name, ".", "?", str(residue.seqid.num),
            residue.seqid.icode.strip() or "?", *(f"{x:.3f}" for x in atom.pos.tolist()),
            f"{atom.occ:.2f}", f"{atom.b_iso:.2f}", chain.name, str(model),
        ]  # fmt: skip

    return ("data_t\n_entry.id t\n" + _atoms(data, items, cell)).encode()


def by_phenix(data: bytes) -> bytes:
    """cctbx' form: `_struct_asym` has ids alone."""
    block = cif.read_string(data)[0]
    names = list(dict.fromkeys(block.find_values("_struct_asym.id")))
    block.find_mmcif_category("_struct_asym.").erase()
    block.init_loop("_struct_asym.", ["id"]).set_all_values([names])
    return bytes(block.as_string().encode())


def by_chimerax(data: bytes) -> bytes:
    """ChimeraX' form: sequences and labels, types of components left out."""
    block = cif.read_string(data)[0]
    for category in ("_chem_comp.", "_pdbx_poly_seq_scheme.", "_struct_ref_seq."):
        block.find_mmcif_category(category).erase()
    return bytes(block.as_string().encode())


def by_molstar(data: bytes) -> bytes:
    """Mol*'s form, and biojava's: no components, and no chains of an entity."""
    block = cif.read_string(data)[0]
    for category in ("_chem_comp.", "_struct_asym."):
        block.find_mmcif_category(category).erase()
    return bytes(block.as_string().encode())


def by_converters(data: bytes) -> bytes:
    """The form of those that know author's ids only, with the polymer tables kept."""
    block = cif.read_string(data)[0]
    for tag, value in (("label_seq_id", "?"), ("label_asym_id", ".")):
        column = block.find_loop(f"_atom_site.{tag}")
        for row in range(len(column)):
            column[row] = value
    return bytes(block.as_string().encode())


def by_rosetta(data: bytes) -> bytes:
    """Rosetta's form: PDB, a model alone, without header or SEQRES, TER after each chain."""
    structure = polymers(data)
    while len(structure) > 1:
        del structure[1]
    options = gemmi.PdbWriteOptions(minimal=True, ter_records=True)
    return structure.make_pdb_string(options).encode()


WRITERS = {
    "biopython.cif": by_biopython,
    "gemmi.cif": by_gemmi,
    "pymol.cif": by_pymol,
    "phenix.cif": by_phenix,
    "chimerax.cif": by_chimerax,
    "converters.cif": by_converters,
    "molstar.cif": by_molstar,
    "rosetta.pdb": by_rosetta,
}
