"""Sets to train on, out of a dataset: read and sampled by OpenFold3's and Boltz's own code."""

from __future__ import annotations

import dataclasses
import importlib
import json
import random
import runpy
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import yaml
from tests.conftest import own_packages
from tests.featurize.entries.prepared_sets import (
    boltz_package,
    write_inputs,
    write_openfold3_set,
    write_set,
)
from tests.featurize.records.allatom import (
    boltz_molecules,
    components,
    openfold3_molecules,
    record,
    sorted_bonds,
)
from tests.inside import units_inside
from tests.loader.views.made_entries import made_templates
from tests.loader.views.own_openfold3 import rdkit_molecule, stand_ins
from tests.loader.views.packs import (
    openfold3_cache,
    packs,
    read,
    some_recordings,
    template_features,
)

from evofeed.featurize.entries.input import EntriesInput
from evofeed.featurize.entries.job import prepare_entries
from evofeed.featurize.records.rulesets.boltz import boltz_section
from evofeed.loader.views.config import OpenFold3Config
from evofeed.protein.alignment import Alignment
from evofeed.protein.residues import GAP

ROOT = Path(__file__).parents[3]
WRITE_SET = runpy.run_path(str(ROOT / "experiments/openfold3_training_set/write_set.py"))
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PACK = packs()[0]
ENTRIES = ("1pfe", "2x1f")
PLUGINS = "lightning_fabric.plugins"
LIGHTNING = (
    *("pytorch_lightning", "lightning_fabric.utilities", "lightning_fabric.utilities.seed"),
    *("lightning_fabric", PLUGINS, f"{PLUGINS}.collectives"),
    *(f"{PLUGINS}.collectives.torch_collective", "openfold3.projects.of3_all_atom.runner"),
)
"""What OpenFold3 imports for seconds and needs one setting's value of."""


@pytest.fixture
def openfold3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its package can be found."""
    stand_ins(monkeypatch)
    own_packages(monkeypatch, "openfold3")
    for name in LIGHTNING:
        if name not in sys.modules:
            made = mock.MagicMock(__path__=[], default_pg_timeout=timedelta(minutes=30))
            monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Entries from their mmCIF files with OpenFold3's alignments, clusters and conformers."""
    root = tmp_path_factory.mktemp("openfold3")
    (root / "clusters.tsv").write_text(write_inputs(root, PACK, ENTRIES))
    (dictionary,) = (PACK / "components").glob("components.cif*")
    source = EntriesInput(
        structures=str(root / "cif"),
        alignments=str(root / "msa"),
        components=str(dictionary),
        clusters=str(root / "clusters.tsv"),
        projects=("openfold3",),
        conformers=1,
    )
    with units_inside():
        report = prepare_entries(
            source, str(root / "data"), molecules={"openfold3": openfold3_molecules(PACK)}
        )
    assert report.state == "published", report.message
    return root / "data"


def own_dataset(settings: Path, tokens: int = 64, **config: Any) -> Any:
    """OpenFold3's training dataset of a settings file, by its own classes of settings."""
    entry = importlib.import_module("openfold3.entry_points.validator")
    configs = importlib.import_module("openfold3.projects.of3_all_atom.config.dataset_configs")
    pdb = importlib.import_module("openfold3.core.data.framework.single_datasets.pdb")
    read = entry.TrainingExperimentConfig(**yaml.safe_load(settings.read_text()))
    ((name, spec),) = read.dataset_configs["train"].items()
    spec["config"] |= {"dataset_paths": read.dataset_paths[name]}
    spec["config"] |= {"crop": {"token_crop": {"enabled": True, "token_budget": tokens}}, **config}
    made = configs.TrainingDatasetSpec.model_validate({**spec, "name": name, "mode": "train"})
    return getattr(pdb, made.dataset_class)(made.config)


def assert_lists_alike(folder: Path) -> None:
    """The cache has what OpenFold3's own has of entries, chains, interfaces and molecules."""
    caches = importlib.import_module("openfold3.core.data.io.dataset_cache")
    own = caches.read_datacache(folder / "training_cache.json")
    wanted = openfold3_cache(PACK)["training_cache"]
    kinds: list[tuple[Any, Any]] = []
    for name, about in own.structure_data.items():
        known = wanted["structure_data"][name.partition("-")[0]]
        dated = (known["release_date"], known["resolution"])
        assert (about.release_date, about.resolution) == dated
        assert about.interfaces.keys() == known["interfaces"].keys()
        assert about.chains.keys() == known["chains"].keys()
        for title, chain in known["chains"].items():
            mine = vars(about.chains[title])
            same = "label_asym_id auth_asym_id entity_id molecule_type reference_mol_id".split()
            assert {key: mine[key] for key in same} == {key: chain[key] for key in same}
            kinds.append((mine["cluster_id"], chain["cluster_id"]))
        for title, pair in known["interfaces"].items():
            kinds.append((about.interfaces[title].cluster_id, pair["cluster_id"]))
    assert len(set(kinds)) == len({one for one, _ in kinds}) == len({two for _, two in kinds})
    sizes = Counter(one for one, _ in kinds)
    for about in own.structure_data.values():
        for one in [*about.chains.values(), *about.interfaces.values()]:
            assert one.cluster_size == sizes[one.cluster_id]
    for title, about in own.reference_molecule_data.items():
        known = wanted["reference_molecule_data"][title]
        same = ["canonical_smiles", "fallback_conformer_source", "fallback_conformer_pdb_id"]
        assert {key: getattr(about, key) for key in same} == {key: known[key] for key in same}


def test_openfold3s_training_dataset_lists_and_draws_of_it_what_it_does_of_its_own_set(
    openfold3: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    names = WRITE_SET["main"](str(data), str(ours))
    assert [name.partition("-")[0] for name in names] == [*ENTRIES]
    assert_lists_alike(ours)
    write_openfold3_set(theirs, PACK, ENTRIES)
    (theirs / "reference_mols").mkdir()
    text = (ours / "training.yml").read_text().replace(str(ours), str(theirs))
    (theirs / "training.yml").write_text(text)
    for folder in (ours, theirs):  # stored conformers, which are no random ones
        cache = json.loads((folder / "training_cache.json").read_text())
        for one in cache["reference_molecule_data"].values():
            one["conformer_gen_strategy"] = "use_fallback"
        (folder / "training_cache.json").write_text(json.dumps(cache, indent=1))
    module = importlib.import_module("openfold3.core.data.pipelines.sample_processing.conformer")
    molecules, as_it_reads = openfold3_molecules(PACK), module.read_single_annotated_sdf

    def molecule(file: Path) -> Any:
        if file.is_relative_to(ours):
            return as_it_reads(file)
        return rdkit_molecule(molecules[file.stem], PACK, file.stem)

    monkeypatch.setattr(module, "read_single_annotated_sdf", molecule)
    sets = [own_dataset(folder / "training.yml") for folder in (ours, theirs)]
    points = [
        {
            (entry.partition("-")[0], str(chains)): row
            for row, (entry, chains, *_) in enumerate(one.datapoint_cache.to_numpy().tolist())
        }
        for one in sets
    ]
    assert points[0].keys() == points[1].keys() and len(points[0]) > 8
    for point, row in points[0].items():
        one, two = (sample(d, r) for d, r in zip(sets, (row, points[1][point]), strict=True))
        assert one.keys() == two.keys()
        for key, value in one.items():
            atol = 2e-3 if key == "ref_pos" else 1e-5  # conformers have four decimals in a file
            torch.testing.assert_close(value, two[key], rtol=0, atol=atol, msg=key)


def test_templates_older_than_an_entry_are_in_its_sample(
    openfold3: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = WRITE_SET["WrittenSet"](str(data), tmp_path)
    alignment = written.entries.alignment
    dates = ("1990-01-01", "1991-01-01", "2030-01-01")

    def with_templates(name: str) -> Alignment:
        found = alignment(name)
        made = made_templates(found.num_columns)
        return found.with_templates(dataclasses.replace(made, date=dates))

    monkeypatch.setattr(written.entries, "alignment", with_templates)
    for number, name in enumerate(written.entries):
        written.add(number, name)
    written.finish()
    dataset = own_dataset(tmp_path / "training.yml", 128, template={"take_top_k": True})
    protein = dataset.datapoint_cache["pdb_id"].tolist().index("2x1f-1")
    theirs = dataset[protein]
    there = theirs["is_protein"].numpy() > 0
    columns = theirs["residue_index"].numpy()[there] - 1
    templates = made_templates(int(columns.max()) + 1)
    restype = np.full((4, 128), GAP, np.uint8)
    position = np.full((4, 128, 4, 3), np.nan, np.float32)
    restype[:2, there] = templates.restype[:2, columns]
    position[:2, there] = templates.position[:2, columns]
    position[restype == GAP] = np.nan
    packed = {"template_restype": restype, "template_position": position}
    packed["asym_id"] = theirs["asym_id"].numpy()
    ours = template_features(packed, OpenFold3Config(token_budget=128))
    assert ours["template_distogram"].sum() > 100
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=2e-6, msg=name)


def sample(dataset: Any, row: int) -> dict[str, torch.Tensor]:
    """Tensors of a datapoint, by their names in all."""
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    return dict(flat(dataset[row], ""))


def flat(features: dict[Any, Any], name: str) -> Any:
    """Tensors of dictionaries in each other."""
    for key, value in features.items():
        if isinstance(value, dict):
            yield from flat(value, f"{name}{key}.")
        elif isinstance(value, torch.Tensor):
            yield f"{name}{key}", value


BOLTZ_SET = runpy.run_path(str(ROOT / "experiments/boltz_training_set/write_set.py"))


@pytest.mark.parametrize("path", some_recordings("boltz/structure/*.npz", 4), ids=lambda p: p.stem)
def test_the_tables_of_a_record_are_those_that_boltz_prepared(path: Path) -> None:
    pack = path.parents[2]
    entry, theirs = record(pack, path.stem), read(path, "structure.").arrays
    section = boltz_section(entry, components(pack))
    tables = BOLTZ_SET["structure_tables"](entry, section, boltz_molecules(pack))
    for name, table in tables.items():
        wanted = {column: theirs[f"{name}.{column}"] for column in table.dtype.names}
        if name in ("bonds", "connections", "interfaces"):  # in another order
            ends = ("chain_1", "chain_2") if name == "interfaces" else ("atom_1", "atom_2")
            pairs = [np.stack([one[end] for end in ends], 1) for one in (table, wanted)]
            assert sorted_bonds(pairs[0]) == sorted_bonds(pairs[1])
            continue
        for column in wanted.keys() - {"chirality", "entity_id"}:
            if table[column].dtype.kind == "f":
                np.testing.assert_allclose(table[column], wanted[column], rtol=0, atol=1e-5)
            else:
                np.testing.assert_array_equal(table[column], wanted[column], err_msg=column)


def batches(folder: Path, count: int) -> list[dict[str, Any]]:
    """What Boltz's training dataset draws of a set."""
    np.random.seed(7)
    torch.manual_seed(7)
    own = {
        name: importlib.import_module(f"boltz.data.{name}")
        for name in "module.training types sample.cluster crop.boltz tokenize.boltz "
        "feature.featurizer".split()
    }
    training = own["module.training"]
    dataset = training.Dataset(
        target_dir=folder,
        msa_dir=folder / "msa",
        manifest=own["types"].Manifest.load(folder / "manifest.json"),
        prob=1.0,
        sampler=own["sample.cluster"].ClusterSampler(),
        cropper=own["crop.boltz"].BoltzCropper(0, 40),
        tokenizer=own["tokenize.boltz"].BoltzTokenizer(),
        featurizer=own["feature.featurizer"].BoltzFeaturizer(),
    )
    found = training.TrainingDataset([dataset], count, {}, 800, 96, 64)
    return [found[row] for row in range(count)]


def test_boltzs_training_dataset_draws_of_it_what_it_draws_of_its_own_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: None
) -> None:
    boltz_package(monkeypatch)
    pack = packs()[0]
    theirs = write_set(tmp_path / "theirs", pack, ["1pfe", "2x1f"])
    (dictionary,) = (pack / "components").glob("components.cif*")
    source = EntriesInput(structures=str(theirs), components=str(dictionary))
    assert prepare_entries(source, str(tmp_path / "data")).exit_code == 0
    names = BOLTZ_SET["main"](str(tmp_path / "data"), str(tmp_path / "ours"))
    assert names == ["1pfe", "2x1f"]
    for one, two in zip(batches(theirs, 4), batches(tmp_path / "ours", 4), strict=True):
        assert one.keys() == two.keys()
        assert [name for name in one if not torch.equal(one[name], two[name])] == []
