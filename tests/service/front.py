"""A real nginx in front of a service, with the configuration that we ship."""

from __future__ import annotations

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

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"
SECRET = "5e" * 32


@contextmanager
def in_front(service: httpx.URL, folder: Path) -> Iterator[str]:
    """The address of an nginx with our configuration, on ports and folders of the test's own.

    It looks for datasets in `links` beside its folder, and its secret is `SECRET`.
    """
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        if "nginx" in os.environ.get("EVOFEED_REQUIRE", ""):
            pytest.fail("nginx is required but not installed")
        pytest.skip("no nginx here")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    folder.mkdir()
    text = CONFIG.read_text()
    secret = folder / "secret"
    secret.write_text(f"set $evofeed_secret {SECRET};\n")
    for ours, its in (("/tmp/", f"{folder}/"), ("service:8461", f"{service.host}:{service.port}"),
                      ("listen 8080", f"listen 127.0.0.1:{port}"),
                      ("/run/secrets/evofeed_link_secret", str(secret)),
                      ("/data/.links", str(folder.parent / "links"))):  # fmt: skip
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
