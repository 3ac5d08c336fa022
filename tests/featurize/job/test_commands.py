from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.featurize.job.stage import break_chains, evofeed

from evofeed.featurize.job.show import interruptible
from evofeed.synth import write_synthetic

LOCAL = ("--executor", "local")
SOME_BROKEN = (*LOCAL, "--max-broken", "0.2")


@pytest.fixture(scope="module")
def broken_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "set"
    write_synthetic(folder, 20, seed=9, mean_length=40, mean_depth=16)
    break_chains(folder, 2)
    return folder


@pytest.fixture(scope="module")
def published(broken_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with what is good of them, which a first call would not publish."""
    dataset = tmp_path_factory.mktemp("data") / "set"
    assert "max_broken" in evofeed("featurize", broken_raw, dataset, *LOCAL, code=1).out
    evofeed("featurize", broken_raw, dataset, *SOME_BROKEN)
    return dataset


def test_featurize_says_what_it_made_what_is_broken_and_where_the_report_is(
    broken_raw: Path, published: Path
) -> None:
    words = ["featurize", broken_raw, published, *SOME_BROKEN]
    again = evofeed(*words).out
    for part in ("18 of 20 chains", "2 broken", "main -> ", ".report.json"):
        assert part in again
    assert "the query's own entry (" in again, "why templates were left out"
    command = [sys.executable, "-m", "evofeed.cli", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)  # and nothing else
    assert (report["state"], report["num_good"], report["num_broken"]) == ("published", 18, 2)
    assert done.stderr == ""


def test_check_reports_and_writes_nothing(broken_raw: Path, tmp_path: Path) -> None:
    found = evofeed("check", broken_raw, "--json").json
    assert (found["chains"], found["findings"]) == (20, [])
    assert "20 chains" in evofeed("check", broken_raw).out
    (tmp_path / "one.a3m").write_text("no alignment\n")
    assert evofeed("check", tmp_path, "--json", code=1).json["findings"]
    assert [path.name for path in tmp_path.iterdir()] == ["one.a3m"]


def test_jobs_are_listed_with_their_broken_chains_and_go_on_with_their_arguments(
    published: Path, tmp_path: Path
) -> None:
    (job,) = evofeed("jobs", "status", published, "--json").json
    assert (job["state"], job["chains_good"], job["chains_broken"]) == ("published", 18, 2)
    details = evofeed("jobs", "status", published, "--job", job["job_id"][:8]).out
    assert details.count("broken ") == 3  # the count, and one line each
    assert "unknown job" in evofeed("jobs", "status", published, "--job", "zz", code=1).err
    assert "published" in evofeed("jobs", "cancel", published, code=1).out
    for command, is_resumed in (("retry", False), ("run", True)):
        report = evofeed("jobs", command, published, "--json").json
        assert (report["state"], report["num_broken"]) == ("published", 2)
        assert (report["resumed"] == report["units"]) == is_resumed
    assert len(evofeed("jobs", "status", tmp_path, code=1).err.strip().splitlines()) == 1


def test_jobs_are_run_again_from_any_folder_and_where_their_dataset_is_now(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "one.a3m").write_text(">q\nACDEFGHIKL\n")
    (tmp_path / "clusters").write_text("one\n")
    options = (*LOCAL, "--clusters", "clusters")
    evofeed("featurize", "raw", "data", *options, cwd=tmp_path)
    assert "no broken chain" in evofeed("jobs", "retry", tmp_path / "data").out
    (tmp_path / "data").rename(tmp_path / "moved")
    elsewhere = evofeed("jobs", "run", tmp_path / "moved")
    assert "1 of 1 unit done before" in elsewhere.out
    assert not (tmp_path / "data").exists()
    assert "published" in evofeed("jobs", "status", tmp_path / "moved").out


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, KeyboardInterrupt()), (signal.SIGTERM, SystemExit(143))],
)
def test_an_interrupted_command_says_that_its_work_is_kept(
    number: signal.Signals, expected: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(type(expected)) as end, interruptible():
        signal.raise_signal(number)
    assert end.value.args == expected.args
    assert capsys.readouterr().err.startswith("interrupted: finished work is kept")
    assert signal.getsignal(signal.SIGTERM) == handler
