"""`evofeed serve` and `evofeed tokens` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from tests.conftest import exit_code
from tests.service.conftest import until_trusted
from tests.service.test_workers import serving_process

from evofeed.service import ServiceSettings, commands
from evofeed.store import Dataset


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch, capsys) -> Run:
    """Runs the command line in this process, on a database of the test's own."""
    monkeypatch.setenv("EVOFEED_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> Done:
        return Done(exit_code(*arguments), *capsys.readouterr())

    return call


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


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("DATABASE_URL", "hunter2", "sqlite:///FILE or postgresql://"),
        ("DATABASE_URL", "mysql://me:hunter2@here/x", "sqlite:///FILE or postgresql://"),
        ("DATABASE_URL", "postgresql://me:hunter2@here:port/x", "sqlite:///FILE or postgresql://"),
        ("DATABASE_URL", "postgresql://me:hunter2@127.0.0.1:1/x", "does not answer"),
        ("DATABASE_URL", "sqlite://", "sqlite:///FILE"),
        ("DATABASE_URL", "sqlite:///{tmp}/text", "file is not a database"),
        ("DATABASE_URL", "sqlite:///{tmp}", "Is a directory"),
        ("HOME", "{tmp}/text/below", "Not a directory); name a folder of yours in EVOFEED_HOME"),
        ("PORT", "abc", "EVOFEED_PORT"),
        ("DATASETS", "demo=/tmp", "EVOFEED_DATASETS) is not JSON"),
        ("ATUH", "on", "no setting EVOFEED_ATUH; did you mean EVOFEED_AUTH?"),
    ],
)
def test_a_wrong_setting_is_one_line_without_the_password(
    run: Run, tmp_path, monkeypatch, variable, value, says
) -> None:
    (tmp_path / "text").write_text("this is no database, and long enough to be looked at\n" * 9)
    monkeypatch.setenv(f"EVOFEED_{variable}", value.format(tmp=tmp_path))
    monkeypatch.setenv("EVOFEED_DATABASE_PASSWORD", "hunter2")
    tmp_path.chmod(0o755)
    done = run("serve", *(() if variable == "PORT" else ("--port", "0")))  # a flag goes first
    assert done.code == 1 and says in done.err and done.err.count("\n") == 1, done.err
    assert "hunter2" not in done.err and not done.out
    assert tmp_path.stat().st_mode & 0o777 == 0o755, "a folder keeps its rights"


def test_a_token_of_the_command_line_opens_the_service(run: Run, folder, tmp_path, start) -> None:
    token = json.loads(run("tokens", "create", "mine", "--scope", "read", "--json").out)
    client = start(home=tmp_path, auth="on", datasets={"demo": str(folder[0])})
    headers = {"Authorization": f"Bearer {token['token']}"}
    assert client.get("/v1/datasets/demo", headers=headers).status_code == 200
    listed = json.loads(run("tokens", "ls", "--json").out)
    assert listed["id"] == token["id"] and "token" not in listed
    assert run("tokens", "revoke", token["id"]).code == 0
    until_trusted()
    assert client.get("/v1/datasets/demo", headers=headers).status_code == 401
    assert "revoked" in run("tokens", "ls").out


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
