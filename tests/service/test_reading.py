"""A dataset read through the service is the dataset, and its plan is what ranks read."""

from __future__ import annotations

import hashlib
import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.bucket import local_bucket
from tests.conftest import evofeed
from tests.loader.records import small_dataset
from tests.service.conftest import Start
from tests.store.test_entries import synthetic_dataset

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.service import serving
from evofeed.service.server import listen
from evofeed.store import Dataset, copy_dataset


@pytest.mark.parametrize("prefix", ["/v1/datasets/demo", "/datasets/demo"])
def test_a_dataset_opened_over_http_holds_what_the_folder_holds(served, prefix) -> None:
    local = Dataset.open(served.folder)
    with Dataset.open(served.url + prefix) as remote:
        assert remote.digest == local.digest == served.second
        assert remote.index.equals(local.index)
        for chain_id in list(local)[::7]:
            assert remote[chain_id].msa.tobytes() == local[chain_id].msa.tobytes()
        assert remote.verify() == []
    with Dataset.open(served.url + prefix, served.first) as older:
        assert len(older) == 40


def test_entries_are_read_and_copied_through_the_service(tmp_path: Path) -> None:
    synthetic_dataset(str(tmp_path / "whole"))
    local = Dataset.open(tmp_path / "whole")
    with serving({"a": local.uri}) as url, Dataset.open(f"{url}/v1/datasets/a") as remote:
        assert remote.entries.table.equals(local.entries.table) and remote.verify() == []
        copy_dataset(remote.uri, tmp_path / "copy")
    assert Dataset.open(tmp_path / "copy").entries.datapoints.equals(local.entries.datapoints)


def test_the_list_of_snapshots_is_newest_first(served) -> None:
    listed = served.get("/snapshots").json()["snapshots"]
    assert {item["digest"] for item in listed} == {served.first, served.second}
    second = next(item for item in listed if item["digest"] == served.second)
    assert (second["parent"], second["num_chains"]) == (served.first, 45)
    assert served.get("/snapshots?limit=1").json()["more"] is True


def test_a_shard_outside_every_manifest_is_not_served(served) -> None:
    stray = served.folder / "shards" / f"{'1' * 64}.arrow"
    stray.write_bytes(b"not yet committed")
    try:
        assert served.get(f"/shards/{stray.name}").status_code == 404
    finally:
        stray.unlink()


def test_a_damaged_manifest_is_a_502_not_a_crash(start, folder, tmp_path: Path) -> None:
    path, first, _ = folder
    broken = tmp_path / "broken" / "snapshots" / first
    broken.mkdir(parents=True)
    data = (path / "snapshots" / first / "manifest.json").read_bytes()
    (broken / "manifest.json").write_bytes(data.replace(b"a test", b"b test"))
    client = start(datasets={"broken": str(tmp_path / "broken")})
    answer = client.get(f"/v1/datasets/broken/snapshots/{first}")
    assert (answer.status_code, answer.json()["code"]) == (502, "shard_corrupt")


def test_health_ready_config_and_openapi_answer_without_a_network(served) -> None:
    for path, said in (("healthz", {"status": "ok"}), ("readyz", {"status": "ready"})):
        assert served.client.get(f"/{path}").json() == said
    assert served.client.get("/v1/config").json()["limits"]["page"] == 1000
    schema = served.client.get("/openapi.json")
    assert schema.json()["openapi"].startswith("3.1") and "cdn" not in schema.text


def test_a_service_stops_with_its_block_and_leaves_nothing_behind(folder) -> None:
    before = set(threading.enumerate())
    with serving({"demo": folder[0]}) as url:
        assert httpx.get(f"{url}/healthz").status_code == 200
    for thread in set(threading.enumerate()) - before:  # asked to end, if it has not yet
        thread.join(240)
        assert not thread.is_alive(), thread.name
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_a_small_answer_does_not_wait_for_an_acknowledgement() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # only then asyncio sets TCP_NODELAY


def test_every_answer_carries_a_request_id(served) -> None:
    for given, kept in (("mine-1", True), ("a b\tc", False)):
        answer = served.client.get("/healthz", headers={"X-Request-Id": given})
        assert (answer.headers["x-request-id"] == given) is kept


def test_statistics_are_exact(served) -> None:
    index = Dataset.open(served.folder).index
    answer = served.get(f"/snapshots/{served.second}/stats").json()
    assert answer["num_chains"] == index.num_rows
    length = np.asarray(index["num_res"])
    column = answer["columns"]["num_res"]
    assert (column["min"], column["max"]) == (length.min(), length.max())
    assert column["mean"] == pytest.approx(length.mean(), rel=1e-5)
    assert column["quantiles"]["0.5"] == np.sort(length)[(len(length) - 1) // 2]
    assert sum(column["counts"]) == len(length)
    edges = column["edges"]
    assert edges == sorted(set(edges)) and len(edges) == len(column["counts"]) + 1
    for low, high, count in zip(edges, edges[1:], column["counts"], strict=False):
        assert ((length >= low) & (length < high)).sum() == count or high == edges[-1]


def test_unknown_values_are_counted_apart(served) -> None:
    columns = served.get(f"/snapshots/{served.second}/stats").json()["columns"]
    kinds = {name: columns[name]["kind"] for name in ("num_res", "method", "release_date")}
    assert kinds == {"num_res": "integer", "method": "text", "release_date": "date"}
    assert not {"shard", "offset", "column_offsets"} & set(columns)
    rows = Dataset.open(served.folder).index.to_pylist()
    assert columns["resolution"]["unknown"] == sum(r["resolution"] == 0 for r in rows)
    assert columns["cluster_size"] == {"kind": "integer", "known": 0, "unknown": 45}
    years = columns["release_date"]["years"]
    assert years == {str(y): 15 * (y in (2012, 2019)) for y in range(2012, 2020)}
    assert columns["method"]["values"]["SOLUTION NMR"] == sum(
        r["method"] == "SOLUTION NMR" for r in rows
    )
    assert columns["is_distillation"]["true"] == sum(r["is_distillation"] for r in rows)


BASE = "/v1/datasets/demo"


@pytest.mark.slow
def test_a_bucket_is_served_and_presigns_urls(start: Start, folder) -> None:
    local = Dataset.open(folder[0])
    with local_bucket() as bucket:
        client = start(datasets={"demo": bucket.fill(folder[0])}, url_seconds=120)
        assert client.get(f"{BASE}/refs/main").json()["digest"] == folder[2]
        shard = local.storage.read(f"shards/{local.manifest.shards[0].name}")
        path = f"{BASE}/shards/{local.manifest.shards[0].name}"
        assert client.get(path, headers={"Range": "bytes=8-99"}).content == shard[8:100]
        name, digest = local.manifest.shards[0].name, local.manifest.shards[0].sha256
        answer = client.post(f"{BASE}/urls", json={"shards": [name]})
        assert answer.headers["cache-control"] == "no-store" and answer.json()["expires_at"]
        (item,) = answer.json()["urls"]
        assert "Signature" in item["url"] and "X-Amz-Expires=120" in item["url"]
        sent = hashlib.sha256(httpx.get(item["url"]).content).hexdigest()
        assert sent == item["sha256"] == digest
        line = client.get("/v1/audit").json()["lines"][0]
        assert (line["action"], line["detail"]) == ("shards.sign", {"count": 1, "seconds": 120})
        listed = client.get(f"{BASE}/snapshots").json()["snapshots"]
        assert {item["digest"] for item in listed} == {folder[1], folder[2]}
        with Dataset.open(f"{client.base_url}{BASE}") as remote:
            for chain in list(local)[::12]:
                assert remote[chain].msa.tobytes() == local[chain].msa.tobytes()


def test_a_folder_has_urls_of_the_service_itself(served) -> None:
    entry = Dataset.open(served.folder).manifest.shards[0]
    answer = served.client.post(f"{served.base}/urls", json={"shards": [entry.name]}).json()
    assert answer["expires_at"] is None
    assert answer["urls"][0]["url"] == f"{BASE}/shards/{entry.name}"
    assert len(served.client.get(answer["urls"][0]["url"]).content) == entry.nbytes


CHAINS = 23


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dataset, str]]:
    """A dataset whose chains have structures, and the URL of its plans."""
    folder = tmp_path_factory.mktemp("planned")
    dataset = small_dataset(folder, CHAINS)
    with serving({"demo": folder}) as url:
        yield dataset, f"{url}/v1/datasets/demo/snapshots/{dataset.digest}/plan"


def test_service_command_and_loader_name_the_same_chains(
    planned: tuple[Dataset, str],
) -> None:
    (dataset, url), batch_size = planned, 2
    asked = {"world_size": 3, "seed": 5, "epoch": 2, "start": 1, "batches": 4}
    asked["batch_size"] = batch_size
    served = httpx.get(url, params=asked, timeout=300).json()
    assert served["snapshot"] == dataset.digest

    words = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    assert evofeed("plan", dataset.uri, *words, "--json").json == served["samples"]

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
        ("world_size=2&global_batch_size=3", "not a multiple"),
        ("world_size=2&start=99", "an epoch has"),
        ("world_size=200&batches=51", "one rank"),
    ],
)
def test_a_plan_that_cannot_be_is_422(planned: tuple[Dataset, str], query: str, says: str) -> None:
    answer = httpx.get(f"{planned[1]}?{query}", timeout=300)
    assert answer.status_code == 422
    assert says in answer.text
