"""A job whose dataset is a bucket: the same bytes, and the same after its driver is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bucket import local_bucket
from tests.featurize.job.stage import kill_tree

from evofeed.store import Dataset, gc
from evofeed.store.opening import open_storage

ROOT = Path(__file__).parents[3]
DRIVER = """
import sys
from pathlib import Path
from tests.featurize.job.stage import hold_still, run
from evofeed.store import DatasetWriter
if sys.argv[3:]:
    hold_still(Path(sys.argv[3]), DatasetWriter, "commit")
report = run(Path(sys.argv[1]), sys.argv[2], workers=1)
print(report.state, report.snapshot, report.resumed, report.num_shards)
"""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket in an S3 server of our own, and a ledger of our own for it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with local_bucket() as made:
        yield made.uri


def start(raw: Path, uri: str, *mark: Path) -> subprocess.Popen[str]:
    """A driver in an interpreter of its own: the S3 client does not survive a fork.

    With a mark it publishes only once that is there.
    """
    command = [sys.executable, "-c", DRIVER, str(raw), uri, *map(str, mark)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT)


def finish(driver: subprocess.Popen[str]) -> list[str]:
    said, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0
    return said.split()


@pytest.mark.slow
def test_a_job_on_s3_killed_and_run_again_publishes_the_same_snapshot(
    raw: Path, bucket: str, honest: tuple[str, Any], tmp_path: Path
) -> None:
    uri = f"{bucket}/data"
    storage = open_storage(uri)
    driver = start(raw, uri, tmp_path / "never")
    while not list(storage.files("shards/")):
        time.sleep(0.02)
        assert driver.poll() is None
    kill_tree(driver.pid)
    assert driver.wait() == -signal.SIGKILL
    driver.communicate()
    left = list(storage.files("shards/"))
    assert left and not list(storage.files("refs/")), "killed before it was done"
    assert gc(uri, dry_run=False, grace=-1.0).held, "its lease outlives it for a while"

    state, snapshot, resumed, shards = finish(start(raw, uri))
    assert (state, snapshot, shards) == ("published", honest[0], "6")
    assert int(resumed) >= len(left) - 1
    dataset = Dataset.open(uri)
    assert dataset.digest == honest[0]
    assert dataset.verify(deep=True) == []
    checksums = dict(zip(dataset, dataset.index["checksum"].to_pylist(), strict=True))
    assert checksums == honest[1]
    gc(uri, dry_run=False, grace=-1.0)
    kept = {item.key.split("/")[0] for item in storage.files("")}
    assert kept == {"shards", "parts", "snapshots", "refs"}
    assert len(list(storage.files("shards/"))) == 6
