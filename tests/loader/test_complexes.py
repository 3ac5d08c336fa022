"""Complexes through the loader: what the records say, whoever reads and however it was begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.loader.complexes import three_complexes
from tests.loader.streams import digest
from tests.loader.streams import open_loader as open_small

from evofeed.base.errors import CannotResume, LoaderError
from evofeed.loader import AssemblyConfig, FeatureLoader, LoaderConfig, assembly_batch
from evofeed.loader.assembly.crop import crop_residues
from evofeed.loader.assembly.make import complex_batch
from evofeed.loader.from_record import merged_record
from evofeed.loader.sample_draws import SampleDraws
from evofeed.protein.features import ASSEMBLY_BATCH
from evofeed.store import Dataset
from evofeed.store.inner import COLUMN_NUMBER

RULES = AssemblyConfig(msa_rows=40, paired_rows=16, min_rows=24, interface_threshold=20.0)
CONFIG = LoaderConfig(
    crop_size=32,
    max_msa_clusters=8,
    max_extra_msa=12,
    max_templates=2,
    max_recycling_iters=1,
    global_batch_size=4,
    epoch_len=8,
    assemblies=RULES,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return three_complexes(tmp_path_factory.mktemp("complexes"))


def open_loader(source: Any, config: LoaderConfig = CONFIG, **options: Any) -> FeatureLoader:
    return open_small(source, config, **options)


def digests(loader: FeatureLoader, batches: int | None = None) -> list[str]:
    recycled = frozenset(f.name for f in ASSEMBLY_BATCH if f.stage == "recycle")
    found = []
    for number, batch in enumerate(loader):
        truth = batch.pop("gt_features")
        for i in range(len(batch["aatype"])):
            asym = truth["asym_id"][i]
            own = {name: value[i : i + 1, asym > 0] for name, value in truth.items()}
            found.append(digest(batch, i, recycled) + digest(own, 0, frozenset()))
        if number + 1 == batches:
            break
    return found


def from_records(dataset: Dataset, loader: FeatureLoader, epoch: int) -> list[dict[str, Any]]:
    """Every sample of an epoch made of its record, without shards, slots or readers."""
    config, rules, made = loader.config, loader.config.assemblies, []
    assert rules is not None
    for plan in loader.planner.batches(epoch, 0):
        if plan.epoch != epoch:
            return made
        for sample in plan.samples:
            name = loader.planner.catalogs[sample.dataset].place(sample.row).chain_id
            record = dataset.assemblies[name]
            merged = merged_record(record, rules)
            pairs = zip(record.chains, record.copies, strict=True)
            lengths = [c.num_res for c, names in pairs for _ in names]
            kept = crop_residues(
                record.all_atom_positions,
                record.all_atom_mask,
                lengths,
                config.crop_size,
                SampleDraws(sample.key),
                rules,
            )
            kept = torch.from_numpy(kept)
            made.append(complex_batch(merged, kept, sample.key, plan.recycles, config))
    return made


def test_batches_are_what_the_records_make(dataset: Dataset) -> None:
    with open_loader(dataset.assemblies) as loader:
        wanted = from_records(dataset, loader, 0)
        got = list(loader)
    assert len(got) == len(wanted) == 8
    assert set(got[0]) == {feature.name for feature in ASSEMBLY_BATCH} | {"gt_features"}
    for batch, want in zip(got, wanted, strict=True):
        truth = want.pop("gt_features")
        assert set(batch) == {*want, "gt_features"} and set(truth) == set(batch["gt_features"])
        for name, value in want.items():
            torch.testing.assert_close(batch[name], value, rtol=0, atol=1e-6, msg=name)
        for name, value in truth.items():
            torch.testing.assert_close(
                batch["gt_features"][name], value, rtol=0, atol=1e-6, msg=name
            )
    names = {float(batch["assembly_num_chains"][0]) for batch in got}
    assert names == {2.0, 3.0, 5.0}
    assert any(len(set(b["asym_id"][0].tolist()) - {0}) > 1 for b in got)


@pytest.mark.system
def test_ranks_that_go_on_from_a_state_have_the_rest_of_the_stream(dataset: Dataset) -> None:
    """Two read in processes of their own what one began; the order is that of one."""
    with open_loader(dataset.assemblies) as loader:
        whole = digests(loader)
    with open_loader(dataset.assemblies) as loader:
        begun = digests(loader, 4)
        state = json.loads(json.dumps(loader.state_dict()))
    rest = []
    for rank in range(2):
        options = {"rank": rank, "world_size": 2, "reader": "process"}
        with open_loader(dataset.assemblies, **options) as loader:
            loader.load_state_dict(state)
            rest.append(digests(loader))
    assert begun + [one for pair in zip(*rest, strict=True) for one in pair] == whole
    with open_loader(dataset) as chains, pytest.raises(CannotResume, match="snapshots"):
        chains.load_state_dict(state)


def test_complexes_and_single_chains_mix(dataset: Dataset) -> None:
    config = CONFIG.replace(epoch_len=20)
    with open_loader([(dataset.assemblies, 0.5), (dataset, 0.5)], config) as loader:
        chains = [int(batch["assembly_num_chains"][0]) for batch in loader]
    assert chains.count(1) > 2 and len(chains) - chains.count(1) > 2


def test_a_single_chain_is_a_complex_of_one(dataset: Dataset) -> None:
    with open_loader(dataset, CONFIG.replace(crop_size=None)) as loader:
        batch = next(iter(loader))
    length = batch["aatype"].shape[1]
    assert batch["asym_id"][0].tolist() == [1] * length
    assert torch.equal(batch["gt_features"]["aatype"], batch["aatype"])


def test_damage_is_listed_and_replaced(dataset: Dataset, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(dataset.uri.removeprefix("file://"), copy)
    fresh = Dataset.open(copy)
    members = fresh.assemblies.members
    row = members.row("1abc_B.pairing")
    path = copy / members.key(row)
    data = bytearray(path.read_bytes())
    data[int(members.offset[row] + members.starts[row][COLUMN_NUMBER["msa"]]) + 30] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with open_loader(fresh.assemblies) as loader:
        names = [int(b["assembly_num_chains"][0]) for b in loader]
        stats = loader.stats()
    assert len(names) == 8
    assert stats["substituted_samples"] > 0
    assert any("1abc_B.pairing" in line for line in stats["bad_chains"])


def test_what_cannot_be_asked_for_is_refused(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="multimer"):
        open_loader(dataset.assemblies, CONFIG.replace(assemblies=None))
    with pytest.raises(LoaderError, match="none of 3 assemblies passes"):
        open_loader(dataset.assemblies, CONFIG.replace(max_resolution=1.0))


def test_a_record_alone_is_a_batch_for_prediction(dataset: Dataset) -> None:
    batch = assembly_batch(
        dataset.assemblies["1abc"], no_recycling_iters=1, max_msa_clusters=8, max_extra_msa=16
    )
    assert batch["msa_feat"].shape == (2, 1, 8, 47, 49)
    assert batch["entity_id"][0].tolist() == [1] * 36 + [2] * 11
    assert batch["sym_id"][0].tolist() == [1] * 18 + [2] * 18 + [1] * 11
    assert batch["template_mask"].sum() == 3 and "gt_features" not in batch
