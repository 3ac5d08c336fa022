"""Several workers on one socket: one service in all that can be seen of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.featurize.job.stage import children
from tests.featurize.job.stage import wait_until as until

from evofeed.service.jobs import runner
from evofeed.service.jobs.queue import ENDED
from evofeed.synth import write_synthetic


class Running:
    """A service, and the line that it said when it began."""

    def __init__(self, process: subprocess.Popen[str], said: dict[str, Any]) -> None:
        self.process, self.said = process, said
        self.url = str(said["url"])

    def ask(self, path: str, **options: Any) -> httpx.Response:
        """Over a connection of its own, so that either worker may get it."""
        method = "POST" if options else "GET"
        return httpx.request(method, f"{self.url}{path}", timeout=120, **options)

    def ended(self, job: str) -> dict[str, Any]:
        """A job that has ended."""
        until(lambda: self.ask(f"/v1/jobs/{job}").json()["state"] in ENDED)
        return dict(self.ask(f"/v1/jobs/{job}").json())

    def workers(self) -> set[int]:
        return {pid for pid in children(self.process.pid) if b"spawn_main" in cmdline(pid)}

    def runs_jobs(self) -> set[int]:
        """Workers with the process of a job."""
        named = runner.__name__.encode()
        return {
            pid for pid in self.workers() if any(named in cmdline(one) for one in children(pid))
        }


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextmanager
def serving_process(
    home: Path, *options: str, program: list[str] | None = None, **settings: str
) -> Iterator[Running]:
    """`evofeed serve`, or another program, as a process that is gone after the block."""
    command = [sys.executable, "-m", "evofeed.cli", "serve", "--json", *options]
    command += [] if "--port" in options else ["--port", "0"]
    command = [sys.executable, *program] if program else command
    given = {f"EVOFEED_{name.upper()}": value for name, value in settings.items()}
    environment = os.environ | {"EVOFEED_HOME": str(home)} | given
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield Running(process, json.loads(line))
        finally:
            process.terminate()


def _refs_counted(metrics: str) -> set[str]:
    """How often refs were listed, by how it ended."""
    of_refs = (x for x in metrics.splitlines() if 'requests_total{endpoint="list_refs"' in x)
    return {line.rpartition(" ")[2] for line in of_refs}


@pytest.mark.slow
def test_two_workers_are_one_service_though_one_is_killed_and_so_is_the_next_on_its_port(
    folder: tuple[Path, str, str], tmp_path: Path, postgres: Callable[[], str]
) -> None:
    write_synthetic(tmp_path / "raw", 2, seed=0)
    datasets = json.dumps({"demo": str(folder[0]), "out": str(tmp_path / "out")})
    own = {"datasets": datasets, "database_url": postgres()}
    with serving_process(tmp_path / "home", "--no-auth", "--workers", "2", **own) as service:
        until(lambda: len(service.workers()) == 2)
        answers = [service.ask("/v1/datasets/demo/refs").status_code for _ in range(20)]
        assert answers == [200] * 20
        until(lambda: _refs_counted(service.ask("/metrics").text) == {"20.0"})
        body = {"dataset": "out", "input_uri": str(tmp_path / "raw"), "executor": "local"}
        job = service.ask("/v1/jobs", json=body | {"workers": 1}).json()["id"]
        until(service.runs_jobs)
        (leader,) = service.runs_jobs()
        os.kill(leader, signal.SIGKILL)
        until(lambda: len(service.workers() - {leader}) == 2)
        for _ in range(4):
            told = service.ask("/metrics").text
            assert _refs_counted(told) == {"20.0"}
            assert "evofeed_datasets 2.0" in told.splitlines()
        ended = service.ended(job)
        assert ended["state"] == "succeeded" and ended["result"]["num_good"] == 2
        history = service.ask("/v1/datasets/out/refs/main/history").json()["moves"]
        assert [move["previous"] for move in history] == [None]
        service.process.kill()
        again = ("--no-auth", "--workers", "2", "--port", service.url.rpartition(":")[2])
        with serving_process(tmp_path / "home", *again, **own) as second:
            until(lambda: second.ask("/v1/datasets/demo/refs").status_code == 200)
            until(lambda: len(second.workers()) == 2)
            workers = second.workers()
            second.process.terminate()
            said = second.process.stderr.read() if second.process.stderr else ""
            assert second.process.wait(300) == 0 and "Traceback" not in said, said
    assert not any(cmdline(pid) for pid in workers)
