"""deploy/nginx.conf in a real nginx: it sends what the service allows, and nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
from tests.service.conftest import Start, open_client
from tests.service.front import in_front

from evofeed.service.access.auth import create_token


def test_nginx_sends_the_shards_that_the_service_allows(
    start: Start, folder, tmp_path: Path
) -> None:
    client = start(
        auth="on",
        accel="/_shards",
        allowed_hosts=("127.0.0.1",),
        datasets={"demo": str(folder[0])},
    )
    text = create_token(start.database(), label="x", scopes=["read"])[1]
    base = "/v1/datasets/demo"
    with in_front(client.base_url, tmp_path / "nginx") as url, open_client(url, text) as own:
        manifest = own.get(f"{base}/snapshots/{folder[2]}")
        assert hashlib.sha256(manifest.content).hexdigest() == folder[2]
        shard = manifest.json()["shards"][0]
        path = f"{base}/shards/{shard['name']}"
        whole = own.get(path)
        assert whole.status_code == 200
        assert hashlib.sha256(whole.content).hexdigest() == shard["sha256"]
        assert whole.headers["etag"] == f'"{shard["sha256"]}"'
        assert whole.headers["cache-control"].startswith("private")
        assert "x-accel-redirect" not in whole.headers
        part = own.get(path, headers={"Range": "bytes=10-19"})
        assert part.status_code == 206 and part.content == whole.content[10:20]
        tag = whole.headers["etag"]
        for known_as, status in ((tag, 206), ('"another"', 200)):
            more = own.get(path, headers={"Range": "bytes=10-19", "If-Range": known_as})
            wanted = whole.content[10:20] if status == 206 else whole.content
            assert (more.status_code, more.content) == (status, wanted), "a download is resumed"
        known = own.get(path, headers={"If-None-Match": whole.headers["etag"]})
        assert known.status_code == 304 and not known.content
        assert own.head(path).headers["content-length"] == str(shard["nbytes"])
        there = folder[0] / "shards" / shard["name"]
        assert own.get(f"/_shards{there}").status_code == 404, "internal is internal"
        assert httpx.get(f"{url}{path}").status_code == 401
        assert own.get(f"{base}/shards/{'0' * 64}.arrow").status_code == 404
        big = own.put(f"{base}/shards/{'0' * 64}.arrow", content=bytes(3 << 20))
        assert big.status_code == 403, "larger than any other body, and the service's to refuse"
