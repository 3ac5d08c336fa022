"""OpenFold3's and Protenix's own preparation against ours, on edited recorded entries.

`make projects` installs their wheels, as CI does. Boltz's scripts are in no wheel.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest
from tests.conftest import own_packages
from tests.featurize.records.allatom import components
from tests.loader.views.own_openfold3 import stand_ins
from tests.loader.views.packs import some_recordings

from evofeed.featurize.entries.prepared import prepared_set, read_target
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.records.entry import entry_record
from evofeed.featurize.records.rulesets.openfold3 import openfold3_section, template_chain
from evofeed.featurize.records.rulesets.protenix import protenix_section
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.ruleset_section import RulesetSection, placed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
Rows = list[dict[str, str]]


def without_every_seventh_residue(rows: Rows) -> Rows:
    return [row for row in rows if int(row["auth_seq_id"]) % 7]


def with_alternates_the_other_way(rows: Rows) -> Rows:
    """Every fifth residue has two locations, the second with the higher occupancy."""
    edited: Rows = []
    for row in rows:
        if int(row["auth_seq_id"]) % 5 or row["label_alt_id"] != ".":
            edited.append(row)
            continue
        moved = f"{float(row['Cartn_x']) + 0.5:.3f}"
        edited.append({**row, "label_alt_id": "A", "occupancy": "0.30"})
        edited.append({**row, "label_alt_id": "B", "occupancy": "0.70", "Cartn_x": moved})
    return edited


def with_atoms_reversed_and_deuterium(rows: Rows) -> Rows:
    edited: Rows = []
    residue: Rows = []
    for row in rows:
        if residue and any(row[k] != residue[0][k] for k in ("label_asym_id", "auth_seq_id")):
            edited += residue[::-1]
            residue = []
        residue.append(row)
    edited += residue[::-1]
    return edited + [{**row, "label_atom_id": "D9", "type_symbol": "D"} for row in edited[-1:]]


def with_insertion_codes_and_no_occupancy(rows: Rows) -> Rows:
    return [
        {**row, "pdbx_PDB_ins_code": "A", "occupancy": "0.00"}
        if int(row["auth_seq_id"]) % 6 == 0
        else row
        for row in rows
    ]


EDITS = [
    without_every_seventh_residue,
    with_alternates_the_other_way,
    with_atoms_reversed_and_deuterium,
    with_insertion_codes_and_no_occupancy,
]


def edited(path: Path, edit: Callable[[Rows], Rows]) -> str:
    """An entry's mmCIF with another table of atoms."""
    pack = path.parents[2]
    text = gzip.decompress((pack / "inputs" / "mmcif" / f"{path.stem}.cif.gz").read_bytes())
    document = gemmi.cif.read_string(text.decode())
    block = document.sole_block()
    table = block.find_mmcif_category("_atom_site.")
    names = [tag.split(".")[1] for tag in table.tags]
    rows = [dict(zip(names, row, strict=True)) for row in table]
    table.erase()
    loop = block.init_loop("_atom_site.", names)
    for number, row in enumerate(edit(rows), 1):
        loop.add_row([str(number) if name == "id" else row[name] for name in names])
    return str(document.as_string())


def edited_inputs(
    path: Path, edit: Callable[[Rows], Rows], folder: Path
) -> tuple[Path, EntryRecord, ComponentTable, Any]:
    """An edited file, its record, the dictionary, and this as biotite reads it."""
    text, pack, file = edited(path, edit), path.parents[2], folder / "entry.cif"
    file.write_text(text)
    pdbx = importlib.import_module("biotite.structure.io.pdbx")
    (source,) = (pack / "components").glob("components.cif*")
    dictionary = pdbx.CIFFile.read(io.StringIO(read_bytes(file_ref(source)).decode()))
    return file, entry_record(text.encode()), components(pack), dictionary


def assert_same(
    section: RulesetSection, record: EntryRecord, prepared: Any, resolved: np.ndarray
) -> None:
    """Names, numbers, coordinates and bonds of every atom are equal."""
    residue, row = section.atom_residue(), section.atom_row
    for name, column in {
        "atom_name": section.atom_name,
        "res_name": section.residue_name[residue],
        "res_id": section.residue_index[residue],
        "element": section.atom_element,
    }.items():
        assert column.tolist() == getattr(prepared, name).tolist(), name
    assert np.array_equal(row >= 0, resolved)
    operator = section.chain_operator[section.atom_chain()]
    position = placed(record.atom_position[row], operator, record.operators, single=True)
    assert np.array_equal(position[resolved], prepared.coord[resolved])
    bonds = np.sort(prepared.bonds.as_array()[:, :2].astype(int), axis=1)
    assert sorted(np.sort(section.bond_atom, axis=1).tolist()) == sorted(bonds.tolist())


def assert_read_as_ours(folder: Path, section: RulesetSection) -> None:
    """The set that a project wrote has one entry, whose section equals this one."""
    read_set = prepared_set(str(folder), "")
    assert read_set is not None
    ((_name, *files),) = read_set.items
    read_section = read_target(section.project, *files).entry.sections[section.project]
    for name in type(section).__dataclass_fields__:
        own, other = getattr(section, name), getattr(read_section, name)
        if name == "atom_row":
            own, other = own >= 0, other >= 0
        if name == "interface":
            own, other = (np.unique(np.sort(pairs, axis=1), axis=0) for pairs in (own, other))
        if name not in OF_THE_RECORD + (UNREAD if section.project == "protenix" else ()):
            assert np.array_equal(own, other), name


OF_THE_RECORD = ("chain_asym", "chain_operator", "chain_copy", "bond_atom", "bond_type", "dropped")
"""Columns that point into another record, in no order, or that a set does not have."""
UNREAD = ("atom_charge", "residue_insertion")
"""Columns that a sample of Protenix does not read."""


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize(
    "path", some_recordings("openfold3/structure/*.npz", 2), ids=lambda p: p.stem
)
def test_openfold3_cleans_an_edited_entry_as_ours_does(
    path: Path, edit: Callable[[Rows], Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(monkeypatch)
    own_packages(monkeypatch, "openfold3")
    file, record, table, dictionary = edited_inputs(path, edit, tmp_path)
    module = importlib.import_module("openfold3.core.data.pipelines.preprocessing.structure")
    parsed = module.parse_mmcif(file, expand_bioassembly=True, renumber_chain_ids=True)
    block = module.get_cif_block(parsed.structure_file)
    cleaned = module.cleanup_structure_of3(parsed.atom_array, block, dictionary)
    section = openfold3_section(record, table)
    assert_same(section, record, cleaned, np.isfinite(cleaned.coord).all(axis=1))
    template = importlib.import_module("openfold3.core.data.primitives.structure.template")
    file_, atoms = template.parse_mmcif(file)
    chain = template.clean_template_atom_array(atoms, file_, record.chain_label[0], dictionary)
    own_chain = template_chain(record, table, record.chain_label[0])
    columns = own_chain.res_id, own_chain.res_name, own_chain.name, *own_chain.position.T
    their_columns = chain.res_id, chain.res_name, chain.atom_name, *chain.coord.T
    for own, other in zip(columns, their_columns, strict=True):
        np.testing.assert_array_equal(
            own[np.lexsort(columns[:3])], other[np.lexsort(their_columns[:3])]
        )
    metadata = module.extract_chain_and_interface_metadata_of3(cleaned, block)
    folder = tmp_path / "structure_files" / "entry"
    folder.mkdir(parents=True)
    module.write_structure(cleaned, folder / "entry.npz", data_block="entry")
    text = json.dumps({"structure_data": {"entry": metadata}}, default=module.encode_numpy_types)
    (tmp_path / "metadata.json").write_text(text)
    assert_read_as_ours(tmp_path, section)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize(
    "path", some_recordings("protenix/structure/*.npz", 2), ids=lambda p: p.stem
)
def test_protenix_prepares_an_edited_entry_as_ours_does(
    path: Path, edit: Callable[[Rows], Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(monkeypatch)
    own_packages(monkeypatch, "protenix")
    file, record, table, dictionary = edited_inputs(path, edit, tmp_path)
    module = importlib.import_module("protenix.data.core.parser")
    monkeypatch.setattr(module.ccd, "biotite_load_ccd_cif", lambda: dictionary)
    monkeypatch.setattr(module, "get_obsolete_dict", dict)

    def conformers(atoms: Any) -> Any:  # compared in another test
        for name in ("ref_pos", "ref_mask", "ref_charge"):
            atoms.set_annotation(name, np.zeros((len(atoms), 3)[: 1 + (name == "ref_pos")]))
        return atoms

    name = "add_ref_info_and_res_perm"
    monkeypatch.setattr(module.AddAtomArrayAnnot, name, staticmethod(conformers))
    parser = module.MMCIFParser(file)
    assembly = parser.get_bioassembly()
    prepared = assembly["atom_array"]
    section = protenix_section(record, table)
    assert_same(section, record, prepared, prepared.is_resolved)
    for home in ("mmcif_bioassembly", "indices"):
        (tmp_path / home).mkdir()
    rows = parser.make_indices(assembly)
    importlib.import_module("pandas").DataFrame(rows).to_csv(tmp_path / "indices" / "one.csv")
    target = tmp_path / "mmcif_bioassembly" / f"{rows[0]['pdb_id']}.pkl.gz"
    importlib.import_module("protenix.utils.file_io").dump_gzip_pickle(assembly, target)
    assert_read_as_ours(tmp_path, section)
