"""A job run again does what is missing or has changed, and only that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import on_stage, run

from evofeed.base.errors import ShardCorrupt
from evofeed.featurize import discover, featurize_chain
from evofeed.store import Dataset


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: os.truncate(path, 500)])
def test_a_shard_that_vanished_or_was_cut_short_is_made_again(
    raw: Path, done: Path, honest: tuple[str, Any], spoil: Any
) -> None:
    shard = sorted((done / "shards").iterdir())[0]
    data = shard.read_bytes()
    spoil(shard)
    again = on_stage(lambda: run(raw, done))
    assert (again.snapshot, again.resumed) == (honest[0], 5)
    assert shard.read_bytes() == data
    assert Dataset.open(str(done)).verify(deep=True) == []


def test_a_damaged_snapshot_is_written_anew(raw: Path, tmp_path: Path) -> None:
    first = on_stage(lambda: run(raw, tmp_path))
    for name in ("manifest.json", "index.arrow"):
        os.truncate(tmp_path / "snapshots" / str(first.snapshot) / name, 100)
        with pytest.raises(ShardCorrupt, match="run the `evofeed featurize` that made it again"):
            Dataset.open(str(tmp_path))
        assert on_stage(lambda: run(raw, tmp_path)).snapshot == first.snapshot
        assert Dataset.open(str(tmp_path)).verify(deep=True) == []


def test_only_what_changed_is_done_again_and_size_and_time_are_believed(
    raw: Path, done: Path, honest: tuple[str, Any], tmp_path: Path
) -> None:
    copy = shutil.copytree(raw, tmp_path / "raw")
    on_stage(lambda: run(copy, done))
    for file in copy.rglob("*.*"):
        os.utime(file, (1, 1))  # as a copy without -p would
    touched = on_stage(lambda: run(copy, done))
    assert (touched.snapshot, touched.resumed) == (honest[0], 0)
    hits = sorted(copy.glob("alignments/*/mgnify_hits.sto"))[3]
    hits.write_text(hits.read_text().replace("MGYP", "MGYQ"))  # as long, so the plan stays
    again = on_stage(lambda: run(copy, done))
    assert (again.state, again.resumed) == ("published", 5)
    assert again.snapshot != Dataset.open(str(done)).manifest.parent == honest[0]
    stat = hits.stat()
    hits.write_text(hits.read_text().replace("MGYQ", "MGYR"))
    os.utime(hits, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size and time
    assert on_stage(lambda: run(copy, done)).snapshot == again.snapshot


def _touched_hits(copy: Path, good: int) -> None:
    hits = sorted(copy.glob("alignments/*/mgnify_hits.sto"))[3]
    os.utime(hits, (good, good))


def _touched_templates(copy: Path, good: int) -> None:
    for file in (copy / "template_mmcif").iterdir():
        os.utime(file, (good, good))


def _alignments_more(copy: Path, _good: int) -> None:
    for source in discover(str(copy)):
        text = f">q\n{featurize_chain(source).sequence}\n"
        (copy / "alignments" / source.chain_id / "zz.a3m").write_text(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_touched_hits, "mgnify_hits.sto for one: run it again"),
        (_touched_templates, "template files changed while the job ran"),
        (_alignments_more, "zz.a3m for one: run it again"),
    ],
)
def test_what_changes_while_the_job_runs_is_not_published(
    raw: Path, tmp_path: Path, change: Callable[[Path, int], None], says: str
) -> None:
    copy, data = shutil.copytree(raw, tmp_path / "raw"), tmp_path / "data"
    shutil.copytree(copy / "mmcif", copy / "template_mmcif")
    report = on_stage(
        lambda: run(copy, data, workers=1, progress=lambda seen: change(copy, seen.good))
    )
    assert (report.state, report.snapshot) == ("failed", None)
    assert says in report.message
    assert on_stage(lambda: run(copy, data)).state == "published"
