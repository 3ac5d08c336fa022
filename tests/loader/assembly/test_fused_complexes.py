"""The kernels of complexes against plain torch: every feature, the whole truth, padding included.

On a machine without a GPU they run in Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch
from tests.loader.complexes import three_complexes
from tests.loader.made import assert_same, make_samples

from evofeed.loader import AssemblyConfig, LoaderConfig, draws
from evofeed.loader.assembly.catalog import AssemblyCatalog, LoneChains
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.plan import SamplePlan
from evofeed.store import Dataset

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RULES = AssemblyConfig(msa_rows=40, paired_rows=16, min_rows=24, interface_threshold=20.0)
CONFIG = LoaderConfig(
    crop_size=32, max_msa_clusters=8, max_extra_msa=12, max_templates=2, assemblies=RULES
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return three_complexes(tmp_path_factory.mktemp("complexes"))


def compare(
    dataset: Dataset,
    config: LoaderConfig,
    recycles: int,
    *rows: int,
    catalog: ChainCatalog | None = None,
) -> None:
    catalog = catalog or AssemblyCatalog(dataset.assemblies, 0, config)
    samples = tuple(
        SamplePlan(0, i, 0, row, draws.sample_key(7, 0, i + 3)) for i, row in enumerate(rows)
    )
    want = make_samples(dataset, catalog, config, samples, recycles, fused=False)
    got = make_samples(dataset, catalog, config, samples, recycles, fused=True, device=DEVICE)
    assert ("gt_features" in got) == ("gt_features" in want) == config.supervised
    if config.supervised:
        assert_same(got.pop("gt_features"), want.pop("gt_features"))
    assert_same(got, want)


def test_every_feature_of_every_complex_of_a_batch(dataset: Dataset) -> None:
    compare(dataset, CONFIG, 2, 0, 1)


def test_a_complex_of_more_templates_fewer_rows_and_its_gaps_asked_for(dataset: Dataset) -> None:
    rules = RULES.replace(mask_block_gaps=True, msa_rows=8, paired_rows=4)
    config = CONFIG.replace(
        max_msa_clusters=20, max_extra_msa=8, max_templates=4, subsample_templates=False,
        crop_size=None, assemblies=rules,
    )  # fmt: skip
    compare(dataset, config, 1, 0)


def test_a_whole_complex_without_ground_truth_or_templates(dataset: Dataset) -> None:
    config = LoaderConfig.multimer_prediction(
        max_msa_clusters=8, max_extra_msa=50, max_templates=0, assemblies=RULES
    )
    compare(dataset, config, 1, 2)


def test_a_single_chain_is_a_complex_of_one(dataset: Dataset) -> None:
    compare(dataset, CONFIG, 1, 0, catalog=LoneChains(dataset.index, 0, CONFIG))
