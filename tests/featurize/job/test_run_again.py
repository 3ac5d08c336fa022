"""A job run again does what is missing or has changed, and only that."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import checksums, on_stage, run

from evofeed.base.errors import ShardCorrupt
from evofeed.featurize import discover, featurize_chain
from evofeed.featurize.job import JobProgress
from evofeed.store import Dataset
from evofeed.synth import write_synthetic


@pytest.mark.parametrize("shard_nbytes", [0, 128 << 20])
@pytest.mark.parametrize("spoil", [lambda path: os.truncate(path, 500), Path.unlink])
def test_a_shard_that_vanished_or_was_cut_short_is_made_again(
    raw: Path, done: Path, shard_nbytes: int, spoil: Any
) -> None:
    first = on_stage(lambda: run(raw, done, shard_nbytes=shard_nbytes))
    assert first.resumed == first.units == 6
    shard = sorted((done / "shards").iterdir())[0]
    data = shard.read_bytes()
    spoil(shard)
    again = on_stage(lambda: run(raw, done, shard_nbytes=shard_nbytes))
    assert again.snapshot == first.snapshot
    assert again.resumed == (0 if shard_nbytes else 5)
    assert shard.read_bytes() == data
    assert Dataset.open(str(done)).verify(deep=True) == []


@pytest.mark.parametrize("name", ["manifest.json", "index.arrow"])
def test_a_damaged_snapshot_is_written_anew(raw: Path, tmp_path: Path, name: str) -> None:
    first = on_stage(lambda: run(raw, tmp_path))
    os.truncate(tmp_path / "snapshots" / str(first.snapshot) / name, 100)
    with pytest.raises(ShardCorrupt, match="run the `evofeed featurize` that made it again"):
        Dataset.open(str(tmp_path))
    assert on_stage(lambda: run(raw, tmp_path)).snapshot == first.snapshot
    assert Dataset.open(str(tmp_path)).verify(deep=True) == []


def test_shards_of_units_are_joined_and_the_units_are_not_done_again(
    raw: Path, tmp_path: Path
) -> None:
    plain = on_stage(lambda: run(raw, tmp_path / "plain", shard_nbytes=0))
    joined = on_stage(lambda: run(raw, tmp_path / "joined"))
    assert (plain.num_shards, joined.num_shards) == (6, 1)
    assert checksums(tmp_path / "joined") == checksums(tmp_path / "plain")
    (shard,) = (tmp_path / "joined" / "shards").iterdir()  # those of the units are gone
    assert shard.stat().st_size == joined.num_bytes
    again = on_stage(lambda: run(raw, tmp_path / "joined"))
    assert (again.snapshot, again.resumed, again.units) == (joined.snapshot, 6, 6)
    smaller = on_stage(lambda: run(raw, tmp_path / "joined", shard_nbytes=joined.num_bytes // 3))
    assert (smaller.num_shards, smaller.resumed) == (3, 6)  # taken out of the joined shard
    assert checksums(tmp_path / "joined") == checksums(tmp_path / "plain")
    assert Dataset.open(str(tmp_path / "joined")).verify(deep=True) == []


def test_only_units_whose_input_changed_are_done_again(raw: Path, tmp_path: Path) -> None:
    copy = tmp_path / "raw"
    write_synthetic(copy, 12, seed=5, mean_length=40, mean_depth=16, mean_members=4)
    first = on_stage(lambda: run(copy, tmp_path / "data"))
    hits = sorted(copy.glob("alignments/*/mgnify_hits.sto"))[3]
    text = hits.read_text()
    hits.write_text(text.replace("MGYP", "MGYQ"))  # as long as before, so the plan stays
    again = on_stage(lambda: run(copy, tmp_path / "data"))
    assert again.state == "published"
    assert again.resumed == again.units - 1
    assert again.snapshot != first.snapshot
    assert Dataset.open(str(tmp_path / "data")).manifest.parent == first.snapshot


def test_inputs_are_known_by_content_where_size_and_time_do_not_differ(tmp_path: Path) -> None:
    copy, data = tmp_path / "raw", tmp_path / "data"
    write_synthetic(copy, 6, seed=5, mean_length=40, mean_depth=16, mean_members=4)
    first = on_stage(lambda: run(copy, data))
    for file in copy.rglob("*.*"):
        os.utime(file, (1, 1))  # as a copy without -p would
    touched = on_stage(lambda: run(copy, data))
    assert (touched.snapshot, touched.resumed) == (first.snapshot, first.units)
    hits = sorted(copy.glob("alignments/*/mgnify_hits.sto"))[3]
    hits.write_text(hits.read_text().replace("MGYP", "MGYQ"))
    os.utime(hits, (1, 1))  # another content behind the same size and time
    assert on_stage(lambda: run(copy, data)).snapshot == first.snapshot
    checked = on_stage(lambda: run(copy, data, check_content=True))
    assert checked.resumed == checked.units - 1
    assert checked.snapshot != first.snapshot
    again = on_stage(lambda: run(copy, data, check_content=True))
    assert (again.snapshot, again.resumed) == (checked.snapshot, checked.units)


def test_an_input_that_changes_while_the_job_runs_is_not_published(tmp_path: Path) -> None:
    copy, data = tmp_path / "raw", tmp_path / "data"
    write_synthetic(copy, 6, seed=5, mean_length=40, mean_depth=16, mean_members=4)
    hits = sorted(copy.glob("alignments/*/mgnify_hits.sto"))[3]

    def touch(progress: JobProgress) -> None:
        os.utime(hits, (progress.good, progress.good))

    report = on_stage(lambda: run(copy, data, progress=touch))
    assert (report.state, report.snapshot) == ("failed", None)
    assert f"{hits.relative_to(copy)} for one: run it again" in report.message
    assert on_stage(lambda: run(copy, data)).state == "published"


def test_an_alignment_that_comes_while_the_job_runs_is_not_used_in_silence(
    raw: Path, tmp_path: Path, honest: tuple[str, Any]
) -> None:
    copy, data = tmp_path / "raw", tmp_path / "data"
    shutil.copytree(raw, copy)
    extras = {
        copy / "alignments" / source.chain_id / "zz.a3m": featurize_chain(source).sequence
        for source in discover(str(copy))
    }

    def add(progress: JobProgress) -> None:
        for file, sequence in extras.items():
            file.write_text(f">q\n{sequence}\n>new\n{'A' * len(sequence)}\n")

    report = on_stage(lambda: run(copy, data, workers=1, progress=add))
    assert (report.state, report.snapshot) == ("failed", None)
    assert "zz.a3m for one: run it again" in report.message
    for file in extras:
        file.unlink()
    again = on_stage(lambda: run(copy, data))
    assert (again.state, checksums(data)) == ("published", honest[1])


def test_a_repaired_chain_joins_on_the_next_run(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_synthetic(raw, 9, seed=4, mean_length=40, mean_depth=16)
    victim = sorted(raw.glob("mmcif/*.cif"))[2]
    good = victim.read_text()
    victim.write_text(good[:3000])
    assert on_stage(lambda: run(raw, tmp_path / "data", max_broken=0.5)).num_broken == 1
    victim.write_text(good)
    report = on_stage(lambda: run(raw, tmp_path / "data"))
    assert (report.num_broken, report.num_good) == (0, 9)
