"""A dataset in a bucket, behind the service: what it lists and sends, and URLs that it gives."""

from __future__ import annotations

import hashlib

import httpx
import pytest
from tests.bucket import local_bucket
from tests.service.conftest import Start

from evofeed.store import Dataset

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


@pytest.mark.parametrize("shards", [[], ["../x"], ["x.arrow"], [1], ["a.arrow"] * 1001, None])
def test_no_url_for_what_is_no_shard(served, shards) -> None:
    answer = served.client.post(f"{served.base}/urls", json={"shards": shards})
    assert answer.status_code in (404, 422)
