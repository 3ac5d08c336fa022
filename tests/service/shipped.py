"""What we ship, started here without a container engine.

Each service's own command, environment and configuration is read from docker-compose.yml,
`deploy/` and the Dockerfile, and run as a process of this machine; names of containers, mounted
paths and ports become ones of the test's own (`_moved`). Ray's containers are left out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from tests.conftest import required
from tests.service.conftest import PostgresServer
from tests.trainer.forked import free_port

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
EVOFEED = str(Path(sys.executable).parent / "evofeed")
NGINX_AT = "127.0.0.10"
"""Where nginx speaks to the service from: loopback has more addresses than one."""


def nginx_program() -> str:
    return required("proxy", shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"))


@contextmanager
def running(command: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is stopped, and waited for, when the block ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=120)


def until_answers(url: str, process: subprocess.Popen[bytes], log: Path, **options: Any) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            httpx.get(url, **options)
            return
        except httpx.TransportError:
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.1)


def certificate(folder: Path) -> None:
    """As the head of docker-compose.yml makes one: its own command, for `folder`/secrets."""
    text = (ROOT / "docker-compose.yml").read_text().replace("\n# ", "\n").replace("\\\n", " ")
    (line,) = re.findall(r"openssl req .*", text)
    subprocess.run(shlex.split(line), cwd=folder, check=True, capture_output=True)


class Shipped:
    """One of our deployments, running."""

    def __init__(
        self, kind: str, folder: Path, stack: ExitStack, server: PostgresServer, bucket_port: int
    ) -> None:
        self.kind, self.folder = kind, folder
        self.data = folder / "data"
        self.port, self.way_in = free_port(), free_port()
        for name in ("data", "home", "secrets", "nginx"):
            (folder / name).mkdir()
        certificate(folder)
        self.database = server
        self.database.create(kind)
        self.environment = self._environment(bucket_port)
        older = Path(__file__).parent / "data" / "database_0005.sql"  # of the release before
        self.database.execute(kind, older.read_text())
        self.migrated = self.run(*self._command("migrate"))
        log = folder / "service.log"
        command = [EVOFEED, *self._command("service")]
        service = stack.enter_context(running(command, log, env=self.environment))
        until_answers(f"http://127.0.0.1:{self.port}/healthz", service, log)
        config = self._nginx()
        log = folder / "nginx.log"
        nginx = stack.enter_context(running([nginx_program(), "-c", str(config)], log))
        until_answers(f"{self.url}/healthz", nginx, log, verify=self.trust)

    @property
    def url(self) -> str:
        scheme = "https" if self.kind == "compose" else "http"
        return f"{scheme}://localhost:{self.way_in}"

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "secrets/tls_certificate.pem"))

    def client(self, token: str = "", **headers: str) -> httpx.Client:
        """As it comes from outside: through the ingress, where TLS ends, on Kubernetes."""
        if self.kind == "kubernetes":
            headers = {"X-Forwarded-Proto": "https"} | headers
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return httpx.Client(base_url=self.url, headers=headers, verify=self.trust, timeout=120)

    def run(self, *arguments: str) -> str:
        """What `evofeed` prints in the service's container."""
        done = subprocess.run(
            [EVOFEED, *arguments], env=self.environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _command(self, name: str) -> list[str]:
        if self.kind == "compose":
            service = COMPOSE[name]
            if service.get("entrypoint") == ["sh", "-c"]:
                return shlex.split(service["command"][0].rpartition("exec evofeed ")[2])
            return list(service["command"])
        pod = _object("Deployment", "evofeed")["spec"]["template"]["spec"]
        boxes = {box["name"]: box for box in pod["containers"] + pod["initContainers"]}
        return list(boxes[name]["args"])

    def _environment(self, bucket_port: int) -> dict[str, str]:
        image = dict(
            part.split("=", 1)
            for line in re.findall(r"ENV ((?:.*\\\n)*.*)", (ROOT / "Dockerfile").read_text())
            for part in shlex.split(line.replace("\\\n", " "))
        )
        if self.kind == "compose":
            given = COMPOSE["service"]["environment"]
        else:
            given = _object("ConfigMap", "evofeed")["data"]
        chosen = {
            "OBJECTS_URL": f"http://127.0.0.1:{bucket_port}",
            "OBJECTS_KEY": "test",
            "OBJECTS_SECRET": "test",
        }
        values = {name: _interpolated(value, chosen) for name, value in given.items()}
        if self.kind == "kubernetes":  # which a pod has from its own identity
            values |= {"AWS_ENDPOINT_URL": chosen["OBJECTS_URL"], "AWS_REGION": "us-east-1"}
            values |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        for name in [name for name in values if "RAY" in name]:
            del values[name]
        ours = {name: value for name, value in (image | values).items() if name != "PATH"}
        return (
            {"PATH": os.environ["PATH"]}
            | {name: self._moved(value) for name, value in ours.items()}
            | {"EVOFEED_PORT": str(self.port), "HOME": str(self.folder)}
        )

    def _moved(self, value: str) -> str:
        for name, here in (
            ("postgresql://evofeed@database:5432/evofeed", self.database.url(self.kind)),
            ("/var/lib/evofeed", str(self.folder / "home")),
            ('"/data"', json.dumps(str(self.data))),
            ("172.30.84.10", NGINX_AT),
            ("10.0.0.0/8", f"{NGINX_AT}/32"),  # the pods' network
        ):
            value = value.replace(name, here)
        return value

    def _nginx(self) -> Path:
        """The configuration that is mounted, and the way in beside it."""
        own = self.folder / "nginx"
        name = "nginx-tls.conf" if self.kind == "compose" else "nginx-ingress.conf"
        way_in = _replaced((DEPLOY / name).read_text(), {
            "listen 8443": f"listen 127.0.0.1:{self.way_in}",
            "/run/secrets/tls_certificate": str(self.folder / "secrets/tls_certificate.pem"),
            "/run/secrets/tls_key": str(self.folder / "secrets/tls_key.pem"),
        } if self.kind == "compose" else {
            "listen 8080": f"listen 127.0.0.1:{self.way_in}",
            "10.0.0.0/8": "127.0.0.1/32",  # where the ingress is
        })  # fmt: skip
        (own / "way-in.conf").write_text(way_in)
        text = _replaced((DEPLOY / "nginx.conf").read_text(), {
            "/tmp/": f"{own}/",
            "/etc/nginx/way-in.conf": str(own / "way-in.conf"),
            "server service:8461": f"server 127.0.0.1:{self.port}",
            "proxy_http_version 1.1;": f"proxy_http_version 1.1; proxy_bind {NGINX_AT};",
        })  # fmt: skip
        user = "user root;\n" if os.getuid() == 0 else ""
        (own / "nginx.conf").write_text(f"daemon off;\n{user}{text}")
        return own / "nginx.conf"


def _replaced(text: str, changes: Mapping[str, str]) -> str:
    for ours, here in changes.items():
        assert ours in text, ours
        text = text.replace(ours, here)
    return text


def _interpolated(value: str, chosen: Mapping[str, str]) -> str:
    """`${NAME:-default}`, as an engine reads it."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: chosen.get(m[1]) or m[2], str(value))


def _object(kind: str, name: str) -> dict[str, Any]:
    for path in (DEPLOY / "kubernetes").glob("*.yaml"):
        for one in yaml.safe_load_all(path.read_text()):
            if (one["kind"], one["metadata"]["name"]) == (kind, name):
                return dict(one)
    raise AssertionError(f"no {kind} {name}")
