"""URLs of shards: presigned in a bucket, our own on a disk; both lead to the bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import httpx
import pytest
from tests.bucket import local_bucket
from tests.service.conftest import Start

from evofeed.store import Dataset


@pytest.fixture
def bucket(folder) -> Iterator[str]:
    """The dataset in a bucket of a local S3."""
    with local_bucket() as made:
        yield made.fill(folder[0])


@pytest.mark.slow
def test_a_bucket_is_served_and_its_shards_have_presigned_urls(
    start: Start, bucket, folder
) -> None:
    client = start(datasets={"demo": bucket}, url_seconds=120)
    assert client.get("/v1/datasets/demo/refs/main").json()["digest"] == folder[2]
    entry = Dataset.open(folder[0]).manifest.shards[0]
    direct = client.get(f"/v1/datasets/demo/shards/{entry.name}", headers={"Range": "bytes=8-99"})
    answer = client.post("/v1/datasets/demo/urls", json={"shards": [entry.name]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store" and answer.json()["expires_at"]
    (item,) = answer.json()["urls"]
    assert "Signature" in item["url"] and "X-Amz-Expires=120" in item["url"]
    data = httpx.get(item["url"]).content
    assert hashlib.sha256(data).hexdigest() == item["sha256"] == entry.sha256
    assert direct.content == data[8:100]
    line = client.get("/v1/audit").json()["lines"][0]
    assert (line["action"], line["detail"]) == ("shards.sign", {"count": 1, "seconds": 120})
    listed = client.get("/v1/datasets/demo/snapshots").json()["snapshots"]
    assert {item["digest"] for item in listed} == {folder[1], folder[2]}


def test_a_folder_has_urls_of_the_service_itself(served) -> None:
    entry = Dataset.open(served.folder).manifest.shards[0]
    answer = served.client.post(f"{served.base}/urls", json={"shards": [entry.name]}).json()
    assert answer["expires_at"] is None
    assert answer["urls"][0]["url"] == f"/v1/datasets/demo/shards/{entry.name}"
    assert len(served.client.get(answer["urls"][0]["url"]).content) == entry.nbytes


@pytest.mark.parametrize(
    "shards", [[], ["../x"], ["x.arrow"], ["x" * 300], [1], ["a.arrow"] * 1001, None]
)
def test_no_url_for_what_is_no_shard(served, shards) -> None:
    answer = served.client.post(f"{served.base}/urls", json={"shards": shards})
    assert answer.status_code in (404, 422)
