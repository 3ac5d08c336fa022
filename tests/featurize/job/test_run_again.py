"""A job run again does what is missing or has changed, only that, wherever its files lie now."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import Digests, checksums, run, run_forked, small_units

from evofeed.base.errors import ShardCorrupt
from evofeed.featurize import discover, featurize_chain
from evofeed.featurize.job import Ledger, run_job
from evofeed.store import Dataset, add_entries


def test_shards_that_vanished_or_were_cut_short_are_made_again(
    raw: Path, done: Path, undisturbed: Digests
) -> None:
    gone, short, *_ = sorted((done / "shards").iterdir())
    data = [shard.read_bytes() for shard in (gone, short)]
    gone.unlink()
    os.truncate(short, 500)
    again = run_forked(lambda: run(raw, done))
    assert (again.snapshot, again.resumed) == (undisturbed.snapshot, 4)
    assert [shard.read_bytes() for shard in (gone, short)] == data
    assert Dataset.open(str(done)).verify(deep=True) == []


def test_what_came_after_a_published_job_is_what_it_is_published_on(
    raw: Path, done: Path, undisturbed: Digests
) -> None:
    later = add_entries(str(done), [], expect=undisturbed.snapshot, config={"made": "later"})
    again = run_forked(lambda: run(raw, done))
    assert (again.state, again.resumed) == ("published", again.units)
    assert Dataset.open(str(done)).manifest.parent == later.digest


def test_a_damaged_snapshot_is_written_anew_where_it_was_made_or_is_now(
    raw: Path, done: Path, undisturbed: Digests, tmp_path: Path
) -> None:
    for name in ("manifest.json", "index.arrow", "manifest.json"):
        os.truncate(done / "snapshots" / undisturbed.snapshot / name, 100)
        with pytest.raises(ShardCorrupt, match="run the `evofeed featurize` that made it again"):
            Dataset.open(str(done))
        assert run_forked(partial(run, raw, done)).snapshot == undisturbed.snapshot
        assert Dataset.open(str(done)).verify(deep=True) == []
        if name == "index.arrow":
            done = done.rename(tmp_path / "moved")


def test_only_what_moved_or_changed_is_done_again_and_size_and_time_are_believed(
    raw: Path, done: Path, undisturbed: Digests, tmp_path: Path
) -> None:
    copy = shutil.copytree(raw, tmp_path / "raw")
    moved = run_forked(lambda: run(copy, done))
    assert (moved.snapshot, moved.resumed) == (undisturbed.snapshot, 0)
    again = run_forked(lambda: run(copy, done))
    assert (again.snapshot, again.resumed) == (undisturbed.snapshot, again.units)
    for file in copy.rglob("*.*"):
        os.utime(file, (1, 1))  # as a copy without -p would
    touched = run_forked(lambda: run(copy, done))
    assert (touched.snapshot, touched.resumed) == (undisturbed.snapshot, 0)
    hits = sorted(copy.glob("alignments/*/mgnify_hits.sto"))[3]
    hits.write_text(hits.read_text().replace("MGYP", "MGYQ"))  # as long, so the plan stays
    again = run_forked(lambda: run(copy, done))
    assert (again.state, again.resumed) == ("published", 5)
    assert again.snapshot != Dataset.open(str(done)).manifest.parent == undisturbed.snapshot
    stat = hits.stat()
    hits.write_text(hits.read_text().replace("MGYQ", "MGYR"))
    os.utime(hits, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size and time
    assert run_forked(lambda: run(copy, done)).snapshot == again.snapshot


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
    report = run_forked(
        lambda: run(copy, data, workers=1, progress=lambda seen: change(copy, seen.good))
    )
    assert (report.state, report.snapshot) == ("failed", None)
    assert says in report.message
    assert run_forked(lambda: run(copy, data)).state == "published"


def test_input_and_dataset_may_be_written_in_any_way(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(raw, tmp_path / "raw")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(raw / "mmcif", tmp_path / "templates")
    spellings: list[tuple[str, str, Any]] = [
        ("raw", "data", "templates"),
        ("./raw/", "data/", Path("templates")),
        (f"{tmp_path}/raw", f"file://{tmp_path}/data", tmp_path / "templates"),
    ]

    def act(raw_uri: str, data_uri: str, templates: Any) -> Any:
        discover_args = {"template_mmcif_dir": templates}
        with small_units():
            return run_job(raw_uri, data_uri, executor="local", discover_args=discover_args)

    reports = [run_forked(lambda way=way: act(*way)) for way in spellings]
    assert len({report.snapshot for report in reports}) == 1
    assert [report.resumed for report in reports] == [0, 6, 6]


def test_a_dataset_beside_its_input_is_not_taken_for_structures(tmp_path: Path) -> None:
    (tmp_path / "one.a3m").write_text(">q\nACDEFGHIKL\n")
    for where in ({}, {"ledger": str(tmp_path / "ledger.sqlite")}):
        first = run_forked(lambda where=where: run(tmp_path, tmp_path / "data", **where))
        again = run_forked(lambda where=where: run(tmp_path, tmp_path / "data", **where))
        assert (again.snapshot, again.resumed) == (first.snapshot, first.units)


def test_two_datasets_in_one_ledger_each_get_all_chains(
    raw: Path, tmp_path: Path, undisturbed: Digests
) -> None:
    ledger = str(tmp_path / "ledger.sqlite")
    for name in ("one", "other"):
        report = run_forked(lambda name=name: run(raw, tmp_path / name, ledger=ledger))
        assert (report.snapshot, report.resumed) == (undisturbed.snapshot, 0)
        assert Dataset.open(str(tmp_path / name)).verify(deep=True) == []
    again = run_forked(lambda: run(raw, tmp_path / "one", ledger=ledger))
    assert again.resumed == again.units


def used_templates(data: Path, what: str = "names") -> list[set[str]]:
    """Names of the template files that each unit of the newest job has read, or missed."""
    ledger = Ledger(str(data / "jobs" / "ledger.sqlite"))
    units = ledger.units(ledger.jobs()[0].job_id)
    ledger.close()
    return [{n for t in unit["shard"]["templates"] for n in t[what]} for unit in units]


def used_by_some(used: list[set[str]]) -> list[str]:
    """Names that some units have and others lack."""
    return [n for n in sorted(set().union(*used)) if not all(n in names for names in used)]


def test_a_template_file_that_comes_later_or_is_corrected_redoes_the_units_it_is_for_and_no_other(
    raw: Path, tmp_path: Path
) -> None:
    copy, templates = shutil.copytree(raw, tmp_path / "raw"), tmp_path / "templates"
    shutil.copytree(copy / "mmcif", templates)
    data, full, fresh = (tmp_path / name for name in ("data", "full", "fresh"))

    def job(dataset: Path) -> Any:
        return run(copy, dataset, discover_args={"template_mmcif_dir": str(templates)})

    complete = run_forked(lambda: job(full))
    added, wrong, *_ = used_by_some(used_templates(full))
    text = (templates / added).read_bytes()
    (templates / added).unlink()
    first = run_forked(lambda: job(data))
    missed = used_templates(data, "missing")
    (templates / "9zzz.cif").write_bytes(text)  # which no chain needs
    other = run_forked(lambda: job(data))
    assert (other.snapshot, other.resumed) == (first.snapshot, first.units)
    (templates / added[1:3]).mkdir()
    (templates / added[1:3] / f"{added}.gz").write_bytes(gzip.compress(text))
    again = run_forked(lambda: job(data))
    affected = sum(added.partition(".")[0] in ids for ids in missed)
    assert 0 < affected < again.units
    assert again.resumed == again.units - affected
    assert checksums(data) == checksums(full) != {}

    used = used_templates(data)

    def corrected() -> Any:
        """Run in a process that has read the old file, which it must not use."""
        for source in discover(str(copy), template_mmcif_dir=str(templates)):
            featurize_chain(source)
        (templates / wrong).write_text("data_broken\n" + (templates / wrong).read_text())
        return job(data)

    mended = run_forked(corrected)
    assert (mended.state, mended.message) == ("published", "")
    assert mended.resumed == mended.units - sum(wrong in names for names in used) < mended.units
    assert run_forked(lambda: job(fresh)).snapshot != complete.snapshot
    assert checksums(data) == checksums(fresh)
    assert run_forked(lambda: job(data)).resumed == mended.units
    for dates in ("{}", "{ }"):
        (copy / "mmcif_cache.json").write_text(dates)
        assert run_forked(lambda: job(data)).resumed == 0, "every unit has hits"
