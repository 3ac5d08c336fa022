"""Several workers on one socket: one service in all that can be seen of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from evofeed.service.access.buckets import SharedBuckets
from evofeed.service.access.limits import RateLimiter
from evofeed.service.jobs import runner
from evofeed.service.leader import Leader
from evofeed.service.problems import Problem
from evofeed.synth import write_synthetic


class Running:
    """A service with two workers."""

    def __init__(self, process: subprocess.Popen[str], home: Path, url: str) -> None:
        self.process, self.home, self.url = process, home, url
        self._hosts = itertools.count(1)

    def ask(self, path: str) -> httpx.Response:
        """Over a connection of its own, so that either worker may get it."""
        return httpx.get(f"{self.url}{path}", timeout=120)

    def elsewhere(self) -> httpx.Client:
        """Somebody at another address, whose requests are counted apart."""
        transport = httpx.HTTPTransport(local_address=f"127.0.1.{next(self._hosts)}")
        return httpx.Client(base_url=self.url, transport=transport, timeout=120)

    def ended(self, job: str) -> dict[str, Any]:
        """A job that has ended."""
        while True:
            with self.elsewhere() as client:
                for _ in range(39):
                    found: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
                    if found["state"] in ("cancelled", "succeeded", "failed"):
                        return found
                    time.sleep(0.2)

    def workers(self) -> set[int]:
        return {pid for pid in children(self.process.pid) if b"spawn_main" in cmdline(pid)}

    def leaders(self) -> set[int]:
        """Workers that have the lock's file open."""
        found = set()
        for pid in self.workers():
            with contextlib.suppress(OSError):
                files = {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
                found |= {pid} if str(self.home / "leader.lock") in files else set()
        return found


def children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextmanager
def two_workers(home: Path, **settings: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "evofeed.cli", "serve", "--port", "0", "--json"]
    command += ["--no-auth", "--workers", "2"]
    given = {f"EVOFEED_{name.upper()}": value for name, value in settings.items()}
    environment = os.environ | {"EVOFEED_HOME": str(home)} | given
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            yield Running(process, home, url)
            workers = Running(process, home, url).workers()
        finally:
            process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(300) == 0, said
        assert "Traceback" not in said
    assert len(workers) == 2 and not any(cmdline(pid) for pid in workers)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def until(claim: Callable[[], Any]) -> None:
    end = time.monotonic() + 240
    while not claim():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def _refs_counted(metrics: str) -> set[str]:
    """How often refs were listed, by how it ended."""
    of_refs = (x for x in metrics.splitlines() if 'requests_total{endpoint="list_refs"' in x)
    return {line.rpartition(" ")[2] for line in of_refs}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_two_workers_are_one_service_whichever_of_them_is_killed(
    kind: str, folder: tuple[Path, str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    write_synthetic(tmp_path / "raw", 6, seed=0)
    datasets = json.dumps({"demo": str(folder[0]), "out": str(tmp_path / "out")})
    url = request.getfixturevalue("postgres")() if kind == "postgres" else ""
    limits = {"rate_per_second": "0.000001", "rate_burst": "40"}
    with two_workers(tmp_path / "home", datasets=datasets, database_url=url, **limits) as service:
        until(lambda: len(service.workers()) == 2)
        (victim,) = service.workers() - service.leaders()
        answers = [service.ask("/v1/datasets/demo/refs").status_code for _ in range(50)]
        assert answers == [200] * 40 + [429] * 10
        until(lambda: _refs_counted(service.ask("/metrics").text) == {"40.0", "10.0"})
        os.kill(victim, signal.SIGKILL)  # not before it counted: that is after the last byte
        until(lambda: len(service.workers() - {victim}) == 2)
        for _ in range(4):
            told = service.ask("/metrics").text
            assert _refs_counted(told) == {"40.0", "10.0"}
            assert "evofeed_datasets 2.0" in told.splitlines()
        assert service.ask("/v1/datasets/demo/refs").status_code == 429  # the new one knows

        with service.elsewhere() as client:
            body = {"dataset": "out", "input_uri": str(tmp_path / "raw"), "executor": "local"}
            job = client.post("/v1/jobs", json=body | {"workers": 1}).json()["id"]
        (leader,) = service.leaders()
        named = runner.__name__.encode()
        until(lambda: any(named in cmdline(pid) for pid in children(leader)))
        os.kill(leader, signal.SIGKILL)
        until(lambda: service.leaders() - {leader})
        ended = service.ended(job)
        assert ended["state"] == "succeeded" and ended["result"]["num_good"] == 6
        with service.elsewhere() as client:
            history = client.get("/v1/datasets/out/refs/main/history").json()["moves"]
        assert [move["previous"] for move in history] == [None]
        until(lambda: len(service.workers()) == 2)


def test_duties_go_to_one_and_then_to_the_next(tmp_path: Path) -> None:
    class Duty:
        def __init__(self, name: str) -> None:
            self.name = name

        def start(self) -> None:
            said.append(f"{self.name} begins")

        def close(self) -> None:
            said.append(f"{self.name} ends")

    said: list[str] = []
    first, second = (Leader(tmp_path, [Duty(name)]) for name in ("one", "two"))
    first.start()
    second.start()
    assert (first.leads, second.leads) == (True, False)
    first.close()
    until(lambda: second.leads)
    second.close()
    assert said == ["one begins", "one ends", "two begins", "two ends"]


def test_shared_buckets_are_those_of_all_and_the_oldest_make_room(tmp_path: Path) -> None:
    now = [100.0]
    one, two = (RateLimiter(1.0, 3, tmp_path / "b", clock=lambda: now[0]) for _ in range(2))
    one.spend("a")
    two.spend("a")
    one.spend("a")
    with pytest.raises(Problem) as refused:
        two.spend("a")
    assert refused.value.headers["Retry-After"] == "1"
    assert two.headers("a")["RateLimit-Remaining"] == "0" and one.may_spend("b")
    now[0] += 1
    two.spend("a")
    buckets = SharedBuckets(tmp_path / "b")
    with buckets:
        for number in range(40_000):  # more than it has room for
            buckets.put(str(number), (1.0, 200.0 + number))  # type: ignore[arg-type]
        assert buckets.find("a") is None and buckets.find("39999") == (1.0, 40_199.0)
    buckets.close()
