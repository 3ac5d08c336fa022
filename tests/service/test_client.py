"""The client, and the commands that speak through it, against a running service."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conftest import evofeed
from tests.service.conftest import Start
from tests.store.test_http import served

from evofeed.base.errors import AccessDenied, RefConflict, ServiceError
from evofeed.service import Client
from evofeed.service.access.auth import SCOPES
from evofeed.synth import write_synthetic


@pytest.fixture
def client(start: Start, folder, tmp_path: Path, jobs_wait: None) -> Iterator[Client]:
    """A client with every right."""
    shutil.copytree(folder[0], tmp_path / "copy")
    start(
        auth="on",
        dataset_roots=(str(tmp_path),),
        input_roots=(str(tmp_path),),
        datasets={"demo": str(tmp_path / "copy"), "out": str(tmp_path / "out")},
    )
    with Client(start.url, start.token(*SCOPES)) as made:
        yield made


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>sign in</html>", "b'<html>sign in</html>', as no service of evofeed"),
        (b"[]", "as no service of evofeed"),
        (b"{}", "without 'tokens'"),
        (b'{"tokens": [{}], "next": null}', "not a Token .*missing"),
        (b'{"tokens": [], "next": "x"}', "the same page again"),
    ],
)
def test_what_no_service_of_ours_answers_is_one_error(body: bytes, says: str) -> None:
    """A page of a proxy, another service, a cache that knows no cursors."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    with served(Other) as url, pytest.raises(ServiceError, match=says):
        Client(url).tokens()


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
    rows = list(client.chains("demo", "v1", min_length=40, max_length=90, method=["solution nmr"]))
    assert rows and all(40 <= row["num_res"] <= 90 for row in rows)
    table = client.table("demo", "v1", min_length=40, max_length=90, method=["solution nmr"])
    assert isinstance(table, pa.Table) and table["chain_id"].to_pylist() == [
        row["chain_id"] for row in rows
    ]
    where = {"column": "has_structure", "op": "==", "value": True}
    assert client.table("demo", "v1", where=where, columns=["chain_id"]).num_rows == 0
    with pytest.raises(ServiceError, match="min_lenght"):
        list(client.chains("demo", min_lenght=3))  # type: ignore[call-arg]


def test_what_is_wrong_is_said_in_the_words_of_whoever_asked(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServiceError, match="http://HOST:PORT"):
        Client("127.0.0.1:8461")
    monkeypatch.delenv("EVOFEED_TOKEN", raising=False)
    with Client(client.url) as nobody, pytest.raises(AccessDenied, match="set EVOFEED_TOKEN"):
        nobody.datasets()
    with pytest.raises(TypeError, match="max_brokn"):
        client.submit("out", "/nowhere", max_brokn=0.5)  # type: ignore[call-arg]
    with pytest.raises(ServiceError, match=r"16 digits 0-9a-f, not 'typo'"):
        client.job("typo")
    with pytest.raises(ServiceError, match=r"no snapshot 000000000000.*GET .../snapshots"):
        client.move_ref("demo", "main", "0" * 64, expect=client.ref("demo").digest)
    with pytest.raises(ServiceError, match="no databases to search"):
        client.search("ACDEFGHIKL")


def test_a_job_that_was_cancelled_is_no_success_and_one_key_is_one_job(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "raw").mkdir()
    job = client.submit("out", str(tmp_path / "raw"))
    assert client.cancel(job.id).state == "cancelled"
    with pytest.raises(ServiceError, match=f"job {job.id} was cancelled"):
        client.wait(job.id)
    key = {"Idempotency-Key": "mine"}
    new = {"dataset": "out", "input_uri": str(tmp_path / "raw")}
    one, two = (client._send("POST", "/v1/jobs", new, key)["id"] for _ in range(2))
    assert one == two and len(client.jobs()) == 2
    with pytest.raises(ServiceError, match="used for another job"):
        client._send("POST", "/v1/jobs", new | {"message": "another"}, key)


def test_jobs_from_the_command_line(
    client: Client, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    write_synthetic(raw, 3, seed=1)
    victim = sorted(raw.rglob("*.a3m"))[0]
    victim.write_bytes(b">only\nAC\n>ragged\nACDEFGHIKL\n")
    monkeypatch.setenv("EVOFEED_TOKEN", str(client._token))

    def run(*words: str) -> list[str]:
        return evofeed(*words).out.splitlines()

    def say(*words: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in run(*words, "--json")]

    url, of_out = client.url, f"{client.url}/v1/datasets/out"
    how = ("--no-wait", "--max-broken", "1", "--workers", "1", "--preset", "default")
    (job,) = say("featurize", str(raw), of_out, *how)
    job_id = str(job["id"])
    assert (job["state"], job["dataset"]) == ("queued", "out")
    start.work_off()
    assert client.wait(job_id).state == "succeeded"
    assert [one["state"] for one in say("jobs", "ls", url)] == ["succeeded"]
    assert "2 good, 1 broken" in run("jobs", "ls", url)[0]
    assert [one["chain_id"] for one in say("jobs", "broken", url, job_id)] == [victim.parent.name]
    assert f"/{victim.name}:3: row 2 has" in run("jobs", "broken", url, job_id)[0]
    assert client.ref("out").digest == client.job(job_id).result["snapshot"]
    assert say("jobs", "retry", url, job_id)[0]["state"] == "queued"
    assert say("jobs", "cancel", url, job_id)[0]["state"] in ("cancelling", "cancelled")
    assert [one["previous"] for one in say("snapshots", "history", of_out)] == [None]
    assert say("snapshots", "tag", of_out, "v1")[0]["digest"] == client.ref("out").digest
    for rules in ('{"protected": true}', '{"reviewer": "admin"}'):
        (kept,) = say("snapshots", "policy", of_out, "v1", "--set", rules)
        assert kept == client.policy("out", "v1")
        assert json.loads(rules).items() <= client.policy("out", "v1").items()
    assert run("snapshots", "rm-ref", of_out, "v1") == ["deleted v1"]
    assert [one.name for one in client.refs("out")] == ["main"]
    (made,) = say("tokens", "create", "trainer", url, "--scope", "read", "--days", "1")
    with Client(client.url, str(made["token"])) as reader:
        assert reader.ref("out").digest
        with pytest.raises(AccessDenied, match="scope"):
            reader.submit("out", str(raw))
    assert {one["label"] for one in say("tokens", "ls", url)} == {"a test", "trainer"}
    client.revoke_token(str(made["id"]))
    with Client(client.url, str(made["token"])) as gone, pytest.raises(AccessDenied):
        gone.datasets()
