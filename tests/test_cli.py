from __future__ import annotations

import subprocess
import sys
import time

import pytest

from evofeed import cli
from evofeed.errors import StoreError


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evofeed.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_lists_every_command_and_answers_at_once() -> None:
    best = min(_timed_help() for _ in range(5))
    assert best < 0.3, f"--help took {best:.2f} s; something heavy is imported at the top"


def _timed_help() -> float:
    start = time.perf_counter()
    done = run("--help")
    assert all(name in done.stdout for name in cli.COMMANDS)
    return time.perf_counter() - start


def test_an_unknown_command_is_a_wrong_call() -> None:
    done = run("featurise")
    assert done.returncode == 2
    assert "featurise" in done.stderr and "--help" in done.stderr


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_explains_itself_with_an_example(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"evofeed {name}" in done.stdout


def test_our_errors_are_one_line_and_exit_code_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise StoreError("no dataset there; run `evofeed featurize` first", path="/data/x")

    monkeypatch.setattr(cli, "_load", lambda name: lambda **_: broken())
    with pytest.raises(SystemExit) as stop:
        cli.main(["shards"])
    assert stop.value.code == 1
    assert capsys.readouterr().err == (
        "evofeed: /data/x: no dataset there; run `evofeed featurize` first\n"
    )
