"""What is made from the schema, and what breaks it: nothing undocumented, nothing lax, no 500."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.service.conftest import Start

from evofeed.service.auth import SCOPES, create_token

_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start_any", "scopes"),
    [
        ("sqlite", ("read",)),
        ("sqlite", ("read", "publish")),
        ("sqlite", SCOPES),
        ("postgres", SCOPES),  # who lacks a scope is refused before the database is asked
    ],
    indirect=["start_any"],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_every_operation_keeps_to_its_schema(
    start_any: Start, folder: Any, tmp_path: Path, scopes: tuple[str, ...]
) -> None:
    shutil.copytree(folder[0], tmp_path / "copy")
    datasets = {"demo": str(tmp_path / "copy")}
    client = start_any(auth="on", datasets=datasets, dataset_roots=(str(tmp_path),), max_jobs=0)
    _, token = create_token(start_any.database(), label="x", scopes=list(scopes))
    command = [sys.executable, "-m", "schemathesis.cli", "run"]
    command += [f"{str(client.base_url).rstrip('/')}/openapi.json"]
    command += ["-H", f"Authorization: Bearer {token}", "--checks", ",".join(_CHECKS)]
    command += ["--phases", "examples,coverage,stateful", "--max-examples", "2"]
    command += ["--generation-deterministic", "--request-timeout", "60", "--no-color"]
    # A stream has no end, and ColabFold's protocol answers errors in its own way.
    command += ["--exclude-path-regex", "events$|^/ticket|^/result", "--warnings", "off"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
