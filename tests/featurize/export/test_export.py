"""Records of a dataset as inputs of other programs, read by these programs' own code.

`make projects` installs Boltz, OpenFold3, Protenix and AlphaFold 3, as CI does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import gemmi
import numpy as np
import pytest
import yaml
from tests.conftest import evofeed, once_a_run, own_packages
from tests.featurize.entries.prepared_sets import boltz_package
from tests.featurize.records.allatom import components
from tests.featurize.records.test_entry import components as made_up
from tests.inside import units_inside
from tests.loader.views.packs import packs
from tests.synthetic_entries import dataset_uri

from evofeed.base.errors import InputError
from evofeed.featurize import discover, featurize_chain
from evofeed.featurize.entries.alignments import read_alignment
from evofeed.featurize.entries.molecules import component_atoms, molecule_graph
from evofeed.featurize.export.dataset import export_dataset
from evofeed.featurize.export.entries import job_of_entry
from evofeed.featurize.export.formats import ExportFolder, write_af3
from evofeed.featurize.job.run import run_job
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import RESTYPES
from evofeed.store import Dataset
from evofeed.synth import write_synthetic

pytestmark = pytest.mark.system
LETTERS = np.array(list(f"{RESTYPES}X-"))


@functools.cache
def complexes() -> str:
    """An A2B2 and an AB, with alignments, rows to pair, templates and structures."""

    def build(root: Path) -> None:
        raw, data = str(root / "raw"), str(root / "data")
        write_synthetic(raw, 2, stoichiometries=["A2B2", "AB"], mean_length=50, mean_depth=40)
        with units_inside():
            assert run_job(raw, data).state == "published"
        evofeed("assemblies", raw, data)

    return str(once_a_run("exported", build) / "data")


def a_complex() -> tuple[str, AssemblyRecord]:
    """One with a sequence that is there twice."""
    dataset = Dataset.open(complexes())
    records = ((name, dataset.assemblies[name]) for name in dataset.assemblies)
    return next((name, record) for name, record in records if max(map(len, record.copies)) == 2)


def exported(folder: Path, form: str, uri: str = "", **changes: Any) -> Path:
    count, _ = export_dataset(Dataset.open(uri or complexes()), str(folder), form, **changes)
    assert count >= 2
    return folder


def letters(record: ChainRecord) -> np.ndarray:
    """Rows of a record as letters, its query as it is written."""
    rows = LETTERS[record.msa]
    rows[0] = list(record.sequence)
    return rows


def component(name: str) -> Any:
    """A component with names and a conformer, as Boltz has them in its cache."""
    chem = importlib.import_module("rdkit.Chem")
    dictionary = components(packs()[0])
    entry = dictionary[name] if name in dictionary else made_up()[name]
    parts = component_atoms(entry)
    molecule = molecule_graph(parts)
    for atom, title, leaves in zip(molecule.GetAtoms(), entry.name, entry.leaving, strict=True):
        atom.SetProp("name", str(title))
        atom.SetProp("leaving_atom", str(int(leaves)))
    conformer = chem.Conformer(len(parts.position))
    conformer.SetPositions(np.nan_to_num(parts.position).astype(np.float64))
    molecule.AddConformer(conformer)
    return molecule.GetMol()


def run_boltz(inputs: Path, out: Path) -> Path:
    """Boltz's own `check_inputs` and `process_inputs`; the folder of what they made."""
    chem = importlib.import_module("rdkit.Chem")
    chem.SetDefaultPickleProperties(chem.PropertyPickleOptions.AllProps)
    boltz = importlib.import_module("boltz.main")
    const = importlib.import_module("boltz.data.const")
    mols = out / "mols"
    mols.mkdir(parents=True)
    for name in {*const.canonical_tokens, "UNK", *const.tokens[2:], "LIG", "MG", "SO4"}:
        with contextlib.suppress(KeyError):
            (mols / f"{name}.pkl").write_bytes(pickle.dumps(component(name)))
    boltz.process_inputs(
        data=boltz.check_inputs(inputs), out_dir=out, ccd_path=mols, mol_dir=mols,
        msa_server_url="", msa_pairing_strategy="greedy", boltz2=True,
    )  # fmt: skip
    return out / "processed"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_boltz_reads_the_chains_rows_and_templates_of_a_complex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boltz_package(monkeypatch)
    types = importlib.import_module("boltz.data.types")
    const = importlib.import_module("boltz.data.const")
    inputs = exported(tmp_path / "in", "boltz") / "inputs"
    monkeypatch.chdir(tmp_path)  # names in a job do not hang on where Boltz is started
    processed = run_boltz(inputs, tmp_path / "out")
    name, record = a_complex()
    boltz_record = json.loads((processed / "records" / f"{name}.json").read_text())
    assert [item["num_residues"] for item in boltz_record["chains"]] == [
        chain.num_res for chain, ids in zip(record.chains, record.copies, strict=True) for _ in ids
    ]
    assert len({item["entity_id"] for item in boltz_record["chains"]}) == 2
    templates = {item["name"] for item in boltz_record["templates"]}
    assert len(templates) == sum(chain.num_templates for chain in record.chains) > 0
    tokens = {const.token_ids[const.prot_letter_to_token[c]]: c for c in f"{RESTYPES}X-"}
    firsts = {item["entity_id"]: item["msa_id"] for item in reversed(boltz_record["chains"])}
    taxa: list[set[int]] = []
    for (_, msa), chain, pairing in zip(
        sorted(firsts.items()), record.chains, record.pairing, strict=True
    ):
        alignment = types.MSA.load(processed / "msa" / f"{msa}.npz")
        text = "".join(tokens[int(code[0])] for code in alignment.residues)
        rows = [text[item["res_start"] : item["res_end"]] for item in alignment.sequences]
        assert pairing is not None
        species = np.array(pairing.msa_species)[1:]
        pairs, chain_rows = letters(pairing)[1:][species != ""], letters(chain)
        expected = np.concatenate([chain_rows[:1], pairs, chain_rows[1:]])
        assert set(rows) <= {"".join(row) for row in expected} and len(rows) > 10
        texts = ["".join(row).replace("-", "") for row in expected]
        assert {row.replace("-", "") for row in rows} == set(texts)
        taxa.append({int(item["taxonomy"]) for item in alignment.sequences} - {-1})
    assert taxa[0] & taxa[1]  # species that both chains have are paired


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_openfold3_reads_the_rows_of_every_chain_and_the_species_to_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_packages(monkeypatch, "openfold3")
    form = importlib.import_module("openfold3.projects.of3_all_atom.config.inference_query_format")
    configs = importlib.import_module("openfold3.core.config.msa_pipeline_configs")
    reading = importlib.import_module("openfold3.core.data.io.sequence.msa")
    settings = importlib.import_module(
        "openfold3.projects.of3_all_atom.config.dataset_config_components"
    ).MSASettings
    pairs = importlib.import_module("openfold3.core.data.primitives.sequence.msa")
    folder = exported(tmp_path / "in", "openfold3")
    queries = form.InferenceQuerySet.from_json(folder / "query.json").queries
    name, record = a_complex()
    query = queries[name]
    assert [len(c.chain_ids) for c in query.chains] == [len(ids) for ids in record.copies]
    assert [c.sequence for c in query.chains] == [c.sequence for c in record.chains]
    request = configs.MsaSampleProcessorInputInference.create_from_inference_query_entry(query)
    runner = yaml.safe_load((folder / "runner.yml").read_text())
    config = settings(**runner["dataset_config_kwargs"]["msa"])
    parser = reading.MsaSampleParserInference(config=config)
    maps = parser.parse_msas(parser.create_maps(request))
    for item, chain, pairing in zip(query.chains, record.chains, record.pairing, strict=True):
        tables = maps.rep_id_to_main_msa[maps.chain_id_to_rep_id[item.chain_ids[0]]]
        names = [name for name in config.aln_order if name in tables]
        rows = np.concatenate([tables[name].msa[1:] for name in names])
        deleted = np.concatenate([tables[name].deletion_matrix[1:] for name in names])
        order = np.argsort(chain.msa_source[1:], kind="stable") + 1
        assert np.array_equal(rows, letters(chain)[order])
        assert np.array_equal(deleted, chain.deletion_matrix()[order])
        assert pairing is not None
        metadata = pairs.process_msa_pairing_metadata(tables["uniprot_hits"].metadata)
        assert metadata["species_id"].tolist() == [s for s in pairing.msa_species[1:] if s]
        assert len(item.template_cif_paths) == chain.num_templates > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_protenix_makes_features_of_the_rows_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_packages(monkeypatch, "protenix")
    structure = importlib.import_module("biotite.structure")
    reader = importlib.import_module("protenix.data.msa.msa_featurizer")
    folder = exported(tmp_path / "in", "protenix")
    jobs = {one["name"]: one for one in json.loads((folder / "jobs.json").read_text())}
    name, record = a_complex()
    sequences = jobs[name]["sequences"]
    assert [one["proteinChain"]["count"] for one in sequences] == [len(i) for i in record.copies]
    pairs = zip(record.chains, record.copies, strict=True)
    lengths = [one.num_res for one, ids in pairs for _ in ids]
    atoms = structure.AtomArray(sum(lengths))  # an atom a residue is enough of a structure
    atoms.set_annotation("asym_id_int", np.repeat(np.arange(len(lengths)), lengths))
    atoms.chain_id = np.array(list("ABCDEF"))[atoms.asym_id_int]
    atoms.res_id = np.concatenate([np.arange(1, length + 1) for length in lengths])
    atoms.set_annotation("centre_atom_mask", np.ones(len(atoms), int))
    features = reader.InferenceMSAFeaturizer.make_msa_feature(sequences, atoms)
    table = importlib.import_module("protenix.data.constants").STD_RESIDUES_WITH_GAP
    three = {one: gemmi.expand_one_letter(one, gemmi.ResidueKind.AA) for one in RESTYPES}
    codes = np.array([table[three.get(one, "UNK" if one == "X" else "-")] for one in LETTERS])
    first = codes[record.chains[0].msa]
    msa_rows = features["msa"][:, : lengths[0]]
    assert set(map(tuple, first.tolist())) <= set(map(tuple, msa_rows.tolist()))
    paired = (features["msa"] != table["-"]).reshape(len(features["msa"]), -1)
    ends = np.cumsum(lengths)
    has_rows = np.stack([part.any(1) for part in np.split(paired, ends[:-1], 1)], 1)
    assert has_rows.all(1).sum() > 1  # rows of one species are paired in one row
    templates = importlib.import_module("protenix.data.template.template_utils")
    featurizer = templates.TemplateHitFeaturizer(
        str(folder / "templates"), max_hits=4, kalign_binary_path=shutil.which("kalign"),
        max_template_date="2100-01-01", release_dates_path=str(folder / "release_dates.json"),
        _zero_center_positions=False,
    )  # fmt: skip
    parser = importlib.import_module("protenix.data.template.template_parser").HmmsearchA3MParser
    for one, chain in zip(sequences, record.chains, strict=True):
        hits = parser.parse(
            chain.sequence, Path(one["proteinChain"]["templatesPath"]).read_text(), False
        )
        result, _ = featurizer.get_templates("", chain.sequence, hits)
        assert len(result.features) == chain.num_templates > 0, result
        for number, template in enumerate(result.features):  # it aligns them to the query once more
            expected = chain.template_all_atom_positions[number]
            expected = expected[chain.template_all_atom_mask[number] > 0]
            mask = template["template_all_atom_masks"] > 0
            positions = template["template_all_atom_positions"][mask]
            distance = np.linalg.norm(positions[:, None] - expected[None], axis=-1).min(1)
            assert distance.max() < 2e-3 and len(positions) > 0.9 * len(expected)


@pytest.fixture
def folding_input(monkeypatch: pytest.MonkeyPatch) -> Any:
    """AlphaFold 3's own reader of jobs. What it compiles, for structures, is stood in for."""
    compiled = mock.MagicMock(__path__=[])
    paths = mock.MagicMock(Path=Path, PathLike=str)
    for name, module in {"alphafold3.cpp": compiled, "etils": mock.Mock(epath=paths)}.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("fasta_iterator", "msa_conversion", "mmcif_atom_site", "mmcif_layout"):
        monkeypatch.setitem(sys.modules, f"alphafold3.cpp.{name}", getattr(compiled, name))
    own_packages(monkeypatch, "alphafold3")
    return importlib.import_module("alphafold3.common.folding_input")


def rows_of_af3(text: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Letters and deletions as AlphaFold 3 counts them."""
    features = importlib.import_module("alphafold3.data.msa_features")
    return features.extract_msa_features(text.splitlines()[1::2], kind)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_alphafold_3_takes_copies_rows_and_templates(folding_input: Any, tmp_path: Path) -> None:
    folder = exported(tmp_path / "in", "af3")
    name, record = a_complex()
    job = folding_input.Input.from_json((folder / f"{name}.json").read_text())
    assert [item.id for item in job.chains] == ["A", "B", "C", "D"]
    species = importlib.import_module("alphafold3.data.msa_features").extract_species_ids
    ids = [i for i, copies in enumerate(record.copies) for _ in copies]
    for item, row in zip(job.protein_chains, ids, strict=True):
        chain, pairing = record.chains[row], record.pairing[row]
        assert item.sequence == chain.sequence and pairing is not None
        order = np.argsort(chain.msa_source, kind="stable")
        msa, deletions = rows_of_af3(item.unpaired_msa, "polypeptide(L)")
        codes = np.array([*range(20), 20, 21])  # of AF2's letters in AF3's order: the same
        assert np.array_equal(msa, codes[chain.msa[order]])
        assert np.array_equal(deletions, chain.deletion_matrix()[order])
        heads = [line[1:] for line in item.paired_msa.splitlines()[::2]]
        assert species(heads)[1:] == [s for s in pairing.msa_species[1:] if s]
        assert len(item.templates) == chain.num_templates > 0
        for number, template in enumerate(item.templates):
            block = gemmi.cif.read_string(template.mmcif).sole_block()
            assert block.find_value("_pdbx_audit_revision_history.revision_date")
            (template_chain,) = gemmi.make_structure_from_block(block)[0]
            mask = chain.template_all_atom_mask[number].astype(bool)
            assert [*template.query_to_template_map] == np.flatnonzero(mask.any(1)).tolist()
            residues = [template_chain[row] for row in template.query_to_template_map.values()]
            positions = np.array([atom.pos.tolist() for residue in residues for atom in residue])
            expected = chain.template_all_atom_positions[number][mask]
            assert np.allclose(positions, expected, atol=6e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_alphafold_3_takes_rna_its_rows_and_ligands(folding_input: Any, tmp_path: Path) -> None:
    rows = ["ACGUGCAU", "AC-UGgaCAU", "uNCGU--RU"]
    path = tmp_path / "rfam_hits.a3m"
    path.write_text("".join(f">r{number}\n{row}\n" for number, row in enumerate(rows)))
    entries, rna = Dataset.open(dataset_uri()).entries, read_alignment([str(path)])
    found = job_of_entry(
        "x", entries["s000-1"], lambda one: rna if one == rna.name else entries.alignment(one)
    )
    write_af3(found, ExportFolder(tmp_path))
    job = folding_input.Input.from_json((tmp_path / "x.json").read_text())
    msa, deletions = rows_of_af3(job.rna_chains[0].unpaired_msa, "polyribonucleotide")
    codes = {"A": 22, "G": 23, "C": 24, "U": 25, "-": 21, "N": 30, "R": 30}
    kept = [[codes[one] for one in row if one in codes] for row in rows]
    assert msa.tolist() == kept
    assert deletions.tolist() == [[0] * 8, [0, 0, 0, 0, 0, 2, 0, 0], [1] + [0] * 7]
    assert job.protein_chains[0].ptms == (("MSE", 6),)
    assert {one.ccd_ids for one in job.ligands} == {("LIG",), ("MG",), ("SO4",)}


def test_openfold_gets_the_files_of_every_chain(tmp_path: Path) -> None:
    folder = exported(tmp_path / "in", "openfold", kinds=["chains"])
    dataset = Dataset.open(complexes())
    back = {one.chain_id: featurize_chain(one) for one in discover(folder / "alignments")}
    assert set(back) == set(dataset)
    for name, found in back.items():
        want = dataset[name]
        order = np.argsort(want.msa_source, kind="stable")
        assert {row.tobytes() for row in found.msa} == {row.tobytes() for row in want.msa[order]}


def test_what_is_known_of_a_complex_goes_with_it_as_mmcif(tmp_path: Path) -> None:
    name, record = a_complex()
    folder = exported(tmp_path / "in", "boltz")
    found = gemmi.read_structure(str(folder / "structures" / f"{name}.cif"))
    assert [chain.name for chain in found[0]] == ["A", "B", "C", "D"]
    places = np.array([atom.pos.tolist() for one in found[0] for r in one for atom in r])
    assert record.all_atom_positions is not None and record.all_atom_mask is not None
    assert np.allclose(places, record.all_atom_positions[record.all_atom_mask > 0], atol=6e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_boltz_and_openfold3_read_the_ligands_and_nucleic_acids_of_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boltz_package(monkeypatch)
    jobs = exported(tmp_path / "boltz", "boltz", dataset_uri())
    made = run_boltz(jobs / "inputs", tmp_path / "out")
    about = json.loads((made / "records" / "s000-1.json").read_text())
    kinds = [one["mol_type"] for one in about["chains"]]
    assert sorted(kinds) == [0, 0, 2, 3, 3, 3, 3]  # two proteins, RNA, twice LIG, MG and SO4
    folder = exported(tmp_path / "of3", "openfold3", dataset_uri())
    form = importlib.import_module("openfold3.projects.of3_all_atom.config.inference_query_format")
    query = form.InferenceQuerySet.from_json(folder / "query.json").queries["s000-1"]
    kinds = [one.molecule_type.name for one in query.chains]
    assert kinds == ["PROTEIN", "RNA", "LIGAND", "LIGAND", "LIGAND"]
    assert query.chains[2].ccd_codes == ["LIG"] and len(query.chains[2].chain_ids) == 2
    assert query.chains[0].non_canonical_residues == {6: "MSE"}


def test_an_id_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no chains or complexes or entries 9zzz in it"):
        exported(tmp_path / "in", "af3", ids=["9zzz"])
