"""What the service's tests share: a small dataset with two snapshots, and a running service."""

from __future__ import annotations

import functools
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psycopg
import pytest
from pydantic import SecretStr
from tests.conftest import required
from tests.inside import units_inside
from tests.store.records import random_record

from evofeed.protein.chain_record import ChainRecord
from evofeed.service import ServiceSettings, serving
from evofeed.service.access.auth import create_token
from evofeed.service.database.database import Database
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.remembered import TRUST
from evofeed.store import DatasetWriter

METHODS = ("X-RAY DIFFRACTION", "SOLUTION NMR", "ELECTRON MICROSCOPY", "")


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once() -> Iterator[None]:
    """Each client of httpx would read them anew: 30 ms, a hundred times over."""
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(ssl.create_default_context)
        patch.setattr(ssl, "create_default_context", once)
        yield


def make_record(number: int) -> ChainRecord:
    """A chain whose sampled properties all differ from its neighbours'."""
    rng = np.random.default_rng(number)
    L, N = int(rng.integers(5, 120)), int(rng.integers(1, 40))
    sizes: Any = {"num_res": L, "num_alignments": N, "num_templates": 0}
    record = random_record(number, chain_id=f"{number:04d}_A", has_structure=False, **sizes)
    return record.replace(
        resolution=float(rng.choice([0.0, 1.7, 2.95, 4.1])),
        release_date=("", "2012-02-29", "2019-04-01")[number % 3],
        method=METHODS[number % 4],
        is_distillation=number % 5 == 0,
    )


def publish(folder: Path, numbers: range, expect: str | None = None, per_shard: int = 12) -> str:
    """Commit chains of these numbers to `main`; the digest."""
    writer = DatasetWriter(str(folder))
    for i, number in enumerate(numbers):
        writer.add(make_record(number))
        if i % per_shard == per_shard - 1:
            writer.flush()
    return writer.commit("main", expect=expect, config={"made_by": "a test"}).digest


class Served:
    """A dataset folder with two snapshots, behind a running service."""

    def __init__(self, folder: Path, url: str, first: str, second: str) -> None:
        self.folder, self.url, self.first, self.second = folder, url, first, second
        self.base = f"{url}/v1/datasets/demo"
        self.client = httpx.Client(base_url=url, timeout=300)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(f"{self.base}{path}", **options)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A dataset of 40 chains, then of 45, and both digests; not to be changed."""
    path = tmp_path_factory.mktemp("dataset")
    first = publish(path, range(40))
    second = publish(path, range(45), expect=first)
    return path, first, second


@pytest.fixture(scope="session")
def served(
    folder: tuple[Path, str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """The service on that dataset, for tests that only read."""
    path, first, second = folder
    home = tmp_path_factory.mktemp("served")
    settings = ServiceSettings(home=home, port=0, auth="off", datasets={"demo": str(path)})
    with serving(settings) as url:
        service = Served(path, url, first, second)
        with service.client:
            yield service


class Start:
    """Starts services with settings of the test's own, each on its own database."""

    def __init__(self, tmp_path: Path, new_url: Callable[[], str]) -> None:
        self._tmp_path, self._new_url = tmp_path, new_url
        self.stack = ExitStack()
        self.settings: list[ServiceSettings] = []

    def __call__(self, **changes: Any) -> httpx.Client:
        defaults: dict[str, Any] = {
            "home": self._tmp_path / f"home{len(self.settings)}",
            "host": "127.0.0.1",
            "port": 0,
            "auth": "off",
            "datasets": {},
        }
        if "home" not in changes:
            defaults["database_url"] = SecretStr(self._new_url())
        self.settings.append(ServiceSettings(**(defaults | changes)))
        self.url = self.stack.enter_context(serving(self.settings[-1]))
        self.database = Database(self.settings[-1].url)
        self.stack.callback(self.database.close)
        return self.client()

    # Of the service that was started last.

    def client(self, token: str = "") -> httpx.Client:
        """A client that carries a token, if there is one."""
        client = httpx.Client(base_url=self.url, headers=bearer(token), timeout=300)
        return self.stack.enter_context(client)

    def token(self, *scopes: str, **options: Any) -> str:
        """The text of a new token; its id is in it, see `id_of`."""
        return create_token(self.database, label="a test", scopes=list(scopes), **options)[1]

    def as_(self, *scopes: str, **options: Any) -> httpx.Client:
        """A client with a new token of these scopes."""
        return self.client(self.token(*scopes, **options))

    def work_off(self) -> None:
        """Run what is queued in this process: a child would spend most of the time on imports."""
        from evofeed.service.jobs import runner

        settings, queue = self.settings[-1], JobQueue(self.database, 100)
        with units_inside(), pytest.MonkeyPatch.context() as patch:
            for name, value in {
                "DATABASE_URL": settings.url,
                "HOME": str(settings.home),
                "AUTH": settings.auth,
                "INPUT_ROOTS": json.dumps(settings.input_roots),
                "JOB_DATABASES": json.dumps(settings.job_databases),
                "MSA_CACHE": str(settings.home / "msa"),
            }.items():
                patch.setenv(f"EVOFEED_{name}", value)
            while (job_id := queue.claim(1)) is not None:
                runner.main(job_id)


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def id_of(token: str) -> str:
    """What names a token in the database."""
    return token.split("_")[1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`Start` on SQLite."""
    made = Start(tmp_path, lambda: "")
    with made.stack:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def start_any(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """`Start` on SQLite, then on PostgreSQL: what touches the database holds for both."""
    on_postgres = request.param == "postgres"
    made = Start(tmp_path, request.getfixturevalue("postgres") if on_postgres else lambda: "")
    with made.stack:
        yield made


@pytest.fixture
def jobs_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are queued, and run by `Start.work_off` alone."""
    monkeypatch.setattr(Scheduler, "start", lambda self: None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """The URL of a migrated, emptied database on a PostgreSQL of this session's own."""
    with postgres_server() as server:
        server.create("service")
        with Database(server.url("service")) as database:
            database.upgrade()
        yield lambda: server.emptied("service")


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """One for this block, wherever `initdb` is: distributions keep it off the PATH."""
    found = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
    initdb = Path(required("postgres", found[-1] if found else shutil.which("initdb")))
    # Its socket has a path of 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="evf-pg-", dir="/tmp") as folder:
        server = PostgresServer(initdb.parent, Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()


class PostgresServer:
    """A PostgreSQL in a folder, on a Unix socket, gone with the tests."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.binaries, self.folder = binaries, folder
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.getuid() == 0 else None
        if self._user:
            shutil.chown(folder, self._user)

    def start(self) -> None:
        data = self.folder / "data"
        self._run("initdb", "-D", data, "-A", "trust", "-U", "evofeed", "--no-sync")
        self.resume()

    def resume(self) -> None:
        """Start it, again after `pause`."""
        data, log = self.folder / "data", self.folder / "log"
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off -c max_connections=50"
        self._run("pg_ctl", "-D", data, "-l", log, "-w", "-t", 240, "-o", options, "start")

    def pause(self) -> None:
        """Stop it, as an operator would; what it holds stays."""
        self._run("pg_ctl", "-D", self.folder / "data", "-m", "fast", "-w", "stop")

    def stop(self) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "stop")

    def create(self, name: str) -> None:
        self.execute("postgres", f"CREATE DATABASE {name}")

    def url(self, name: str) -> str:
        return f"postgresql://evofeed@/{name}?host={self.folder}"

    def emptied(self, name: str) -> str:
        """The URL of a database without rows: far cheaper than a new one for each test."""
        query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        tables = {row[0] for row in self.execute(name, query)} - {"alembic_version"}
        self.execute(name, f"TRUNCATE {', '.join(sorted(tables))} RESTART IDENTITY CASCADE")
        return self.url(name)

    def execute(self, name: str, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(f"host={self.folder} user=evofeed dbname={name}") as connection:
            connection.autocommit = True
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self.binaries / program), *map(str, arguments)]
        done = subprocess.run(
            command, user=self._user, cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr


def until_trusted() -> None:
    """Wait until a running service asks again for what was written past it."""
    time.sleep(TRUST)
