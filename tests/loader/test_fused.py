"""The kernels against plain torch: every feature of every odd chain, padding included.

On a machine without a GPU they run in Triton's interpreter.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.loader.made import assert_same, make_batch
from tests.loader.records import make_record, write_dataset

from evofeed.loader import LoaderConfig, draws
from evofeed.loader.plan import SamplePlan
from evofeed.store import Dataset

pytestmark = pytest.mark.slow

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIG = LoaderConfig(
    crop_size=20, max_msa_clusters=6, max_extra_msa=12, max_templates=2, max_recycling_iters=1
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    odd = make_record("odd_A", 30, 70, 4)
    exceptions = odd.all_atom_positions.copy()
    exceptions[3] += np.float32(3e-4) * (exceptions[3] != 0)  # no thousandths any more, but few
    wild = make_record("wild_A", 25, 30, 1)
    records = [
        make_record("smallest", 1, 1, 0),
        make_record("few_rows", 33, 4, 1),
        odd.replace(chain_id="exceptions", all_atom_positions=exceptions),
        wild.replace(
            chain_id="no_thousandths", all_atom_positions=wild.all_atom_positions * np.float32(1.23)
        ),
        make_record("distillation", 18, 60, 1).replace(is_distillation=True),
        make_record("bare", 22, 30, 0, structure=False),
    ]
    return write_dataset(tmp_path_factory.mktemp("fused") / "d", records)


def samples(dataset: Dataset, *names: str) -> tuple[SamplePlan, ...]:
    order = list(dataset)
    return tuple(
        SamplePlan(0, i, 0, order.index(name), draws.sample_key(7, 0, i + 3))
        for i, name in enumerate(names)
    )


def compare(dataset: Dataset, config: LoaderConfig, recycles: int, *names: str) -> None:
    chosen = samples(dataset, *names)
    want = make_batch(dataset, config, chosen, recycles, fused=False)
    got = make_batch(dataset, config, chosen, recycles, fused=True, device=DEVICE)
    assert_same(got, want)


@pytest.mark.parametrize("name", ["smallest", "no_thousandths"])
def test_every_feature_of_an_odd_chain(dataset: Dataset, name: str) -> None:
    compare(dataset, CONFIG.replace(max_aa_fraction=1.0), 1, name)


def test_a_batch_of_two_samples_and_two_recycles(dataset: Dataset) -> None:
    compare(dataset, CONFIG, 2, "exceptions", "few_rows")


def test_a_distillation_chain_keeps_a_fair_choice_of_rows(dataset: Dataset) -> None:
    config = CONFIG.replace(max_distillation_msa_clusters=15, max_templates=0)
    compare(dataset, config, 1, "distillation")


def test_whole_chains_without_ground_truth(dataset: Dataset) -> None:
    config = LoaderConfig.prediction(max_msa_clusters=8, max_extra_msa=50, max_templates=1)
    compare(dataset, config, 1, "bare")
