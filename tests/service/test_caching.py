"""What a token was asked for is not given away by a cache: behind a real one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.service.conftest import Start, until_trusted
from tests.service.shipped import free_port, nginx_program, running, until_answers

from evofeed.service.access.auth import create_token, revoke_token

_NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  proxy_cache_path {folder}/cache keys_zone=z:1m;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass {behind}; proxy_cache z; proxy_set_header Host 127.0.0.1;
      add_header X-Cache $upstream_cache_status always;
    }}
  }}
}}
"""


@contextmanager
def caching_proxy(behind: str, folder: Path) -> Iterator[str]:
    """The address of an nginx that keeps what it may."""
    program, url = nginx_program(), f"http://127.0.0.1:{(port := free_port())}"
    folder.mkdir()
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port, behind=behind))
    log = folder / "error.log"
    command = [program, "-c", str(folder / "nginx.conf"), "-e", str(log)]
    command += ["-g", "user root;"] if os.getuid() == 0 else []
    with running(command, log) as process:
        until_answers(f"{url}/healthz", process, log)
        yield url


@pytest.mark.parametrize("auth", ["on", "read"])
def test_a_shared_cache_keeps_only_what_anybody_may_read(
    start: Start, folder, tmp_path: Path, auth: str
) -> None:
    client = start(auth=auth, datasets={"demo": str(folder[0])})
    token_id, text = create_token(start.database(), label="x", scopes=["read"])
    manifest = f"/v1/datasets/demo/snapshots/{folder[2]}"
    mine = {"Authorization": f"Bearer {text}"}
    shard = client.get(manifest, headers=mine).json()["shards"][0]["name"]
    paths = [manifest, f"{manifest}/index", f"{manifest}/stats",
             f"{manifest}/chains",
             f"/v1/datasets/demo/shards/{shard}"]  # fmt: skip
    with caching_proxy(str(client.base_url), tmp_path / "nginx") as proxy:
        for path in paths:
            first = httpx.get(proxy + path, headers=mine)
            assert (first.status_code, first.headers["X-Cache"]) == (200, "MISS"), first.text
        revoke_token(start.database(), token_id)
        until_trusted()
        for path in paths:
            nobody = httpx.get(proxy + path)
            wanted = (200, "HIT") if auth == "read" else (401, "MISS")
            assert (nobody.status_code, nobody.headers["X-Cache"]) == wanted, path
            if auth == "on":
                assert httpx.get(proxy + path, headers=mine).status_code == 401
