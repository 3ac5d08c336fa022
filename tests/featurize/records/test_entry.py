"""mmCIF text to the record of an entry: assemblies, dates, long names, damage."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from evofeed.base.errors import EvofeedError, MmcifError
from evofeed.featurize.entries.molecules import component_molecule
from evofeed.featurize.entries.prepare import PreparedEntry, prepare_entry
from evofeed.featurize.records.entry import entry_record, operations
from evofeed.featurize.structures.components import read_components
from evofeed.protein.components import ComponentTable
from evofeed.synth.entries import COMPONENTS, entry_cif

TEXT = entry_cif("s000", 0, 6)
GEN = "1 1 A,B,C,D,E,F,G\n"
PROJECTS = ("openfold3", "boltz", "protenix")


@functools.cache
def components(text: str = "") -> ComponentTable:
    """The made-up dictionary, or one of this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "components.cif")
        path.write_text(text or COMPONENTS.read_text())
        return read_components(path)


def changed(old: str, new: str, text: str = TEXT) -> str:
    assert old in text
    return text.replace(old, new)


def prepared(text: str, table: ComponentTable | None = None) -> PreparedEntry:
    return prepare_entry(text.encode(), table or components(), PROJECTS)


def test_without_an_assembly_called_1_the_first_is_taken() -> None:
    text = changed(GEN, "7 1 A,C\n2 1 B\n")
    record = entry_record(text.encode())
    assert (record.assembly, record.copies[0].asyms) == ("7", ("A", "C"))


def test_products_of_operators_are_steps_from_right_to_left() -> None:
    assert operations("(1-2)(X0)") == [("X0", "1"), ("X0", "2")]
    shifts = "1 1 0 0 0 1 0 0 0 1 0 0 0\n"
    turn = "2 0 -1 0 1 0 0 0 0 1 0 0 0\n3 1 0 0 0 1 0 0 0 1 10 0 0\n"
    text = changed(shifts, shifts + turn, changed(GEN, "1 (2)(3) A\n"))
    record = entry_record(text.encode())
    moved = record.operators[0] @ np.array([0, 0, 0, 1.0])
    np.testing.assert_allclose(moved, [0, 10, 0])  # shifted first, then turned


def test_a_pipe_is_not_a_dictionary(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "components.cif")
    with pytest.raises(MmcifError, match=r"components\.cif: no dictionary .* no such file"):
        read_components(tmp_path / "components.cif")


def test_a_missing_table_of_assemblies_is_none() -> None:
    bare = changed("_pdbx_struct_assembly_gen.", "_other.")
    record = entry_record(bare.encode())
    assert (record.assembly, record.copies) == ("", ())
    assert prepared(bare).sections


@pytest.mark.parametrize("null", [".", "?"])
def test_a_link_has_the_residue_of_a_ligand_whichever_null_is_its_number(null: str) -> None:
    columns = "label_asym_id label_comp_id label_seq_id auth_asym_id auth_seq_id".split()
    items = [f"_struct_conn.ptnr{end}_{item}" for end in (1, 2) for item in columns]
    names = "\n".join(["_struct_conn.conn_type_id", *items])
    text = f"{TEXT}loop_\n{names}\ncovale A SER 5 A 5 D LIG {null} D 1\n"
    (link,) = entry_record(text.encode()).links
    assert min(end.residue for end in link.ends) >= 0


def test_boltz_has_all_atoms_of_a_monomer_that_is_listed_atom_by_atom_with_its_rival() -> None:
    # As gemmi gathers them for Boltz, observed on edited entries of the recorded pack.
    lines = []
    for line in TEXT.splitlines(keepends=True):
        rivals = [line]
        if " . ASP A 1 2 " in line:
            rivals = [line.replace(" . ASP", rival) for rival in (" A ASP", " B ASN")]
        lines += rivals
    plain, mixed = (prepared(text).sections["boltz"] for text in (TEXT, "".join(lines)))
    assert mixed.atom_name.tolist() == plain.atom_name.tolist()
    assert (mixed.atom_row >= 0).tolist() == (plain.atom_row >= 0).tolist()


def test_protenix_numbers_the_residues_of_a_ligand_without_those_of_other_locations() -> None:
    ligand = "".join(line for line in TEXT.splitlines(keepends=True) if " . LIG D " in line)
    rivals = ligand.replace(" . LIG", " A LIG") + ligand.replace(" . LIG", " B SO4")
    section = prepared(changed(ligand, rivals + ligand.replace(" 1 D 1\n", " 2 D 1\n"))).sections[
        "protenix"
    ]
    chain = section.chain_name.tolist().index("D")
    residues = slice(*section.chain_residue[chain : chain + 2])
    assert section.residue_name[residues].tolist() == ["LIG", "LIG"]
    assert section.residue_index[residues].tolist() == [1, 2]


def test_chains_of_an_entity_without_a_row_in_entity_have_its_sequence() -> None:
    text = changed("1 polymer", "99 polymer")
    record, whole = entry_record(text.encode()), entry_record(TEXT.encode())
    for row, name in zip(record.chain_entity.tolist(), whole.chain_entity.tolist(), strict=True):
        assert record.entities[row] == whole.entities[name]


@pytest.mark.parametrize("has_chain", [True, False])
def test_links_are_found_by_the_items_that_the_table_has(has_chain: bool) -> None:
    items = ("asym", "comp", "seq", "atom") if has_chain else ("comp", "seq", "atom")
    columns = [f"ptnr{end}_label_{item}_id" for end in (1, 2) for item in items]
    record = entry_record(TEXT.encode())
    name, number = record.residue_name[1], record.residue_seq[1]
    row = f"covale A {name} {number} CA D LIG ? C1"
    if not has_chain:  # the residue of chain A or of chain B, either of two ligands
        row = row.replace(" A ", " ").replace(" D ", " ")
    loop = ["loop_", *(f"_struct_conn.{item}" for item in ("conn_type_id", *columns)), row, ""]
    (link,) = entry_record((TEXT + "\n" + "\n".join(loop)).encode()).links
    ligand = record.chain_residue[record.chain_label.index("D")]
    assert [end.residue for end in link.ends] == ([1, ligand] if has_chain else [-1, -1])


def test_an_atom_without_coordinates_is_named() -> None:
    lines = TEXT.splitlines()
    (first, *_rest) = (row for row, line in enumerate(lines) if line.startswith("ATOM"))
    fields = lines[first + 2].split()
    fields[10] = "?"
    lines[first + 2] = " ".join(fields)
    with pytest.raises(MmcifError, match=r"f\.cif: _atom_site\.Cartn_x, y or z of atom 3"):
        entry_record("\n".join(lines).encode(), path="f.cif")


def test_dates_are_kept_as_listed_and_resolutions_that_say_nothing_are_none() -> None:
    text = changed("1 2020-01-15\n", "1 2021-05-05\n2 2019-01-01\n3 2022-02-02\n")
    record = entry_record(
        changed("_refine.ls_d_res_high 1.80", "_refine.ls_d_res_high ?", text).encode()
    )
    assert record.release_dates == ("2021-05-05", "2019-01-01", "2022-02-02")
    assert np.isnan(record.resolution())


def test_a_made_up_chain_of_any_length_is_whole() -> None:
    sections = prepared(entry_cif("long", 0, 700)).sections.values()
    assert [np.diff(section.chain_residue).max() for section in sections] == [700] * 3


def test_codes_of_five_letters_and_names_of_five_characters_come_through_every_ruleset() -> None:
    def long(text: str) -> str:
        return text.replace("LIG", "ABCDE").replace(" C1 ", " C1XYZ ")

    entry = prepared(long(TEXT), components(long(COMPONENTS.read_text())))
    assert set(entry.sections) == set(PROJECTS)
    for project, section in entry.sections.items():
        assert "ABCDE" in section.residue_name.tolist(), project
        assert "C1XYZ" in section.atom_name.tolist(), project
    molecule = component_molecule(components(long(COMPONENTS.read_text()))["ABCDE"], 1).molecule
    assert "C1XYZ" in molecule.name.tolist()


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize("code", ["MG", "SO4", "LIG"])
def test_conformers_are_finite_however_many_and_of_a_single_atom(code: str, count: int) -> None:
    molecule = component_molecule(components()[code], count).molecule
    assert np.isfinite(molecule.position).all()
    assert molecule.position.shape[1] == len(molecule.mask) == len(molecule.name)
    assert molecule.mask.all()


def test_a_component_that_cannot_be_embedded_has_other_coordinates_or_a_mask_and_no_nan() -> None:
    component = components()["LIG"]
    fields = {name: getattr(component, name) for name in type(component).__dataclass_fields__}
    carbons = np.where(component.element == "H", "H", "C")
    crowded = {**fields, "element": carbons, "bond_order": np.full(len(component.bond), 4)}
    for ideal in (component.ideal, np.full_like(component.ideal, np.nan)):
        reference = component_molecule(
            type(component)(**{**crowded, "ideal": ideal, "model": ideal}), 2
        )
        assert reference.origin in ("ideal", "none")
        assert np.isfinite(reference.molecule.position).all()
        assert reference.molecule.mask.all() == (reference.origin == "ideal")


def test_an_unknown_component_is_named_by_every_project_that_leaves_it_out_or_refuses() -> None:
    entry = prepared(TEXT, ComponentTable({k: v for k, v in components().items() if k != "LIG"}))
    notes = " ".join(entry.notes())
    for project in PROJECTS:
        section = entry.sections.get(project)
        is_missing = section is None or "LIG" not in section.residue_name.tolist()
        assert not is_missing or project in notes
    assert "LIG" in notes


def test_text_cut_anywhere_or_with_a_changed_character_is_a_record_or_a_typed_error() -> None:
    dice = np.random.default_rng(0)
    begin = TEXT.index("_atom_site.group_PDB")
    refused = 0
    for offset in [
        *np.linspace(1, begin + 2500, 40).astype(int),
        *dice.integers(0, begin + 2000, 40),
    ]:
        text = TEXT[: int(offset)]
        if dice.random() < 0.5:
            text = TEXT[: int(offset)] + "#'_;9"[dice.integers(5)] + TEXT[int(offset) + 1 :]
        try:
            prepared(text)
        except EvofeedError:
            refused += 1
    assert refused > 10
