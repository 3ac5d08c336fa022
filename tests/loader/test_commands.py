"""`evofeed plan` and `evofeed bench loader`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import exit_code
from typer.testing import CliRunner

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.loader.commands import bench_commands as bench
from evofeed.store import Dataset


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return exit_code(*words), *capsys.readouterr()


def test_a_plan_names_the_chains_that_the_loader_reads(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", dataset.uri, "--world-size", "2", "--batches", "2", "--seed", "5", "--json"]
    code, out, _ = run(capsys, *words)
    rows = json.loads(out)
    assert code == 0
    assert [row["position"] for row in rows] == [0, 1, 2, 3]
    loader = FeatureLoader(
        dataset, LoaderConfig.initial_training(), rank=1, world_size=2, seed=5, device="cpu"
    )
    sample = next(loader.planner.batches(0, 0)).samples[0]
    assert rows[1]["chain_id"] == dataset.index["chain_id"][sample.row].as_py()
    preset = ["--preset", "initial_training"]  # as `evofeed train` writes it
    code, out, _ = run(capsys, "plan", dataset.uri, "--rank", "0", *preset)
    assert code == 0
    assert len(out.splitlines()) == 2


@pytest.mark.system
def test_the_benchmark_reports_waits_and_writes_a_trace(dataset: Dataset, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = [dataset.uri, "--crop-size", "12", "--steps", "9", "--step-ms", "1", "--device", "cpu"]
    result = CliRunner().invoke(
        bench, ["loader", *words, "--trace", str(trace), "--json"], catch_exceptions=False
    )
    figures = json.loads(result.stdout)
    assert result.exit_code == 0
    assert figures["steps"] == 9
    assert figures["mb_per_sample"] > 0
    assert figures["cpu_ms_per_sample"] > 0
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"read", "make"} <= names
    causes = {name.removeprefix("wait: ") for name in names if name.startswith("wait: ")}
    assert causes
    assert causes <= {
        "starting", "reading", "making", "waking up", "handing over", "room in shared memory"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["plan", "{d}", "--preset", "odd"], 2, "preset 'odd' is none of initial_training"),
        (["plan", "{d}", "--preset", "boltz"], 2, "a plan is of chains"),
        (["plan", "{d}", "--world-size", "2", "--rank", "2"], 2, "2 is not one"),
        (["plan", "{d}", "--world-size", "2", "--global-batch-size", "3"], 2, "not a multiple"),
        (["plan", "{d}", "--batches", "100000000000"], 2, "ask for one rank, or for fewer"),
        (["plan", "/nowhere/at/all"], 1, "nowhere"),
        (["bench", "loader", "/nowhere/at/all"], 1, "nowhere"),
    ],
)
def test_wrong_calls_say_what_is_wrong_in_one_line(
    dataset: Dataset, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    got, _, err = run(capsys, *[word.format(d=dataset.uri) for word in words])
    assert got == code
    assert says in err.replace("\n", " ")
    assert "Traceback" not in err
