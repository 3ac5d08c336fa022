from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.featurize.job.stage import break_chains, evofeed

from evofeed.synth import write_synthetic


@pytest.fixture(scope="module")
def broken_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "set"
    write_synthetic(folder, 20, seed=9, mean_length=40, mean_depth=16)
    break_chains(folder, 2)
    return folder


@pytest.fixture(scope="module")
def published(broken_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset = tmp_path_factory.mktemp("data") / "set"
    done = evofeed("featurize", broken_raw, dataset, "--executor", "local", "--max-broken", "0.2")
    assert done.returncode == 0, done.stderr
    return dataset


def test_featurize_says_what_it_made_what_is_broken_and_where_the_report_is(
    broken_raw: Path, published: Path
) -> None:
    again = evofeed(
        "featurize", broken_raw, published, "--executor", "local", "--max-broken", "0.2"
    )
    assert again.returncode == 0
    assert "18 of 20 chains" in again.stdout
    assert "2 broken" in again.stdout
    assert "main -> " in again.stdout
    assert "the query's own entry (" in again.stdout, "why templates were left out"
    assert ".report.json" in again.stdout


def test_featurize_prints_json_and_nothing_else_when_asked(
    broken_raw: Path, published: Path
) -> None:
    words = ("--executor", "local", "--max-broken", "0.2", "--json")
    command = [sys.executable, "-m", "evofeed.cli", "featurize", broken_raw, published, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert (report["state"], report["num_good"], report["num_broken"]) == ("published", 18, 2)
    assert done.stderr == ""


def test_too_many_broken_chains_exit_with_one_and_say_what_to_do(
    broken_raw: Path, tmp_path: Path
) -> None:
    done = evofeed("featurize", broken_raw, tmp_path / "d", "--executor", "local")
    assert done.returncode == 1
    assert "max_broken" in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("--executor", "cloud"),
        ("--preset", "mine"),
        ("--max-template-date", "yesterday"),
        ("--workers", "-1"),
        ("--no-such-option",),
    ],
)
def test_wrong_calls_exit_with_two(broken_raw: Path, tmp_path: Path, args: tuple[str, ...]) -> None:
    done = evofeed("featurize", broken_raw, tmp_path / "d", *args)
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "d").exists()


def test_an_input_that_is_not_there_is_one_line_and_exit_one(tmp_path: Path) -> None:
    done = evofeed("featurize", tmp_path / "nothing", tmp_path / "d", "--executor", "local")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "nothing" in done.stderr


def test_check_reports_and_writes_nothing(broken_raw: Path, tmp_path: Path) -> None:
    found = json.loads(evofeed("check", broken_raw, "--json").stdout)
    assert (found["chains"], found["findings"]) == (20, [])
    assert "20 chains" in evofeed("check", broken_raw).stdout
    (tmp_path / "one.a3m").write_text("no alignment\n")
    bad = evofeed("check", tmp_path, "--json")
    assert bad.returncode == 1 and json.loads(bad.stdout)["findings"]
    assert [path.name for path in tmp_path.iterdir()] == ["one.a3m"]


def test_jobs_status_lists_jobs_and_their_broken_chains(published: Path) -> None:
    (job,) = json.loads(evofeed("jobs", "status", published, "--json").stdout)
    assert (job["state"], job["chains_good"], job["chains_broken"]) == ("published", 18, 2)
    details = evofeed("jobs", "status", published, "--job", job["job_id"][:8]).stdout
    assert details.count("broken ") == 3  # the count, and one line each
    assert "unknown job" in evofeed("jobs", "status", published, "--job", "zz").stderr


def test_jobs_cancel_of_a_finished_job_says_so_and_exits_with_one(published: Path) -> None:
    done = evofeed("jobs", "cancel", published)
    assert done.returncode == 1
    assert "published" in done.stdout


def test_jobs_retry_and_run_go_on_with_the_arguments_of_the_job(published: Path) -> None:
    for command, is_resumed in (("retry", False), ("run", True)):
        done = evofeed("jobs", command, published, "--json")
        report = json.loads(done.stdout)
        assert done.returncode == 0, done.stderr
        assert (report["state"], report["num_broken"]) == ("published", 2)
        assert (report["resumed"] == report["units"]) == is_resumed


def test_jobs_are_run_again_from_any_folder_and_where_their_dataset_is_now(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "one.a3m").write_text(">q\nACDEFGHIKL\n")
    (tmp_path / "clusters").write_text("one\n")
    options = ("--executor", "local", "--clusters", "clusters")
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


def test_jobs_of_a_dataset_without_a_ledger_is_one_line_and_exit_one(tmp_path: Path) -> None:
    done = evofeed("jobs", "status", tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
