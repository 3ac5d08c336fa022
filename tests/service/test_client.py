"""The client, and the commands that speak through it, against a running service."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.conftest import Start, work_off

from evofeed.cli import main
from evofeed.errors import AccessDenied, RefConflict, ServiceError
from evofeed.service import Client
from evofeed.service.access.auth import create_token
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.synth import write_synthetic


@pytest.fixture
def client(
    start: Start, folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """A client with every right, of a service whose jobs wait for `work_off`."""
    monkeypatch.setattr(Scheduler, "start", lambda self: None)
    shutil.copytree(folder[0], tmp_path / "copy")
    http = start(
        auth="on",
        dataset_roots=(str(tmp_path),),
        input_roots=(str(tmp_path),),
        webhook_hosts=("http://127.0.0.1:9",),
        datasets={"demo": str(tmp_path / "copy"), "out": str(tmp_path / "out")},
    )
    scopes = ["read", "publish", "jobs", "admin"]
    text = create_token(start.database(), label="all", scopes=scopes)[1]
    with Client(str(http.base_url), text) as made:
        yield made


def test_the_client_needs_no_server_installed() -> None:
    code = "import sys; from evofeed.service import Client; print('fastapi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_refs_chains_and_datasets(client: Client, folder, tmp_path: Path) -> None:
    _, first, second = folder
    assert client.datasets() == ["demo", "out"]
    client.register("new", str(tmp_path / "new"), "just made")
    assert "new" in client.datasets()
    assert client.ref("demo").digest == second
    with pytest.raises(RefConflict, match="read the ref again"):
        client.move_ref("demo", "main", first, expect=first)
    assert client.move_ref("demo", "main", first, expect=second, message="back").digest == first
    tag = client.move_ref("demo", "v1", second, expect=None)
    assert [ref.name for ref in client.refs("demo")] == ["main", "v1"] and tag.digest == second
    ids = [row["chain_id"] for row in client.chains("demo", "v1", columns=["chain_id"], page=7)]
    assert len(ids) == 45 and ids == sorted(ids)
    few = list(client.chains("demo", where={"column": "chain_id", "op": "in", "value": ids[:3]}))
    assert len(few) == 3 and few[0]["num_res"] > 0
    assert client.dataset("demo")[ids[0]].chain_id == ids[0]
    with pytest.raises(ServiceError, match="no dataset 'none'"):
        client.refs("none")


def test_jobs_from_the_command_line(
    client: Client, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    raw = tmp_path / "raw"
    write_synthetic(raw, 3, seed=1)
    victim = sorted(raw.rglob("*.a3m"))[0]
    victim.write_bytes(b">only\nAC\n>ragged\nACDEFGHIKL\n")
    monkeypatch.setenv("EVOFEED_TOKEN", str(client._token))

    def say(*words: str) -> list[dict[str, object]]:
        with pytest.raises(SystemExit) as ended:
            main(["--service", client.url, *words, "--json"])
        assert not ended.value.code, capsys.readouterr().err
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    (job,) = say("featurize", str(raw), "out", "--no-wait", "--max-broken", "1", "--workers", "1")
    job_id = str(job["id"])
    assert (job["state"], job["dataset"]) == ("queued", "out")
    work_off(start, monkeypatch)
    assert client.wait(job_id).state == "succeeded"
    assert [one["state"] for one in say("jobs", "ls")] == ["succeeded"]
    assert [one["chain_id"] for one in say("jobs", "broken", job_id)] == [victim.parent.name]
    assert client.ref("out").digest == client.job(job_id).result["snapshot"]
    assert say("jobs", "retry", job_id)[0]["state"] == "queued"
    assert say("jobs", "cancel", job_id)[0]["state"] in ("cancelling", "cancelled")
    (made,) = say("tokens", "create", "trainer", "--scope", "read", "--days", "1")
    with Client(client.url, str(made["token"])) as reader:
        assert reader.ref("out").digest
        with pytest.raises(AccessDenied, match="scope"):
            reader.submit("out", str(raw))
    assert {one["label"] for one in say("tokens", "ls")} == {"all", "trainer"}
    client.revoke_token(str(made["id"]))
    with Client(client.url, str(made["token"])) as gone, pytest.raises(AccessDenied):
        gone.datasets()
    (hook,) = say("webhooks", "add", "http://127.0.0.1:9/x")
    assert [one["id"] for one in say("webhooks", "ls")] == [hook["id"]]
    assert client.deliveries(str(hook["id"])) == []
    client.remove_webhook(str(hook["id"]))
    assert client.webhooks() == []


def test_a_wrong_address_is_one_line(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--service", "nowhere", "jobs", "ls"])
    assert ended.value.code == 1 and "http://HOST:PORT" in capsys.readouterr().err
