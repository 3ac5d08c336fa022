"""What /openapi.json says of the routes is true, and every refusal is a problem of one form.

What is made from it, and what breaks it: nothing undocumented, nothing lax, no 500.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import httpx
import pytest
import yaml
from tests.featurize.search.family import fasta, require_programs
from tests.service.conftest import Start

from evofeed.service.access.auth import SCOPES
from evofeed.service.jobs.queue import FAILED
from evofeed.service.jobs.scheduler import Scheduler


@pytest.fixture(scope="module")
def schema(served) -> dict[str, Any]:
    found: dict[str, Any] = served.client.get("/openapi.json").json()
    return found


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_everything_a_caller_may_send_is_described(schema) -> None:
    for method, path, operation in operations(schema):
        assert operation["description"], (method, path)
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), (method, path, parameter["name"])


def test_a_route_tells_its_scope_and_whether_it_takes_a_key(schema) -> None:
    paths = schema["paths"]
    assert paths["/healthz"]["get"]["security"] == []
    assert paths["/v1/jobs"]["post"]["security"][0] == {"token": ["jobs"]}

    def takes_key(path: str) -> int:
        names = [p["name"] for p in paths[path]["post"].get("parameters", [])]
        return names.count("Idempotency-Key")

    assert takes_key("/v1/jobs") == 1
    assert takes_key("/v1/tokens") == 0, "its answer holds a secret and is never kept"


JSON = {"Content-Type": "application/json"}


def requests() -> Iterator[tuple[str, Any, int, str]]:
    """Method and path, what is sent, the status, and words of the problem."""
    path = Path(__file__).with_name("data") / "refused.yaml"
    for group in yaml.safe_load(path.read_text()):
        line, status, code = group["request"], group["status"], group.get("code", "")
        for given in group.get("given", [""]):
            text, says = given if isinstance(given, list) else (given, code)
            if isinstance(text, dict):
                text = json.dumps(group["body"] | text)
            if line.startswith("GET"):
                yield f"{line}?{text}", {}, status, says
            else:
                yield line, {"content": text, "headers": JSON}, status, says


DATASETS, SEARCH = "POST /v1/datasets", "POST /v1/datasets/demo/snapshots/{digest}/chains/search"
DEEP = [
    f'{{"where": {where}}}'
    for where in ('{"not":' * 30 + '{"all":[]}' + "}" * 30, "[" * 100_000,
                  json.dumps({"all": [{"all": []}] * 300}))
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "options", "status", "says"),
    [
        *requests(),
        *((SEARCH, {"content": text, "headers": JSON}, 422, "") for text in DEEP),
        ("POST /v1/datasets/demo/urls", {"json": {"shards": ["a.arrow"] * 1001}}, 422, ""),
        ("POST /v1/jobs", {"json": {"dataset": "demo", "input_uri": "/raw",
                                    "config": {"min_align_ratio": 10**400}}}, 422, "bad_request"),
        *((DATASETS, {"json": {"name": "x", "uri": uri}}, 422, "")
          for uri in (f"/{'x' * 256}", "/" + "a/" * 1600)),
        (DATASETS, {"content": b"\xff" * 9}, 422, ""),
        (DATASETS, {"data": {"name": "x"}}, 422, ""),
        (DATASETS, {"content": '{"name": "x", "uri": "/tmp"}',  # of a foreign page
                    "headers": {"Content-Type": "text/plain"}}, 422, ""),
        (DATASETS, {"content": b"x" * (2 << 20)}, 413, ""),
        ("GET /v1/config", {"headers": {"Host": "rebound.example"}}, 421, ""),
    ],
)  # fmt: skip
def test_every_refusal_is_a_problem_of_one_form(
    served, schema, line: str, options: dict[str, Any], status: int, says: str
) -> None:
    method, path = line.replace("{digest}", served.second).split(" ", 1)
    answer: httpx.Response = served.client.request(method, path, **options)
    assert answer.status_code == status and says in answer.text, answer.text
    assert len(answer.text) < 3000
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store" and answer.headers["x-request-id"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    problem = answer.json()
    form = schema["components"]["schemas"]["Problem"]
    assert set(form["required"]) <= set(problem) <= set(form["properties"])
    assert problem["status"] == status and problem["detail"] and problem["next"]
    assert re.fullmatch(r"[a-z_]+", problem["code"])


def test_a_generated_client_has_names_tags_and_statuses(schema) -> None:
    seen = [operation["operationId"] for _, _, operation in operations(schema)]
    assert len(set(seen)) == len(seen) and {"get_ref", "put_ref", "submit_job"} <= set(seen)
    for method, path, operation in operations(schema):
        assert operation["tags"] and operation["summary"] != operation["operationId"]
        assert {"4XX", "5XX"} <= set(operation["responses"]), (method, path)
    assert schema["servers"]


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
    start_any: Start, folder: Any, tmp_path: Path, jobs_wait: None, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What is known of a service with something of everything, a token among it."""
    require_programs()
    monkeypatch.setattr(Scheduler, "wake", end_all)
    for name in ("copy", "spare"):
        shutil.copytree(folder[0], tmp_path / name)
    (tmp_path / "raw").mkdir()
    start_any(
        auth="on",
        datasets={"demo": str(tmp_path / "copy"), "spare": str(tmp_path / "spare")},
        dataset_roots=(str(tmp_path),),
        input_roots=(str(tmp_path),),
        msa_databases={"uniref": fasta(tmp_path / "uniref.fasta", [("a", SEQUENCE)])},
        msa_workers=1,
    )
    token, (_, first, digest) = start_any.token(*SCOPES), folder
    admin, raw = start_any.client(token), str(tmp_path / "raw")
    job = admin.post("/v1/jobs", json={"dataset": "demo", "input_uri": raw})
    assert job.status_code == 202, job.text
    manifest = admin.get(f"/v1/datasets/demo/snapshots/{digest}").json()
    ask = {"q": SEQUENCE, "mode": "all"}
    while (ticket := admin.post("/ticket/msa", data=ask).json())["status"] != "COMPLETE":
        assert ticket["status"] in ("PENDING", "RUNNING"), ticket
        time.sleep(0.1)
    shards = json.dumps([shard["name"] for shard in manifest["shards"]])
    own = {"token": token, "job": job.json()["id"], "ticket": ticket["id"], "shards": shards}
    return own | {"first": first, "digest": digest, "sequence": SEQUENCE, "folder": str(tmp_path)}


@pytest.mark.slow
@pytest.mark.parametrize("start_any", ["postgres"], indirect=True)  # the stricter of the two
def test_every_operation_keeps_to_its_schema(known: Any, start_any: Start, tmp_path: Path) -> None:
    asked = Path(__file__).with_name("data") / "schemathesis.toml"
    (tmp_path / "schemathesis.toml").write_text(Template(asked.read_text()).substitute(known))
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{start_any.url}/openapi.json"]
    command += ["--checks", ",".join(_CHECKS), "--max-examples", "2"]
    command += ["--phases", "examples,coverage,fuzzing,stateful", "--generation-deterministic"]
    command += ["--request-timeout", "60", "--no-color", "--warnings", "off"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    said = start_any.client(known["token"]).get("/metrics").text
    good = re.findall(r'requests_total\{endpoint="(\w+)",method="\w+",status="2', said)
    assert set(good) >= _REACHED, _REACHED - set(good)
