"""Complexes over HTTP: rows by filter, the client, and the loader on a served dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from tests.loader.complexes import three_complexes

from evofeed.loader import AssemblyConfig, FeatureLoader, LoaderConfig
from evofeed.service import Client, serving
from evofeed.store import Dataset

SIZES = LoaderConfig(
    crop_size=24, max_msa_clusters=8, max_extra_msa=16, max_templates=1, max_recycling_iters=0,
    assemblies=AssemblyConfig(msa_rows=32, paired_rows=16, min_rows=24),
)  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Dataset]]:
    dataset = three_complexes(tmp_path_factory.mktemp("complexes"))
    with serving({"demo": dataset.uri}) as url:
        yield url, dataset


def rows(url: str, digest: str, **query: object) -> httpx.Response:
    path = f"{url}/v1/datasets/demo/snapshots/{digest}/assemblies"
    return httpx.get(path, params=query, timeout=60)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, ["1abc", "2def", "3ghi"]),
        ({"stoichiometry": "A2"}, ["2def"]),
        ({"stoichiometry": ["A2", "A2B"]}, ["1abc", "2def"]),
        ({"min_chains": 5}, ["3ghi"]),
        ({"max_entities": 2, "min_chains": 3}, ["1abc"]),
        ({"max_length": 50}, ["1abc", "2def"]),
        ({"min_interface": 1000}, []),
        ({"where": '{"column": "num_res", "op": ">", "value": 50}'}, ["3ghi"]),
    ],
)
def test_filters_choose_complexes(
    served: tuple[str, Dataset], query: dict[str, object], names: list[str]
) -> None:
    url, dataset = served
    said = rows(url, dataset.digest, count=True, **query).json()
    assert [row["assembly_id"] for row in said["assemblies"]] == names
    assert said["matched"] == len(names) and said["next"] is None


def test_pages_follow_each_other_and_rows_are_those_of_the_table(
    served: tuple[str, Dataset],
) -> None:
    url, dataset = served
    first = rows(url, dataset.digest, limit=2).json()
    second = rows(url, dataset.digest, limit=2, cursor=first["next"]).json()
    found = first["assemblies"] + second["assemblies"]
    table = dataset.assemblies.table.to_pylist()
    for row, wanted in zip(found, table, strict=True):
        assert row == {name: wanted[name] for name in row}
        assert {"stoichiometry", "copies", "author_chains", "num_interface"} <= set(row)


def test_what_is_wrong_is_said(served: tuple[str, Dataset]) -> None:
    url, dataset = served
    bad = rows(url, dataset.digest, where='{"column": "nothing", "op": "known"}')
    assert bad.status_code == 422 and "nothing" in bad.text
    alone = dataset.manifest.parent or ""
    assert rows(url, alone).json()["assemblies"] == []
    table = httpx.get(f"{url}/v1/datasets/demo/snapshots/{alone}/members.arrow", timeout=60)
    assert table.status_code == 404 and "no complexes" in table.text


def test_the_client_lists_them(served: tuple[str, Dataset]) -> None:
    url, _ = served
    with Client(url) as client:
        names = [row["assembly_id"] for row in client.assemblies("demo", page=1, max_chains=4)]
        assert names == ["1abc", "2def"]
        either = client.assemblies("demo", stoichiometry=["A2", "A2B"])
        assert len(list(either)) == 2


def test_a_loader_over_http_gives_the_batches_of_the_folder(served: tuple[str, Dataset]) -> None:
    url, dataset = served
    remote = Dataset.open(f"{url}/v1/datasets/demo")
    assert list(remote.assemblies) == list(dataset.assemblies)
    batches = []
    for source in (dataset, remote):
        with FeatureLoader(source.assemblies, SIZES, device="cpu", reader="thread") as loader:
            batches.append(next(iter(loader)))
    for name, value in batches[0].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, batches[1][name]), name


def test_a_dataset_behind_the_service_can_be_copied_with_them(
    served: tuple[str, Dataset], tmp_path: Path
) -> None:
    from evofeed.store import copy_dataset

    url, dataset = served
    copied = copy_dataset(f"{url}/v1/datasets/demo", str(tmp_path / "copy"))
    assert copied.digest == dataset.digest
    assert Dataset.open(tmp_path / "copy").verify(deep=True) == []
