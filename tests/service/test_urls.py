"""URLs of shards: presigned in a bucket, our own on a disk; both lead to the bytes."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import pytest
from tests.bucket import local_bucket
from tests.service.conftest import Start

from evofeed.store import Dataset
from evofeed.store.inner import HttpConnection

BASE = "/v1/datasets/demo"


@pytest.mark.slow
def test_a_bucket_is_served_and_its_presigned_urls_are_followed_where_the_reader_allows_it(
    start: Start, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Dataset.open(folder[0])
    with local_bucket() as bucket:
        client = start(datasets={"demo": bucket.fill(folder[0])}, url_seconds=120)
        assert client.get(f"{BASE}/refs/main").json()["digest"] == folder[2]
        entry = local.manifest.shards[0]
        direct = client.get(f"{BASE}/shards/{entry.name}", headers={"Range": "bytes=8-99"})
        answer = client.post(f"{BASE}/urls", json={"shards": [entry.name]})
        assert answer.headers["cache-control"] == "no-store" and answer.json()["expires_at"]
        (item,) = answer.json()["urls"]
        assert "Signature" in item["url"] and "X-Amz-Expires=120" in item["url"]
        data = httpx.get(item["url"]).content
        assert hashlib.sha256(data).hexdigest() == item["sha256"] == entry.sha256
        assert direct.content == data[8:100]
        line = client.get("/v1/audit").json()["lines"][0]
        assert (line["action"], line["detail"]) == ("shards.sign", {"count": 1, "seconds": 120})
        listed = client.get(f"{BASE}/snapshots").json()["snapshots"]
        assert {item["digest"] for item in listed} == {folder[1], folder[2]}
        bucket_reads: list[str] = []
        real = HttpConnection.request

        def request(self: HttpConnection, *what: Any, **how: Any) -> Any:
            bucket_reads.extend([what[1]] if "X-Amz-Signature" in what[1] else [])
            return real(self, *what, **how)

        monkeypatch.setattr(HttpConnection, "request", request)
        for origins, followed in (("", 0), (f"http://x,http://127.0.0.1:{bucket.port}", 4)):
            monkeypatch.setenv("EVOFEED_LINK_ORIGINS", origins)
            monkeypatch.setenv("EVOFEED_TOKEN", "evf_not_for_buckets")
            remote = Dataset.open(f"{client.base_url}{BASE}")
            for chain in list(local)[::12]:
                assert remote[chain].msa.tobytes() == local[chain].msa.tobytes()
            assert len(bucket_reads) == followed
            remote.close()


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
