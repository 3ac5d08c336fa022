"""One entry saved by eight programs is one record, or a note says what differs."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import gemmi
import numpy as np
import pytest
from gemmi import cif
from tests.conftest import SMALL_PACK, golden_root
from tests.featurize.golden import INPUTS

from evofeed.base.errors import MmcifError
from evofeed.featurize.structures.mmcif import parse_mmcif
from evofeed.featurize.structures.pdb import parse_pdb
from evofeed.featurize.structures.structure import Chain
from evofeed.featurize.structures.structure_files import parse_structure


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


def polymers(data: bytes) -> gemmi.Structure:
    """An entry as gemmi has it."""
    structure = gemmi.make_structure_from_block(cif.read_string(data)[0])
    structure.setup_entities()
    return structure


def by_gemmi(data: bytes) -> bytes:
    """gemmi's mmCIF, polymer tables and labels included."""
    return polymers(data).make_mmcif_document().as_string().encode()


ERASED = {
    "phenix": ["_struct_asym."],  # cctbx: it has ids alone
    "chimerax": ["_chem_comp.", "_pdbx_poly_seq_scheme.", "_struct_ref_seq."],
    "molstar": ["_chem_comp.", "_struct_asym."],  # and biojava
}
"""Tables that these leave out."""


def without_tables(program: str, data: bytes) -> bytes:
    block = cif.read_string(data)[0]
    names = list(dict.fromkeys(block.find_values("_struct_asym.id")))
    for category in ERASED[program]:
        block.find_mmcif_category(category).erase()
    if program == "phenix":
        block.init_loop("_struct_asym.", ["id"]).set_all_values([names])
    return bytes(block.as_string().encode())


PYMOL = (
    "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id "
    "label_entity_id label_seq_id pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy "
    "B_iso_or_equiv auth_asym_id pdbx_PDB_model_num"
)


def by_pymol(data: bytes) -> bytes:
    """PyMOL's form: labels are the author's numbers, no polymer tables, waters and all."""
    document = cif.Document()
    block = document.add_new_block("t")
    block.set_pair("_entry.id", "t")
    loop = block.init_loop("_atom_site.", PYMOL.split())
    for number, model in enumerate(polymers(data), 1):
        for serial, cra in enumerate(model.all(), 1):
            chain, residue, atom = cra.chain, cra.residue, cra.atom
            loop.add_row([
                "HETATM" if residue.het_flag == "H" else "ATOM", str(serial), atom.element.name,
                cif.quote(atom.name), "." if atom.altloc == "\0" else atom.altloc, residue.name,
                ".", "?", str(residue.seqid.num), residue.seqid.icode.strip() or "?",
                *(f"{x:.3f}" for x in atom.pos.tolist()), f"{atom.occ:.2f}",
                f"{atom.b_iso:.2f}", chain.name, str(number),
            ])  # fmt: skip
    return bytes(document.as_string().encode())


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
    "phenix.cif": partial(without_tables, "phenix"),
    "chimerax.cif": partial(without_tables, "chimerax"),
    "converters.cif": by_converters,
    "molstar.cif": partial(without_tables, "molstar"),
    "rosetta.pdb": by_rosetta,
}

CASES = {"102m", "1a4w", "1l2y", "2q2k", "3jqh", "4zxb"}
"""Insertion codes, ligands like an amino acid, several models, DNA, altlocs, glycans, gaps."""
FILES = {path.stem: path for root in INPUTS for path in sorted(root.rglob("mmcif/*.cif"))}
MODIFIED = ["102m", "1l2y", "3jqh"]


def entry(name: str) -> bytes:
    return FILES[name].read_bytes()


def test_every_case_is_recorded_where_the_whole_pack_is_required() -> None:
    present = CASES & FILES.keys()
    assert len(present) >= 3 and present & set(MODIFIED)
    assert golden_root() == SMALL_PACK or present == CASES


def with_modified_residues(data: bytes) -> bytes:
    """The entry with selenomethionine and phosphoserine for every fourth MET and SER."""
    block = cif.read_string(data)[0]
    names = {"MET": "MSE", "SER": "SEP"}
    items = "label_comp_id label_seq_id group_PDB label_atom_id auth_comp_id".split()
    for row in block.find("_atom_site.", items):
        if row[0] in names and row[1] != "." and int(row[1]) % 4 == 0:
            row[0] = row[4] = names[row[0]]
            row[2] = "HETATM"
            row[3] = "SE" if row[3] == "SD" else row[3]
    for row in block.find("_entity_poly_seq.", ["num", "mon_id"]):
        if row[1] in names and int(row[0]) % 4 == 0:
            row[1] = names[row[1]]
    table = block.find("_chem_comp.", ["id", "type"])
    if "MSE" not in list(block.find_values("_chem_comp.id")):
        width = table.loop.width()
        at = [tag.partition(".")[2] for tag in table.loop.tags]
        for name in names.values():
            row = ["?"] * width
            row[at.index("id")], row[at.index("type")] = name, "'L-peptide linking'"
            table.loop.add_row(row)
    return bytes(block.as_string().encode())


def seen(chain: Chain) -> tuple[str, np.ndarray, np.ndarray]:
    """Letters, atoms and mask of the residues with atoms."""
    rows = chain.mask.any(-1)
    letters = "".join(np.array(list(chain.sequence))[rows])
    return letters, chain.positions[rows], chain.mask[rows]


def assert_same(data: bytes, writer: str) -> None:
    want = parse_structure(data, "t.cif")
    got = parse_structure(WRITERS[writer](data), f"t{Path(writer).suffix}")
    assert got.sequences.keys() == want.sequences.keys()
    for name in want.sequences:
        one, two = got.chain(name), want.chain(name)
        for ours, theirs in zip(seen(one), seen(two), strict=True):
            assert np.array_equal(ours, theirs)
        if one.sequence != two.sequence:
            assert "no full sequence in the file" in " ".join(one.notes)
            inner = np.flatnonzero(two.mask.any(-1))
            if len(inner) == inner[-1] - inner[0] + 1:  # only ends are unseen
                assert one.residue_index is None
            else:
                assert one.residue_index is not None
                assert "residue_index steps over them" in " ".join(one.notes)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", sorted((CASES & FILES.keys()) - {*MODIFIED}))
def test_an_entry_is_the_same_from_every_writer(name: str, writer: str, golden: Path) -> None:
    assert_same(entry(name), writer)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", [name for name in MODIFIED if name in FILES])
def test_modified_residues_end_no_chain(name: str, writer: str, golden: Path) -> None:
    data = with_modified_residues(entry(name))
    assert b"MSE" in data or b"SEP" in data
    chains = parse_structure(data, "t.cif").sequences
    assert chains == parse_structure(entry(name), "t.cif").sequences
    assert_same(data, writer)


ENTRIES = [path for root in INPUTS for path in sorted(root.rglob("*.cif"))][:12]


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.stem)
def test_an_entry_is_the_same_as_pdb_and_as_mmcif(path: Path, golden: Path) -> None:
    data = gemmi.read_structure(str(path)).make_pdb_string().encode()
    try:
        want = parse_mmcif(path.read_bytes(), file_id="t")
    except MmcifError:
        with pytest.raises(MmcifError, match="no protein in it"):
            parse_pdb(data, file_id="t")
        return
    got = parse_pdb(data, file_id="t")
    assert got.sequences == want.sequences
    for name in want.sequences:
        one, two = got.chain(name), want.chain(name)
        assert np.array_equal(one.mask, two.mask)
        assert np.array_equal(one.positions, two.positions)
