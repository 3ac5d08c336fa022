from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.featurize.job.stage import break_chains, evofeed

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
    strict = evofeed("featurize", broken_raw, dataset, *LOCAL)
    assert strict.returncode == 1 and "max_broken" in strict.stdout
    done = evofeed("featurize", broken_raw, dataset, *SOME_BROKEN)
    assert done.returncode == 0, done.stderr
    return dataset


def test_featurize_says_what_it_made_what_is_broken_and_where_the_report_is(
    broken_raw: Path, published: Path
) -> None:
    words = ["featurize", broken_raw, published, *SOME_BROKEN]
    again = evofeed(*words)
    assert again.returncode == 0
    for part in ("18 of 20 chains", "2 broken", "main -> ", ".report.json"):
        assert part in again.stdout
    assert "the query's own entry (" in again.stdout, "why templates were left out"
    command = [sys.executable, "-m", "evofeed.cli", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)  # and nothing else
    assert (report["state"], report["num_good"], report["num_broken"]) == ("published", 18, 2)
    assert done.stderr == ""


def test_check_reports_and_writes_nothing(broken_raw: Path, tmp_path: Path) -> None:
    found = json.loads(evofeed("check", broken_raw, "--json").stdout)
    assert (found["chains"], found["findings"]) == (20, [])
    assert "20 chains" in evofeed("check", broken_raw).stdout
    (tmp_path / "one.a3m").write_text("no alignment\n")
    bad = evofeed("check", tmp_path, "--json")
    assert bad.returncode == 1 and json.loads(bad.stdout)["findings"]
    assert [path.name for path in tmp_path.iterdir()] == ["one.a3m"]


def test_jobs_are_listed_with_their_broken_chains_and_go_on_with_their_arguments(
    published: Path, tmp_path: Path
) -> None:
    (job,) = json.loads(evofeed("jobs", "status", published, "--json").stdout)
    assert (job["state"], job["chains_good"], job["chains_broken"]) == ("published", 18, 2)
    details = evofeed("jobs", "status", published, "--job", job["job_id"][:8]).stdout
    assert details.count("broken ") == 3  # the count, and one line each
    assert "unknown job" in evofeed("jobs", "status", published, "--job", "zz").stderr
    ended = evofeed("jobs", "cancel", published)
    assert ended.returncode == 1 and "published" in ended.stdout
    for command, is_resumed in (("retry", False), ("run", True)):
        done = evofeed("jobs", command, published, "--json")
        report = json.loads(done.stdout)
        assert done.returncode == 0, done.stderr
        assert (report["state"], report["num_broken"]) == ("published", 2)
        assert (report["resumed"] == report["units"]) == is_resumed
    without = evofeed("jobs", "status", tmp_path)
    assert without.returncode == 1 and len(without.stderr.strip().splitlines()) == 1


def test_jobs_are_run_again_from_any_folder_and_where_their_dataset_is_now(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "one.a3m").write_text(">q\nACDEFGHIKL\n")
    (tmp_path / "clusters").write_text("one\n")
    options = (*LOCAL, "--clusters", "clusters")
    done = evofeed("featurize", "raw", "data", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    retried = evofeed("jobs", "retry", tmp_path / "data")
    assert (retried.returncode, "no broken chain" in retried.stdout) == (0, True)
    (tmp_path / "data").rename(tmp_path / "moved")
    elsewhere = evofeed("jobs", "run", tmp_path / "moved")
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert "1 of 1 units were done before" in elsewhere.stdout
    assert not (tmp_path / "data").exists()
    assert "published" in evofeed("jobs", "status", tmp_path / "moved").stdout
