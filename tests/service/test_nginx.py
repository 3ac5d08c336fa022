"""deploy/nginx.conf in a real nginx: it sends what the service allows, and nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.service.conftest import Start, open_client

from evofeed.service.auth import create_token

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"


@contextmanager
def in_front(service: httpx.URL, folder: Path) -> Iterator[str]:
    """The address of an nginx with our configuration, on ports and folders of the test's own."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        if "nginx" in os.environ.get("EVOFEED_REQUIRE", ""):
            pytest.fail("nginx is required but not installed")
        pytest.skip("no nginx here")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    folder.mkdir()
    text = CONFIG.read_text()
    for ours, its in (("/tmp/", f"{folder}/"), ("service:8461", f"{service.host}:{service.port}"),
                      ("listen 8080", f"listen 127.0.0.1:{port}")):  # fmt: skip
        assert ours in text
        text = text.replace(ours, its)
    user = "user root;\n" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(f"daemon off;\n{user}{text}")
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{url}/healthz")
                break
            except httpx.TransportError:
                assert running.poll() is None and time.monotonic() < end, running.communicate()[1]
                time.sleep(0.05)
        try:
            yield url
        finally:
            running.terminate()
            running.communicate(timeout=60)


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
