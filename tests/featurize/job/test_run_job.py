"""A job over a folder: what it publishes, and what it says instead."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import Digests, break_chains, checksums, run, run_forked, small_units

from evofeed.base.errors import InputError, JobError, RefConflict, StoreError
from evofeed.featurize import FeaturizeConfig, discover, featurize_chain
from evofeed.featurize.job import JobProgress, Ledger, driver, run_job, work
from evofeed.featurize.job.units import make_plan
from evofeed.featurize.job.work import expected_memory
from evofeed.store import Dataset, DatasetWriter, gc, leases
from evofeed.store.opening import open_storage
from evofeed.synth import write_synthetic


def test_every_chain_is_in_the_snapshot_as_featurize_chain_makes_it_with_its_clusters_size(
    raw: Path, tmp_path: Path
) -> None:
    def act() -> tuple[Any, list[JobProgress]]:
        seen: list[JobProgress] = []
        clusters = str(raw / "clusters.txt")
        return run(raw, tmp_path, clusters=clusters, progress=seen.append), seen

    report, seen = run_forked(act)
    dataset, sources = Dataset.open(str(tmp_path)), discover(str(raw))
    assert (report.exit_code, report.snapshot) == (0, dataset.digest)
    assert sorted(checksums(tmp_path)) == [source.chain_id for source in sources]
    source = sources[7]
    expected, stored = featurize_chain(source), dataset[source.chain_id]
    assert stored.sequence == expected.sequence
    assert (stored.msa == expected.msa).all()
    assert (stored.all_atom_positions == expected.all_atom_positions).all()
    assert stored.inputs == expected.inputs
    index = dataset.index
    sizes = dict(zip(index["chain_id"].to_pylist(), index["cluster_size"].to_pylist(), strict=True))
    for line in (raw / "clusters.txt").read_text().splitlines():
        for name in line.split():
            assert sizes[name[:4].lower() + name[4:]] == len(line.split())
    assert [p.good for p in seen] == sorted(p.good for p in seen)
    assert (seen[-1].good, seen[-1].share, seen[-1].seconds_left) == (12, 1.0, 0.0)


def test_a_plan_depends_on_the_chains_and_not_on_their_order(raw: Path) -> None:
    sources = discover(str(raw))
    config = FeaturizeConfig()
    with small_units():
        plan = make_plan(sources, config, None)
        assert make_plan(sources[::-1], config, None) == plan
        assert make_plan(sources[1:], config, None).digest != plan.digest
        assert make_plan(sources, FeaturizeConfig(max_templates=3), None).digest != plan.digest
    planned = [chain_id for unit in plan.units for chain_id in unit.chain_ids]
    assert sorted(planned) == [source.chain_id for source in sources]


def test_a_chain_more_costs_a_unit_or_two(tmp_path: Path) -> None:
    raw, aside = tmp_path / "raw", tmp_path / "aside"
    write_synthetic(raw, 36, seed=5, mean_length=40, mean_depth=16, mean_members=4)
    moved_out = sorted(raw.glob("alignments/*"))[3]
    moved_out.rename(aside)

    def act() -> tuple[Any, set[str]]:
        uris = (str(raw), str(tmp_path / "data"))
        report = run_job(*uris, executor="local", workers=2)
        return report, {shard.name for shard in Dataset.open(uris[1]).manifest.shards}

    first, shards = run_forked(act)
    aside.rename(moved_out)
    again, shards_again = run_forked(act)
    assert (first.num_good, again.num_good) == (35, 36)
    assert max(3, again.units - 2) <= again.resumed < again.units
    assert len(shards) >= 4
    assert 0 < len(shards_again - shards) <= 2


def test_memory_is_asked_for_by_the_largest_chain_unpacked(tmp_path: Path) -> None:
    for name, size in (("1aaa_A", 10), ("1bbb_A", 30_000)):
        (tmp_path / "alignments" / name).mkdir(parents=True)
        text = (">q\n" + "ACDEFGHIKL" * size + "\n").encode()
        (tmp_path / "alignments" / name / "x.a3m").write_bytes(text)
    with small_units():
        (unit,) = make_plan(discover(str(tmp_path)), FeaturizeConfig(), None).units
        assert unit.largest == 300_004
        packed = tmp_path / "alignments" / "1bbb_A" / "x.a3m"
        packed.with_suffix(".a3m.gz").write_bytes(packed.read_bytes())  # as if it were packed
        packed.unlink()
        (unit,) = make_plan(discover(str(tmp_path)), FeaturizeConfig(), None).units
        assert unit.largest == 5 * 300_004
    assert expected_memory(0, 0) < expected_memory(100 << 20, 100 << 20) == 3 << 29
    assert expected_memory(1, 1) % (256 << 20) == 0


def test_a_job_waits_for_garbage_collection_which_takes_nothing_from_a_running_one(
    raw: Path, tmp_path: Path, undisturbed: Digests
) -> None:
    def act() -> tuple[Any, list[int]]:
        driver._PATIENCE, num_held = 0.3, list[int]()
        collecting = leases.hold(open_storage(str(tmp_path)), "gc", "one")
        with collecting, pytest.raises(JobError, match="garbage is being collected"):
            run(raw, tmp_path)
        assert not list(tmp_path.glob("shards/*"))

        def collect(progress: JobProgress) -> None:
            num_held.append(len(gc(str(tmp_path), dry_run=False, grace=-1.0).held))

        return run(raw, tmp_path, progress=collect), num_held

    (tmp_path / "shards").mkdir()
    report, num_held = run_forked(act)
    assert report.snapshot == undisturbed.snapshot
    assert max(num_held) >= 10  # shard and part of each unit that was done by then
    assert not list(tmp_path.glob("leases/*"))


def test_broken_chains_are_listed_with_file_line_and_reason_and_too_many_publish_nothing(
    tmp_path: Path,
) -> None:
    raw, data = tmp_path / "raw", tmp_path / "data"
    write_synthetic(raw, 14, seed=2, mean_length=40, mean_depth=16)
    originals = {path: path.read_bytes() for path in raw.rglob("*.*")}
    damaged = break_chains(raw, 5)
    refused = run_forked(lambda: run(raw, data, max_broken=0.05))
    assert refused.exit_code == 1 and "max_broken" in refused.message
    assert not (data / "refs").exists()
    report = run_forked(lambda: run(raw, data, max_broken=0.5))
    assert report.exit_code == 0 and report.resumed == report.units
    assert {item["chain_id"]: item["path"] for item in report.broken} == damaged
    assert all(item["message"] and item["line"] for item in report.broken)
    assert report.num_good == 14 - 5 == len(Dataset.open(str(data)))
    written = json.loads(Path(report.path).read_text())
    assert written["broken"] == list(report.broken)
    dropped = Dataset.open(str(data)).manifest.dropped
    assert {item["chain_id"] for item in dropped} == set(damaged)
    for file in damaged.values():
        (raw / file).write_bytes(originals[raw / file])
    repaired = run_forked(lambda: run(raw, data))
    assert (repaired.num_broken, repaired.num_good) == (0, 14)


def test_a_ref_somebody_moved_is_not_overwritten_until_asked_again(
    raw: Path, tmp_path: Path
) -> None:
    def act() -> str:
        def publish_first(progress: JobProgress) -> None:  # somebody publishes just before us
            if progress.share == 1.0 and not list(tmp_path.glob("refs/*")):
                writer = DatasetWriter(str(tmp_path))
                writer.add(featurize_chain(discover(str(raw))[0]))
                writer.commit(config={"by": "somebody else"})

        with pytest.raises(RefConflict, match="run it again to publish"):
            run(raw, tmp_path, progress=publish_first)
        return Dataset.open(str(tmp_path)).digest

    theirs = run_forked(act)
    report = run_forked(lambda: run(raw, tmp_path))
    assert report.state == "published"
    assert report.resumed == report.units
    assert Dataset.open(str(tmp_path)).manifest.parent == theirs


def test_a_cancelled_job_stops_and_continues_later(
    raw: Path, tmp_path: Path, undisturbed: Digests
) -> None:
    def act() -> Any:
        def once(progress: JobProgress) -> None:
            if progress.good:
                ledger = Ledger(str(tmp_path / "jobs" / "ledger.sqlite"))
                ledger.request_cancel(ledger.jobs()[0].job_id)
                ledger.close()

        return run(raw, tmp_path, workers=1, progress=once)

    stopped = run_forked(act)
    assert (stopped.state, stopped.exit_code, stopped.snapshot) == ("cancelled", 1, None)
    assert 0 < stopped.num_good < 12
    finished = run_forked(lambda: run(raw, tmp_path))
    assert finished.snapshot == undisturbed.snapshot
    assert finished.resumed > 0


def test_a_full_disk_or_a_ledger_without_room_is_one_clear_error_and_nothing_is_lost(
    raw: Path, tmp_path: Path, undisturbed: Digests
) -> None:
    def no_shard() -> str:
        plain = work.write_shard

        def cramped(uri: str, records: Any) -> Any:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            return plain(uri, records)

        work.write_shard = cramped
        with pytest.raises(StoreError) as caught:
            run(raw, tmp_path)
        return str(caught.value)

    def no_ledger() -> str:
        def fill(progress: JobProgress) -> None:  # the worker is there already: for us alone
            if progress.good:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

        with pytest.raises(JobError) as caught:
            run(raw, tmp_path, workers=1, progress=fill)
        return str(caught.value)

    assert "no room" in run_forked(no_shard)
    assert not (tmp_path / "refs").exists()
    assert not list(tmp_path.glob("shards/*.arrow"))
    message = run_forked(no_ledger)
    assert message.startswith(f"{tmp_path}/jobs/ledger.sqlite: ledger: d")
    assert "files may have 1 bytes here: raise the limit (`ulimit -f`)" in message
    assert "\n" not in message
    assert run_forked(lambda: run(raw, tmp_path)).snapshot == undisturbed.snapshot


CAFE = os.fsdecode(b"caf\xe9")
NO_TEXT = r"caf\?: not UTF-8: rename it"


@pytest.mark.parametrize(
    ("source", "data", "options", "says"),
    [
        ("raw", "data", {"clusters": "none.txt"}, r"none\.txt"),
        ("raw/mmcif/none", "data", {}, "none"),
        (CAFE, "data", {}, NO_TEXT),
        ("raw", CAFE, {}, NO_TEXT),
        ("raw", "data", {"executor": "cloud"}, "executor"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_happens(
    raw: Path, tmp_path: Path, source: str, data: str, options: dict[str, Any], says: str
) -> None:
    wrong = ValueError if "executor" in options else InputError
    with pytest.raises(wrong, match=says):
        input_uri = str(raw.parent / raw.name) if source == "raw" else str(tmp_path / source)
        run_job(input_uri, str(tmp_path / data), **{"executor": "local", **options})
    assert not list(tmp_path.iterdir())
