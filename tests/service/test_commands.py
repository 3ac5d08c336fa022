"""`evofeed serve` and `evofeed tokens` as a user meets them, and several workers on one socket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.conftest import evofeed
from tests.featurize.job.stage import children
from tests.featurize.job.stage import wait_until as until
from tests.service.conftest import until_trusted

from evofeed.service import ServiceSettings, commands
from evofeed.service.jobs import runner
from evofeed.service.jobs.queue import ENDED
from evofeed.store import Dataset
from evofeed.synth import write_synthetic


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """Where commands of a test have their database."""
    monkeypatch.setenv("EVOFEED_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_serve_prints_its_url_serves_and_stops_on_a_signal(folder, tmp_path) -> None:
    with serving_process(tmp_path, "--dataset", f"demo={folder[0]}") as service:
        line, process = service.said, service.process
        assert line["datasets"] == ["demo"] and line["auth"] is True
        assert service.ask("/v1/datasets/demo").status_code == 401
        with Dataset.open(f"{line['url']}/v1/datasets/demo", token=line["token"]) as remote:
            assert remote.digest == folder[2] and len(remote[0].sequence) == remote[0].num_res
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert process.stderr is not None and process.stderr.read() == ""
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{line['url']}/healthz")


_SERVE_WITH_A_JOB_THAT_DOES_NOT_STOP = """
import sys, types
from evofeed.cli import main
from evofeed.service.jobs import scheduler
scheduler.sys, scheduler._STOP_SECONDS = types.SimpleNamespace(executable=sys.argv[1]), 3600.0
main(["serve", "--port", "0", "--json", "--no-auth", "--dataset", "out=" + sys.argv[2]])
"""


def test_serve_says_what_it_waits_for_and_the_second_signal_does_not_wait(tmp_path) -> None:
    stubborn, pid = tmp_path / "python", tmp_path / "pid"
    (tmp_path / "out").mkdir()
    stubborn.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ > {pid}\nexec sleep 3600\n")
    stubborn.chmod(0o700)
    program = ["-c", _SERVE_WITH_A_JOB_THAT_DOES_NOT_STOP, str(stubborn), str(tmp_path / "out")]
    with serving_process(tmp_path / "home", program=program) as service:
        process, url = service.process, service.url
        assert process.stderr is not None
        try:
            (tmp_path / "raw").mkdir()
            new = {"dataset": "out", "input_uri": str(tmp_path / "raw")}
            job_id = httpx.post(f"{url}/v1/jobs", json=new, timeout=300).json()["id"]
            while not pid.exists() or not pid.read_text().strip():
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            assert f"for running jobs to stop: {job_id};" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 130
        finally:
            process.kill()
            os.kill(int(pid.read_text()), signal.SIGKILL)


SETTINGS = yaml.safe_load(Path(__file__).with_name("data").joinpath("settings.yaml").read_text())


@pytest.mark.parametrize(("variable", "value", "says"), SETTINGS)
def test_a_wrong_setting_is_one_line_without_the_password(
    home: Path, monkeypatch, variable, value, says
) -> None:
    (home / "text").write_text("this is no database, and long enough to be looked at\n" * 9)
    monkeypatch.setenv(f"EVOFEED_{variable}", value.format(tmp=home))
    monkeypatch.setenv("EVOFEED_DATABASE_PASSWORD", "hunter2")
    home.chmod(0o755)
    options = () if variable == "PORT" else ("--port", "0")  # a flag goes first
    done = evofeed("serve", *options, code=1)
    assert says in done.err and done.err.count("\n") == 1, done.err
    assert "hunter2" not in done.err and not done.out
    assert home.stat().st_mode & 0o777 == 0o755, "a folder keeps its rights"


def test_a_token_of_the_command_line_opens_the_service(home: Path, folder, start) -> None:
    token = evofeed("tokens", "create", "mine", "--scope", "read", "--json").json
    client = start(home=home, auth="on", datasets={"demo": str(folder[0])})
    headers = {"Authorization": f"Bearer {token['token']}"}
    assert client.get("/v1/datasets/demo", headers=headers).status_code == 200
    listed = evofeed("tokens", "ls", "--json").json
    assert listed["id"] == token["id"] and "token" not in listed
    evofeed("tokens", "revoke", token["id"])
    until_trusted()
    assert client.get("/v1/datasets/demo", headers=headers).status_code == 401
    assert "revoked" in evofeed("tokens", "ls").out


def test_a_start_for_others_says_how_they_reach_it_and_sign_in(tmp_path: Path, capsys) -> None:
    settings = ServiceSettings(home=tmp_path, host="0.0.0.0", auth="on")
    commands._announce(settings, "http://127.0.0.1:8461", "", as_json=False)
    said = capsys.readouterr().out
    assert f"http://{socket.gethostname()}:8461" in said and "TLS" in said
    assert "/ui/login" in said and "evofeed tokens create me --scope admin" in said
    for hosts, says in (((), "once EVOFEED_ALLOWED_HOSTS has it"), (("lab",), "http://lab:8461\n")):
        settings = settings.model_copy(update={"auth": "off", "allowed_hosts": hosts})
        commands._announce(settings, "http://127.0.0.1:8461", "", as_json=False)
        assert says in capsys.readouterr().out


def test_client_and_start_load_nothing_that_only_some_need_and_plans_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from evofeed.service import Client\n"
        "assert 'fastapi' not in sys.modules\n"
        "import evofeed.service.server\n"
        "heavy = {'numba', 'matplotlib', 'alembic', 'httpx', 'pandas'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "import evofeed.loader.plan\n"
        "from evofeed.loader import LoaderConfig, RunPlan\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
