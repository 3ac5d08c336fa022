"""Batches of complexes from the loader equal those made from their records."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.loader.complexes import three_complexes
from tests.loader.streams import open_loader

from evofeed.base.errors import LoaderError
from evofeed.loader import AssemblyConfig, FeatureLoader, LoaderConfig, assembly_batch
from evofeed.loader.assembly.batch import complex_batch
from evofeed.loader.assembly.plan import plan_complex
from evofeed.loader.from_record import complex_tensors
from evofeed.loader.sample_draws import SampleDraws
from evofeed.protein.features import ASSEMBLY_BATCH
from evofeed.store import Dataset

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


def from_records(dataset: Dataset, loader: FeatureLoader, epoch: int) -> list[dict[str, Any]]:
    """Every sample of an epoch made from its record, without shards, slots or readers."""
    config, expected = loader.config, []
    for plan in loader.planner.batches(epoch, 0):
        if plan.epoch != epoch:
            return expected
        for sample in plan.samples:
            name = loader.planner.catalogs[sample.dataset].location(sample.row).chain_id
            planned = plan_complex(dataset.assemblies[name], config, SampleDraws(sample.key))
            tensors = complex_tensors(*planned)
            expected.append(complex_batch([(tensors, sample.key)], plan.recycles, config))
    return expected


def test_batches_are_what_the_records_make(dataset: Dataset) -> None:
    with open_loader(dataset.assemblies, CONFIG) as loader:
        expected = from_records(dataset, loader, 0)
        got = list(loader)
    assert len(got) == len(expected) == 8
    assert set(got[0]) == {feature.name for feature in ASSEMBLY_BATCH} | {"gt_features"}
    for batch, want in zip(got, expected, strict=True):
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
