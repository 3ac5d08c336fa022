"""What `evofeed check` says of mmCIF files that are not as the wwPDB's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.featurize.golden import INPUTS

from evofeed.base.errors import MmcifError
from evofeed.featurize.check import check_input
from evofeed.featurize.structures.wwpdb import DEVIATIONS, deviations

WHOLE = """data_1abc
_entry.id 1abc
_exptl.method 'X-RAY DIFFRACTION'
_refine.ls_d_res_high 1.8
_struct_asym.id A
_pdbx_struct_assembly_gen.assembly_id 1
_entity_poly_seq.mon_id ALA
loop_
_chem_comp.id
_chem_comp.type
ALA 'L-peptide linking'
LIG non-polymer
loop_
_atom_site.group_PDB
_atom_site.label_comp_id
_atom_site.label_asym_id
_atom_site.label_seq_id
_atom_site.pdbx_PDB_model_num
ATOM ALA A 1 1
HETATM LIG B . 1
"""
CASES = {
    "no sequence of its polymers": ("_entity_poly_seq.mon_id ALA\n", ""),
    "no experimental method": ("_exptl.method 'X-RAY DIFFRACTION'\n", ""),
    "no resolution": ("ls_d_res_high 1.8", "ls_d_res_high ?"),
    "no table of chains": ("_struct_asym.id A\n", ""),
    "no assembly": ("_pdbx_struct_assembly_gen.assembly_id 1\n", ""),
    "components that are not defined": ("LIG non-polymer\n", ""),
    "polymer atoms without a place in the sequence": ("ATOM ALA A 1 1", "ATOM ALA A . 1"),
    "ligand under the name of a polymer": ("LIG B", "LIG A"),
    "several models": ("HETATM LIG B . 1", "HETATM LIG B . 1\nATOM ALA A 1 2"),
}


@pytest.mark.parametrize("kind", DEVIATIONS)
def test_each_deviation_is_found_alone_with_its_case(kind: str) -> None:
    assert deviations(WHOLE.encode()) == []
    old, new = CASES[kind]
    assert old in WHOLE
    ((found, case),) = deviations(WHOLE.replace(old, new).encode())
    assert found == kind and case


def test_entries_of_the_archive_have_none_but_models(golden: Path) -> None:
    of_the_archive = {"102m", "1gbt", "4zxb", "6ydw", "1l2y"}
    entries = [p for p in Path(INPUTS[0]).glob("mmcif/*.cif") if p.stem in of_the_archive]
    assert entries
    for path in entries:
        found = {kind for kind, _ in deviations(path.read_bytes())}
        assert found <= {"several models"}, path.name


def test_no_mmcif_is_one_typed_error() -> None:
    with pytest.raises(MmcifError, match="not mmCIF"):
        deviations(b"HEADER  LYSOZYME", "x.cif")


def test_check_says_what_becomes_of_it(tmp_path: Path, golden: Path) -> None:
    text = (Path(INPUTS[0]) / "mmcif" / "102m.cif").read_text()
    (tmp_path / "102m.cif").write_text(text.replace("_exptl.method", "_exptl.other"))
    found = {f.kind: f for f in check_input(str(tmp_path)).sorted_findings()}
    finding = found["no experimental method"]
    assert finding.severity == "warning" and "leave it in" in finding.advice
    assert "102m.cif: no _exptl.method" in finding.examples[0]
