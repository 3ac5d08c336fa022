"""The set that Boltz trains on, out of a dataset: its own tables, read by its own training code."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.featurize.entries.boltz_set import boltz_package, write_set
from tests.featurize.records.allatom import boltz_molecules, components, record, sorted_bonds
from tests.loader.views.packs import packs, read, some_recordings

from evofeed.featurize.entries.input import EntriesInput
from evofeed.featurize.entries.job import prepare_entries
from evofeed.featurize.records.rulesets.boltz import boltz_section

ROOT = Path(__file__).parents[3]
WRITE_SET = runpy.run_path(str(ROOT / "experiments/boltz_training_set/write_set.py"))
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("path", some_recordings("boltz/structure/*.npz", 4), ids=lambda p: p.stem)
def test_the_tables_of_a_record_are_those_that_boltz_prepared(path: Path) -> None:
    pack = path.parents[2]
    entry, theirs = record(pack, path.stem), read(path, "structure.").arrays
    section = boltz_section(entry, components(pack))
    tables = WRITE_SET["structure_tables"](entry, section, boltz_molecules(pack))
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
    names = WRITE_SET["main"](str(tmp_path / "data"), str(tmp_path / "ours"))
    assert names == ["1pfe", "2x1f"]
    for one, two in zip(batches(theirs, 4), batches(tmp_path / "ours", 4), strict=True):
        assert one.keys() == two.keys()
        assert [name for name in one if not torch.equal(one[name], two[name])] == []
