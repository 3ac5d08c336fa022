"""docker-compose.yml, deploy/kubernetes and docs/operate.md, started: what they promise holds.

On 4865567: `s3://` was refused as a root, cookies had no Secure behind TLS, whoever reached the
port chose its address, a scrape by annotations was answered with 401, and a revoked token worked
again while the database was away.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.bucket import Bucket, local_bucket
from tests.service.conftest import (
    PostgresServer,
    bearer,
    id_of,
    postgres_server,
    publish,
    until_trusted,
)
from tests.service.shipped import DEPLOY, ROOT, Shipped, free_port, nginx_program
from tests.store.records import published, random_record

BASE = "/v1/datasets"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def beside() -> Iterator[tuple[PostgresServer, Bucket]]:
    """What both have beside them."""
    with postgres_server() as server, local_bucket() as bucket:
        yield server, bucket


@pytest.fixture(scope="module", params=["compose", "kubernetes"])
def shipped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, beside: Any
) -> Iterator[Shipped]:
    (server, bucket), folder = beside, tmp_path_factory.mktemp(request.param).resolve()
    publish(folder / "remote", range(3))
    with ExitStack() as stack:
        there = Shipped(request.param, folder, stack, server, bucket.port)
        there.bucket = bucket.fill(folder / "remote")  # type: ignore[attr-defined]
        yield there


@pytest.fixture(scope="module")
def admin(shipped: Shipped) -> str:
    """The first token, by the command that the head of the file gives."""
    head = "docker-compose.yml" if shipped.kind == "compose" else "deploy/kustomization.yaml"
    text = (ROOT / head).read_text().replace("\\\n# ", " ")
    (line,) = [line for line in text.splitlines() if "evofeed tokens create me" in line]
    command = line.split("evofeed tokens ")[1].split(" # ")[0].split()
    return shipped.run("tokens", *command).strip()


@pytest.fixture(scope="module")
def own(shipped: Shipped, admin: str) -> Iterator[httpx.Client]:
    """A client with that token."""
    with shipped.client(admin) as client:
        yield client


@pytest.fixture(scope="module")
def digest(shipped: Shipped, own: httpx.Client) -> str:
    """Of a dataset below /data, registered as `local`."""
    made = publish(shipped.data / "local", range(5))
    answer = own.post(BASE, json={"name": "local", "uri": str(shipped.data / "local")})
    assert answer.status_code == 201, answer.text
    return made


def test_the_first_token_does_it_all(shipped: Shipped, own: httpx.Client) -> None:
    assert set(own.get("/v1/me").json()["scopes"]) == {"admin", "read", "publish", "jobs"}
    with shipped.client() as client:
        assert client.get(BASE).status_code == 401


def test_the_database_of_the_release_before_is_brought_up_to_date(
    shipped: Shipped, own: httpx.Client
) -> None:
    """By the migrating container's command; tokens, datasets and history go on."""
    assert "up to date" in shipped.migrated
    assert "old" in {one["label"] for one in own.get("/v1/tokens").json()["tokens"]}
    assert {"pdb", "real"} <= {one["name"] for one in own.get(BASE).json()["datasets"]}
    moves = "SELECT digest, principal FROM ref_moves WHERE message = 'May release'"
    ((digest, principal),) = shipped.database.execute(shipped.kind, moves)
    assert digest.startswith("b33d9733aec4") and principal == "9d689316406da15f"


def test_buckets_are_registered_and_read_and_other_places_are_not(
    shipped: Shipped, own: httpx.Client
) -> None:
    uri = shipped.bucket  # type: ignore[attr-defined]
    made = own.post(BASE, json={"name": "remote", "uri": uri})
    assert made.status_code == 201, made.text
    ref = own.get(f"{BASE}/remote/refs/main").json()
    page = own.get(f"{BASE}/remote/snapshots/{ref['digest']}/chains").json()
    assert len(page["chains"]) == 3
    for wrong in ("/etc", str(shipped.folder / "home")):
        answer = own.post(BASE, json={"name": "x", "uri": wrong})
        assert (answer.status_code, answer.json()["code"]) == (403, "place_not_allowed")


def test_a_session_behind_tls_has_a_secure_cookie(shipped: Shipped, admin: str) -> None:
    with shipped.client() as client:
        answer = client.post("/ui/login", data={"token": admin}, headers={"Origin": shipped.url})
    assert answer.status_code == 303, answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert "; secure" in cookie and "httponly" in cookie and "samesite=strict" in cookie


def test_nobody_chooses_address_or_scheme(shipped: Shipped, admin: str, own: httpx.Client) -> None:
    """Neither through nginx nor past it; what is not an address stands nowhere."""
    lies = {"X-Forwarded-For": "203.0.113.7, <script>", "X-Forwarded-Proto": "https"}
    direct = f"http://127.0.0.1:{shipped.port}"
    answer = httpx.post(f"{direct}/ui/login", data={"token": admin}, headers=lies)
    assert "secure" not in answer.headers["set-cookie"].lower(), "not one of the named proxies"
    with shipped.client("evf_" + "0" * 16 + "_wrong") as client:
        client.headers.update(lies if shipped.kind == "compose" else {})
        assert client.get(BASE).status_code == 401
    wrong = httpx.get(f"{direct}{BASE}", headers=lies | {"Authorization": "Bearer evf_1"})
    assert wrong.status_code == 401
    text = own.get("/v1/audit").text
    assert "203.0.113" not in text and "script" not in text


def new_token(shipped: Shipped, admin: str, label: str) -> str:
    """One that reads; past nginx, whose limits another test has used up."""
    url, new = f"http://127.0.0.1:{shipped.port}/v1/tokens", {"label": label, "scopes": ["read"]}
    return str(httpx.post(url, json=new, headers=bearer(admin)).json()["token"])


def test_prometheus_scrapes_with_the_token_its_configuration_names(
    shipped: Shipped, admin: str
) -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    credentials = shipped.folder / "secrets" / Path(job["authorization"]["credentials_file"]).name
    credentials.write_text(new_token(shipped, admin, "prometheus"))
    with shipped.client() as client:
        scraped = client.get(job["metrics_path"], headers=bearer(credentials.read_text()))
        assert scraped.status_code == 200 and "evofeed_requests_total" in scraped.text
        assert client.get(job["metrics_path"]).status_code == 401


def test_nginx_sends_the_shards_that_the_service_allows(
    shipped: Shipped, own: httpx.Client, digest: str
) -> None:
    manifest = own.get(f"{BASE}/local/snapshots/{digest}")
    assert hashlib.sha256(manifest.content).hexdigest() == digest
    shard = manifest.json()["shards"][0]
    path = f"{BASE}/local/shards/{shard['name']}"
    whole = own.get(path)
    assert whole.status_code == 200
    assert hashlib.sha256(whole.content).hexdigest() == shard["sha256"]
    assert whole.headers["etag"] == f'"{shard["sha256"]}"'
    assert whole.headers["cache-control"].startswith("private")
    assert "x-accel-redirect" not in whole.headers
    etag, some, part = whole.headers["etag"], {"Range": "bytes=10-19"}, whole.content[10:20]
    for more, status, wanted in (
        ({}, 206, part),
        ({"If-Range": etag}, 206, part),  # a download is resumed
        ({"If-Range": '"another"'}, 200, whole.content),
    ):
        answer = own.get(path, headers=some | more)
        assert (answer.status_code, answer.content) == (status, wanted), more
    known = own.get(path, headers={"If-None-Match": etag})
    assert known.status_code == 304 and not known.content
    assert own.head(path).headers["content-length"] == str(shard["nbytes"])
    there = shipped.data / "local" / "shards" / shard["name"]
    assert own.get(f"/_shards{there}").status_code == 404, "internal is internal"
    assert own.get(f"{BASE}/local/shards/{'0' * 64}.arrow").status_code == 404
    there.rename(shipped.folder / "away")
    gone = own.get(path)
    assert gone.status_code == 404 and "cache-control" not in gone.headers, "it may come back"
    there.symlink_to(shipped.folder / "away")
    assert own.get(path).status_code in (403, 404, 502), "a link is somebody's who swaps"
    there.unlink()
    (shipped.folder / "away").rename(there)
    with shipped.client() as client:
        assert client.get(path).status_code == 401


def test_who_reads_slowly_keeps_nginx_waiting_and_not_the_service(
    shipped: Shipped, own: httpx.Client
) -> None:
    chains = (random_record(n, num_res=500, num_alignments=5000) for n in range(4))
    sent = published(shipped.data / "slow", chains).manifest.shards[0]
    assert sent.nbytes > 6 << 20, "more than the system's buffers take"
    own.post(BASE, json={"name": "slow", "uri": str(shipped.data / "slow")}).raise_for_status()
    path, proof = f"{BASE}/slow/shards/{sent.name}", f'"{sent.sha256}"'
    headers = {"Range": "bytes=0-", "If-Range": proof}  # which the service sends by itself
    small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]
    door = httpx.HTTPTransport(verify=shipped.trust, socket_options=small)
    with (
        httpx.Client(base_url=shipped.url, headers=own.headers, transport=door) as slow,
        slow.stream("GET", path, headers=headers, timeout=120),
    ):  # and reads nothing more
        quiet, end = 0, time.monotonic() + 240
        while quiet < 10:
            assert time.monotonic() < end, "the service waits for whoever reads"
            time.sleep(0.1)
            quiet = 0 if _unread(shipped.port) else quiet + 1


def _unread(port: int) -> int:
    """Bytes on their way over connections of a port: none once nginx has all of an answer."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    end, established = f":{port:04X}", "01"
    queues = [row[4] for row in rows if row[3] == established and end in row[1] + row[2]]
    return sum(int(size, 16) for queue in queues for size in queue.split(":"))


def test_what_anybody_may_send_is_limited_at_the_door(shipped: Shipped) -> None:
    with shipped.client() as client:
        assert client.post("/v1/jobs", content=bytes(2 << 20)).status_code == 413
        assert client.get("/", headers={"X-Large": "x" * 70_000}).status_code == 400
        with ThreadPoolExecutor(16) as pool:  # faster than a burst is forgiven, on any machine
            said = list(pool.map(lambda _: client.get("/healthz").status_code, range(800)))
        assert 429 in said and said[:50] == [200] * 50
        forms = [client.post("/ui/login", data={"token": "x"}).status_code for _ in range(20)]
        assert 429 in forms


@pytest.mark.parametrize("shipped", ["compose"], indirect=True)
def test_a_revoked_token_stays_revoked_while_the_database_is_away(
    shipped: Shipped, admin: str, own: httpx.Client, digest: str
) -> None:
    until_trusted()  # and until nginx, whose limits the test before used up, takes 50 more
    shard = own.get(f"{BASE}/local/snapshots/{digest}").json()["shards"][0]["name"]
    path = f"{BASE}/local/shards/{shard}"
    good, bad = (new_token(shipped, admin, label) for label in ("good", "bad"))
    with shipped.client(good) as known, shipped.client(bad) as revoked:
        assert known.get(path).status_code == revoked.get(path).status_code == 200
        shipped.run("tokens", "revoke", id_of(bad))
        until_trusted()
        assert revoked.get(path).status_code == 401
        shipped.database.pause()
        try:
            until_trusted()
            said = {revoked.get(path).status_code for _ in range(12)}
            assert said <= {401, 503}, "it is refused, or nobody can say"
            assert known.get(path).status_code == 200, "bytes go on for tokens that are known"
            assert known.get("/readyz").status_code == 503
        finally:
            shipped.database.resume()
        assert revoked.get(path).status_code == 401


PAGE = ROOT / "docs" / "operate.md"
PROGRAMS = Path(__file__).parent / "data" / "bin"
"""What the page takes for granted: systemd, sudo and pip in the small; all else is real."""


def commands(page: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S)


def test_the_page_works_from_an_empty_machine_to_a_dataset_that_moved(tmp_path: Path) -> None:
    first, *rest = commands(PAGE.read_text())
    assert len(rest) >= 10 and first.startswith("export NAME=")
    nginx, user = nginx_program(), "root" if os.getuid() == 0 else os.environ.get("USER", "")
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server())
        places = {
            "NAME": "localhost",
            "PORT": str(free_port()),
            "WAY_IN": str(free_port()),
            "AS": user,
            "SOCKET": str(server.folder),
        } | {
            name: str(tmp_path / name.lower())
            for name in ("ETC", "HOME_DIR", "DATA", "RAW", "BACKUP", "UNITS")
        }
        assert set(places) == set(re.findall(r"(\w+)=", first)), "all that the page sets"
        Path(places["UNITS"]).mkdir()
        path = [PROGRAMS, Path(sys.executable).parent, server.binaries, Path(nginx).parent]
        environment = {
            "PATH": ":".join([*map(str, path), os.environ["PATH"]]),
            "HOME": str(tmp_path),
        } | places
        stack.callback(_stop, places, nginx, environment)
        script = tmp_path / "page.sh"
        # `createuser` by the superuser of the test's PostgreSQL, who has that very name.
        text = "\n".join(rest).replace("createuser --host=$SOCKET evofeed", "true")
        script.write_text(f"set -euo pipefail\n{text}")
        said, journal = tmp_path / "said", Path(places["UNITS"], "journal")
        with said.open("wb") as output:  # no pipe: nginx stays behind and would hold it open
            done = subprocess.run(
                ["bash", "-x", str(script)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                timeout=550,
                check=False,
            )
        more = journal.read_text()[-2000:] if journal.exists() else ""
        assert done.returncode == 0, said.read_text()[-4000:] + more
    (extra,) = set(Path(places["UNITS"], "installed").read_text().split())
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r"[a-z0-9]+", extra))
    assert named <= set(known["optional-dependencies"])
    assert Path(places["DATA"], "archive", "pdb", "refs", "main").exists()
    assert Path(places["ETC"]).stat().st_mode & 0o077 == 0
    assert Path(places["ETC"], "admin.token").stat().st_mode & 0o077 == 0


def _stop(places: dict[str, str], nginx: str, environment: dict[str, str]) -> None:
    pid = Path(places["UNITS"], "pid")
    if pid.exists():
        subprocess.run(["kill", pid.read_text()], check=False, capture_output=True)
    config = Path(places["ETC"], "nginx.conf")
    if config.exists():
        subprocess.run([nginx, "-c", str(config), "-s", "stop"], check=False, capture_output=True)
