"""What is made from the schema, and what breaks it: nothing undocumented, nothing lax, no 500."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.featurize.search.family import fasta, require_programs
from tests.service.conftest import Start, open_client

from evofeed.service.access.auth import SCOPES, create_token
from evofeed.service.jobs.queue import FAILED
from evofeed.service.jobs.scheduler import Scheduler

_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
SEQUENCE = "ACDEFGHIKLMNPQRSTVWY" * 2
# Where what is known leads to: each has to have answered somebody with what it is for.
_REACHED = {
    "download", "get_chain", "get_history", "get_job", "get_manifest",
    "get_policy", "get_ref", "get_shard", "get_statistics", "get_ticket", "list_rows",
    "post_msa", "post_pair", "put_policy", "watch_job",
}  # fmt: skip


def end_all(self: Scheduler) -> None:
    """Have every job fail at once: then a stream of its events has an end."""
    while (job := self._queue.claim(1)) is not None:
        chain = {"kind": "broken", "chain_id": "1abc_A", "message": "of a test"}
        self._queue.end(job, FAILED, error="of a test", chains=[chain])


@pytest.fixture
def known(
    start_any: Start, folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[httpx.Client, str, dict[str, list[Any]]]:
    """A service with something of everything, whose token it is of, and what it is called."""
    require_programs()
    monkeypatch.setattr(Scheduler, "wake", end_all)
    monkeypatch.setattr(Scheduler, "start", lambda self: None)
    shutil.copytree(folder[0], tmp_path / "copy")
    shutil.copytree(folder[0], tmp_path / "spare")
    (tmp_path / "raw").mkdir()
    client = start_any(
        auth="on",
        datasets={"demo": str(tmp_path / "copy"), "spare": str(tmp_path / "spare")},
        dataset_roots=(str(tmp_path),),
        input_roots=(str(tmp_path),),
        msa_databases={"uniref": fasta(tmp_path / "uniref.fasta", [("a", SEQUENCE)])},
        msa_workers=1,
    )
    _, token = create_token(start_any.database(), label="x", scopes=list(SCOPES))
    digest = folder[2]
    with open_client(str(client.base_url), token) as admin:

        def made(path: str, **body: Any) -> str:
            answer = admin.post(path, json=body)
            assert answer.status_code < 300, answer.text
            return str(answer.json().get("id", ""))

        manifest = admin.get(f"/v1/datasets/demo/snapshots/{digest}").json()
        ask = {"q": SEQUENCE, "mode": "all"}
        while (ticket := admin.post("/ticket/msa", data=ask).json())["status"] != "COMPLETE":
            assert ticket["status"] in ("PENDING", "RUNNING"), ticket
        return (
            client,
            token,
            {
                "path.name": ["demo"],
                "path.ref": ["main"],
                "path.digest": [digest, folder[1]],
                "path.chain_id": ["0003_A"],
                "path.shard": [shard["name"] for shard in manifest["shards"]],
                "path.job_id": [made("/v1/jobs", dataset="demo", input_uri=str(tmp_path / "raw"))],
                "path.ticket_id": [ticket["id"]],
                "query.world_size": [1, 2],
                "query.rank": [0],
                "body.q": [SEQUENCE],
                "body.mode": ["env", "all", "pairgreedy"],
                "body.dataset": ["demo"],
                "body.ref": ["other"],
                "body.digest": [digest],
                "body.input_uri": [str(tmp_path / "raw")],
                "body.uri": [str(tmp_path / name) for name in ("a", "b", "c")],
            },
        )


def config(known: dict[str, list[Any]], token: str) -> str:
    """schemathesis.toml: what is known is mixed with what is drawn."""
    lines = [f"headers = {{ Authorization = 'Bearer {token}' }}"]
    for key, values in known.items():
        lines += [
            f"[dictionaries.{re.sub(r'[^a-z_]', '_', key)}]",
            f"values = {json.dumps(values)}",
        ]
    refused = "'4xx', '5xx'"  # 431 of a line that is too long: not among what it expects itself
    lines += ["[checks.negative_data_rejection]", f"expected-statuses = [{refused}]"]
    lines += ["[dictionaries.spare]", "values = ['spare']", "[parameters]"]
    for key in known:
        name = re.sub(r"[^a-z_]", "_", key)
        lines.append(f'"{key}" = {{ dictionary = "{name}", probability = 0.8 }}')
    of_spare = "'path.name' = { dictionary = 'spare' }, 'path.ref' = 'main'"
    for path in ("datasets/{name}", "datasets/{name}/refs/{ref}"):
        lines += ["[[operations]]", f"include-name = 'DELETE /v1/{path}'"]  # others ask for it
        lines += [f"parameters = {{ {of_spare}, 'header.if-match' = '*' }}"]
        lines += ["phases = { coverage = { enabled = false }, stateful = { enabled = false } }"]
    # Of the tokens that are listed one is its own: that of nobody is asked for.
    lines += ["[[operations]]", "include-name = 'DELETE /v1/tokens/{token_id}'"]
    lines += ["parameters = { 'path.token_id' = '0123456789abcdef' }"]
    lines += ["phases = { coverage = { enabled = false }, stateful = { enabled = false } }"]
    lines += ["[[operations]]", "include-name = 'PUT /v1/datasets/{name}/refs/{ref}'"]
    lines += ["parameters = { 'header.if-match' = '*' }"]
    return "\n".join([*lines, ""])


@pytest.mark.slow
@pytest.mark.parametrize("start_any", ["postgres"], indirect=True)  # the stricter of the two
def test_every_operation_keeps_to_its_schema(known: Any, tmp_path: Path) -> None:
    client, token, names = known
    (tmp_path / "schemathesis.toml").write_text(config(names, token))
    command = [sys.executable, "-m", "schemathesis.cli", "run"]
    command += [f"{str(client.base_url).rstrip('/')}/openapi.json"]
    command += ["--checks", ",".join(_CHECKS), "--max-examples", "4"]
    command += ["--phases", "examples,coverage,fuzzing,stateful", "--generation-deterministic"]
    command += ["--request-timeout", "60", "--no-color", "--warnings", "off"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    said = client.get("/metrics", headers={"Authorization": f"Bearer {token}"}).text
    good = re.findall(r'requests_total\{endpoint="(\w+)",method="\w+",status="2', said)
    assert set(good) >= _REACHED, _REACHED - set(good)
