"""The service, the command and the loader give one answer to which rank reads what."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import httpx
import pytest
from tests.conftest import exit_code
from tests.loader.records import small_dataset

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.service import serving
from evofeed.store import Dataset

CHAINS = 23


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dataset, str]]:
    """A dataset whose chains have structures, and the URL of its plans."""
    folder = tmp_path_factory.mktemp("planned")
    dataset = small_dataset(folder, CHAINS)
    with serving({"demo": folder}) as url:
        yield dataset, f"{url}/v1/datasets/demo/snapshots/{dataset.digest}/plan"


def test_service_command_and_loader_name_the_same_chains(
    planned: tuple[Dataset, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset, url), batch_size = planned, 2
    asked = {"world_size": 3, "seed": 5, "epoch": 2, "start": 1, "batches": 4}
    asked["batch_size"] = batch_size
    served = httpx.get(url, params=asked, timeout=300).json()
    assert served["snapshot"] == dataset.digest

    words = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    assert exit_code("plan", dataset.uri, *words, "--json") == 0
    assert json.loads(capsys.readouterr().out) == served["samples"]

    for rank in range(3):
        mine = [row for row in served["samples"] if row["rank"] == rank]
        alone = httpx.get(url, params={**asked, "rank": rank}, timeout=300).json()
        assert alone["samples"] == mine
        config = LoaderConfig.initial_training(batch_size=batch_size)
        loader = FeatureLoader(dataset, config, rank=rank, world_size=3, seed=5, device="cpu")
        stream = loader.planner.batches(2, loader.planner.width)
        batches = list(itertools.islice(stream, 4))
        samples = [sample for batch in batches for sample in batch.samples]
        ids = dataset.index["chain_id"]
        assert [row["chain_id"] for row in mine] == [ids[one.row].as_py() for one in samples]
        assert [row["position"] for row in mine] == [one.position for one in samples]
        assert [row["epoch"] for row in mine] == [one.epoch for one in samples]
        recycles = [row["recycling_iters"] + 1 for row in mine[::batch_size]]
        assert recycles == [batch.recycles for batch in batches]


def test_a_planned_sample_names_the_bytes_of_its_chain(planned: tuple[Dataset, str]) -> None:
    rows = {row["chain_id"]: row for row in planned[0].index.to_pylist()}
    query = {"world_size": 2, "batches": 3}
    answer = httpx.get(planned[1], params=query, timeout=300)
    for sample in answer.json()["samples"]:
        row = rows[sample["chain_id"]]
        assert all(row[name] == sample[name] for name in ("shard", "offset", "nbytes"))
    known = {"If-None-Match": answer.headers["etag"]}
    assert httpx.get(planned[1], params=query, headers=known, timeout=300).status_code == 304


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("world_size=2&rank=2", "not one of 2"),
        ("world_size=2&global_batch_size=3", "no multiple"),
        ("world_size=2&start=99", "an epoch has"),
        ("world_size=200&batches=51", "one rank"),
    ],
)
def test_a_plan_that_cannot_be_is_422(planned: tuple[Dataset, str], query: str, says: str) -> None:
    answer = httpx.get(f"{planned[1]}?{query}", timeout=300)
    assert answer.status_code == 422
    assert says in answer.text
