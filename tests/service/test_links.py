"""Presigned URLs of shards, as readers follow them."""

from __future__ import annotations

import pytest
from tests.bucket import local_bucket
from tests.service.conftest import Start

from evofeed.store import Dataset
from evofeed.store.http import HttpStorage

BASE = "/v1/datasets/demo"


def test_a_service_without_nginx_is_asked_for_links_once(served) -> None:
    remote = Dataset.open(served.base)
    for chain in list(remote)[::9]:
        assert remote[chain].chain_id == chain
    assert isinstance(remote.storage, HttpStorage)
    assert remote.storage.links.stats == {"asked": 1, "followed": 0, "failed": 0}
    remote.close()


@pytest.mark.slow
def test_presigned_urls_of_a_bucket_are_followed_where_the_reader_allows_it(
    start: Start, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Dataset.open(folder[0])
    with local_bucket() as bucket:
        client = start(datasets={"demo": bucket.fill(folder[0])})
        for origins, followed in (("", 0), (f"http://x,http://127.0.0.1:{bucket.port}", 4)):
            monkeypatch.setenv("EVOFEED_LINK_ORIGINS", origins)
            monkeypatch.setenv("EVOFEED_TOKEN", "evf_not_for_buckets")
            remote = Dataset.open(f"{client.base_url}{BASE}")
            for chain in list(local)[::12]:
                assert remote[chain].msa.tobytes() == local[chain].msa.tobytes()
            assert isinstance(remote.storage, HttpStorage)
            assert remote.storage.links.stats["followed"] == followed
            remote.close()
