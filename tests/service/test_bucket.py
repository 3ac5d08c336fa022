"""A dataset in a bucket, behind the service: what it lists and what it sends."""

from __future__ import annotations

import pytest
from tests.bucket import local_bucket
from tests.service.conftest import Start

from evofeed.store import Dataset

BASE = "/v1/datasets/demo"


@pytest.mark.slow
def test_a_bucket_is_served(start: Start, folder) -> None:
    local = Dataset.open(folder[0])
    with local_bucket() as bucket:
        client = start(datasets={"demo": bucket.fill(folder[0])})
        assert client.get(f"{BASE}/refs/main").json()["digest"] == folder[2]
        shard = local.storage.read(f"shards/{local.manifest.shards[0].name}")
        path = f"{BASE}/shards/{local.manifest.shards[0].name}"
        assert client.get(path, headers={"Range": "bytes=8-99"}).content == shard[8:100]
        listed = client.get(f"{BASE}/snapshots").json()["snapshots"]
        assert {item["digest"] for item in listed} == {folder[1], folder[2]}
        with Dataset.open(f"{client.base_url}{BASE}") as remote:
            for chain in list(local)[::12]:
                assert remote[chain].msa.tobytes() == local[chain].msa.tobytes()
