"""Sets that OpenFold3's and Protenix's own code writes, read as ours makes them from mmCIF.

`make projects` installs their wheels, as CI does.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.featurize.entries.prepared_sets import openfold3_texts
from tests.featurize.records.allatom import components, openfold3_molecules, record
from tests.featurize.records.test_own_preparation import dictionary_text
from tests.loader.views.own_openfold3 import _rdkit_molecule, stand_ins
from tests.loader.views.packs import some_recordings

from evofeed.featurize.entries.alignments import read_alignment
from evofeed.featurize.entries.prepared import prepared_set, read_target
from evofeed.featurize.records.rulesets.openfold3 import openfold3_section
from evofeed.featurize.records.rulesets.protenix import protenix_section
from evofeed.loader.views.columns import structure_columns
from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.ruleset_section import RulesetSection

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PROJECTS = Path(__file__).parents[3] / ".projects"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(PROJECTS)])
    stand_ins(monkeypatch)


def mmcif(path: Path, folder: Path) -> Path:
    file = folder / f"{path.stem}.cif"
    source = path.parents[2] / "inputs" / "mmcif" / f"{path.stem}.cif.gz"
    file.write_bytes(gzip.decompress(source.read_bytes()))
    return file


def assert_read_as_ours(folder: Path, ours: RulesetSection, file: EntryRecord) -> None:
    """The one entry of the set has our section's columns, interfaces and bonds."""
    found = prepared_set(str(folder), "")
    assert found is not None and found.project == ours.project
    ((name, *files),) = found.items
    assert name == file.entry
    target = read_target(found.project, *files)
    theirs = target.entry.sections[ours.project]
    tables = [
        structure_columns(one, section, section.atom_row >= 0, {}, single=True)
        for one, section in ((file, ours), (target.entry.record, theirs))
    ]
    for tables_of in tables:
        for column in ("bond_atom", "interface_chain"):
            tables_of[column] = np.unique(np.sort(tables_of[column], axis=1), axis=0)
        del tables_of["bond_type"]
    for column, wanted in tables[0].items():
        assert np.array_equal(tables[1][column], wanted), column
    names = [[one.name for one in part.entities] for part in (file, target.entry.record)]
    assert set(names[1]) <= set(names[0])


@pytest.mark.parametrize(
    "path", some_recordings("openfold3/structure/*.npz", 2), ids=lambda p: p.stem
)
def test_what_openfold3_writes_is_read_as_ours(path: Path, packages: None, tmp_path: Path) -> None:
    pytest.importorskip("openfold3", reason="make projects")
    own = "openfold3.core.data"
    module = importlib.import_module(f"{own}.pipelines.preprocessing.structure")
    pdbx = importlib.import_module("biotite.structure.io.pdbx")
    pack, folder = path.parents[2], tmp_path / "set"
    parsed = module.parse_mmcif(
        mmcif(path, tmp_path), expand_bioassembly=True, renumber_chain_ids=True
    )
    block = module.get_cif_block(parsed.structure_file)
    dictionary = pdbx.CIFFile.read(io.StringIO(dictionary_text(pack)))
    atoms = module.cleanup_structure_of3(parsed.atom_array, block, dictionary)
    home = folder / "structure_files" / path.stem
    home.mkdir(parents=True)
    module.write_structure(atoms, home / f"{path.stem}.npz", data_block=path.stem)
    about = module.extract_chain_and_interface_metadata_of3(atoms, block)
    (folder / "reference_mols").mkdir()
    reference = {}
    for code in ("PRO", "GLY"):
        molecule = openfold3_molecules(pack)[code]
        target = folder / "reference_mols" / f"{code}.sdf"
        module.write_annotated_sdf(_rdkit_molecule(molecule, pack, code), target)
        reference[code] = {"conformer_gen_strategy": "use_fallback", "set_fallback_to_nan": False}
    reference["GLY"] = {"conformer_gen_strategy": "default"}
    cache = {
        "structure_data": {
            path.stem: {**about, "status": "success"},
            "1xyz": {"status": "failed"},
        },
        "reference_molecule_data": reference,
    }
    text = json.dumps(cache, default=importlib.import_module(f"{own}.io.utils").encode_numpy_types)
    (folder / "metadata.json").write_text(text)
    file = record(pack, path.stem)
    assert_read_as_ours(folder, openfold3_section(file, components(pack)), file)
    found = prepared_set(str(folder / "metadata.json"), "")
    assert found is not None
    assert found.left_out == [("1xyz", "OpenFold3 has not prepared it: failed")]
    (made,), wanted = found.molecules.values(), openfold3_molecules(pack)["PRO"]
    for name in ("name", "element", "charge", "mask"):
        assert np.array_equal(getattr(made, name), getattr(wanted, name)), name
    np.testing.assert_allclose(made.position, wanted.position, atol=5.1e-5)


def test_arrays_that_openfold3_reads_are_read_as_its_text(packages: None, tmp_path: Path) -> None:
    pytest.importorskip("openfold3", reason="make projects")
    module = importlib.import_module("openfold3.core.data.io.sequence.msa")
    pack = some_recordings("openfold3/structure/*.npz", 1)[0].parents[2]
    folder = tmp_path / "2x1f_1"
    folder.mkdir()
    for source, text in openfold3_texts(pack, folder.name).items():
        (folder / f"{source}.a3m").write_text(text)
    files = sorted(folder.iterdir())
    parsed = {file.stem: vars(module.parse_a3m(file.read_text())) for file in files}
    arrays = tmp_path / "2x1f_1.npz"
    np.savez_compressed(arrays, **{name: np.array(one, object) for name, one in parsed.items()})
    theirs = module.parse_msas_preparsed([arrays])
    ours, text = read_alignment([str(arrays)]), read_alignment([str(one) for one in files])
    assert ours.sources == text.sources == tuple(sorted(theirs))
    for name in type(ours).__dataclass_fields__:
        if name != "row_gapless":  # the arrays have no letters that were inserted
            one, two = getattr(ours, name), getattr(text, name)
            assert np.array_equal(one, two) if isinstance(one, np.ndarray) else one == two, name
    letters = np.array([*"ABCDEFGHIJKLMNOPQRSTUVWXYZ-"])[ours.letters[ours.row_letters]]
    stacked = [theirs[name].msa for name in ours.sources]
    assert np.array_equal(letters, np.concatenate(stacked))


@pytest.mark.parametrize(
    "path", some_recordings("protenix/structure/*.npz", 2), ids=lambda p: p.stem
)
def test_what_protenix_writes_is_read_as_ours(
    path: Path, packages: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("protenix", reason="make projects")
    module = importlib.import_module("protenix.data.core.parser")
    pipeline = importlib.import_module("protenix.data.pipeline.data_pipeline").DataPipeline
    pdbx = importlib.import_module("biotite.structure.io.pdbx")
    pandas = importlib.import_module("pandas")
    pack, folder = path.parents[2], tmp_path / "set"
    dictionary = pdbx.CIFFile.read(io.StringIO(dictionary_text(pack)))
    monkeypatch.setattr(module.ccd, "biotite_load_ccd_cif", lambda: dictionary)
    monkeypatch.setattr(module, "get_obsolete_dict", dict)

    def conformers(atoms: Any) -> Any:
        atoms.set_annotation("ref_pos", np.zeros((len(atoms), 3)))
        for name in ("ref_mask", "ref_charge"):
            atoms.set_annotation(name, np.zeros(len(atoms), int))
        return atoms

    name = "add_ref_info_and_res_perm"
    monkeypatch.setattr(module.AddAtomArrayAnnot, name, staticmethod(conformers))
    rows, whole = pipeline.get_data_from_mmcif(mmcif(path, tmp_path))
    for home in ("mmcif_bioassembly", "indices"):
        (folder / home).mkdir(parents=True)
    io_of = importlib.import_module("protenix.utils.file_io")
    io_of.dump_gzip_pickle(whole, folder / "mmcif_bioassembly" / f"{path.stem}.pkl.gz")
    pandas.DataFrame(rows).to_csv(folder / "indices" / "indices.csv", index=False)
    file = record(pack, path.stem)
    assert_read_as_ours(folder, protenix_section(file, components(pack)), file)
