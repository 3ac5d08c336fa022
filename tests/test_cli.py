from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tests.conftest import exit_code

from evofeed import cli
from evofeed.base.errors import StoreError
from evofeed.base.options import count_bar, usable_device

WRONG = yaml.safe_load(Path(__file__).with_name("wrong_calls.yaml").read_text())
HEAVY = "torch ray numba triton fastapi sqlalchemy gemmi matplotlib pyarrow".split()


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evofeed.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_lists_every_command_and_answers_at_once() -> None:
    done = run("--help")
    assert all(name in done.stdout for name in cli.COMMANDS)
    ours, bare = _processor_seconds("-m", "evofeed.cli", "--help"), _processor_seconds("-c", "")
    # Measured: 6. What is heavy takes 10 and more by itself.
    assert ours < 20 * bare, f"--help took {ours:.2f} s; something heavy is imported at the top"


def _processor_seconds(*words: str) -> float:
    """Of an interpreter, the best of three: what else the machine does must not count."""
    best = 9.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        best = min(best, spent)
    return best


def test_an_unknown_command_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("featurise") == 2
    said = capsys.readouterr().err
    assert "did you mean 'featurize'?" in said and "--help" in said
    assert exit_code("xyz") == 2 and "did you mean" not in capsys.readouterr().err


def test_every_command_explains_itself_with_an_example_and_loads_nothing_heavy() -> None:
    code = (
        "import contextlib, io, json, sys\n"
        "from evofeed import cli\n"
        "shown = {}\n"
        "for name in cli.COMMANDS:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as text:\n"
        "        with contextlib.suppress(SystemExit):\n"
        "            cli.main([name, '--help'])\n"
        "    shown[name] = text.getvalue(), sorted(set(sys.modules) & set(sys.argv[1:]))\n"
        "print(json.dumps(shown))\n"
    )
    command = [sys.executable, "-c", code, *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name, (text, loaded) in json.loads(done.stdout).items():
        assert f"evofeed {name}" in text
        assert re.search(r"Examples?:\s+evofeed", text), f"{name} --help shows no example"
        assert not loaded, f"{name} --help (or one before it in the list) imported {loaded}"


@pytest.mark.parametrize(
    ("command", "absent"),
    [
        (["featurize", ".", "data", "--executor", "local"], "sqlalchemy"),
        (["serve", "--dataset", "x=."], "pydantic_settings"),
        (["train", "tiny", "--dataset", "data", "--out", "run"], "torch"),
    ],
)
def test_what_is_not_installed_is_named(command: list[str], absent: str) -> None:
    code = f"import sys; sys.modules[{absent!r}] = None\nfrom evofeed import cli; cli.main()"
    words = [sys.executable, "-c", code, *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    message = f"evofeed: {command[0]} needs {absent}: pip install 'evofeed[all]'\n"
    assert (done.returncode, done.stderr) == (1, message)


def test_an_input_that_is_not_there_is_said_before_the_job_is_imported() -> None:
    code = (
        "import sys\nfrom evofeed import cli\ntry: cli.main()\n"
        f"except SystemExit: print([n for n in {HEAVY} + ['sqlalchemy'] if n in sys.modules])"
    )
    words = [sys.executable, "-c", code, "featurize", "nowhere", "data"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr == "evofeed: nowhere: no such file or folder\n"
    assert done.stdout == "[]\n"


def test_a_full_disk_says_what_to_do_and_a_terminal_without_the_letters_is_borne() -> None:
    words = [sys.executable, "-m", "evofeed.cli", "snapshots", "select", "--help"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert "No space left on device; free space" in done.stderr
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "?ngstr?m" in done.stdout


@pytest.mark.parametrize(("line", "code", "says"), WRONG)
def test_a_wrong_call_is_a_short_error_and_an_exit_code(
    line: str, code: int, says: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVOFEED_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    line = line.format(python=sys.executable, file=__file__)
    assert exit_code(*line.split()) == code
    said = " ".join("".join(capsys.readouterr()).replace("│", " ").split())
    assert says in said and "Traceback" not in said
    assert not (tmp_path / "data").exists()


def test_a_rank_asks_nothing_of_another_ranks_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    devices: list[str] = []
    monkeypatch.setattr(torch, "empty", lambda size, *, device: devices.append(device))
    usable_device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "3")
    for name in ("cuda", "cuda:1", "cpu"):
        assert usable_device(name) == name
    assert devices == ["cuda", "cuda:3", "cuda:1", "cpu"]


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (StoreError("not there; run it first", path="/x"), 1, "/x: not there; run it first"),
        (FileNotFoundError(2, "No such file", "/x"), 1, "/x: No such file"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_ends_a_command_is_one_line(
    error: BaseException, code: int, says: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def broken() -> None:
        raise error

    app = typer.Typer()
    app.command("doctor")(broken)
    monkeypatch.setattr(cli, "_load", lambda *_: app)
    assert exit_code("doctor") == code
    assert capsys.readouterr().err == f"evofeed: {says}\n"


@pytest.mark.parametrize(
    "line", ["int('x')", "one, two = 'x'", "list(zip('x', '', strict=True))", "raise ValueError(1)"]
)
def test_a_value_error_is_a_wrong_call_only_where_our_own_raise_made_it(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exec(f"def broken(**_) -> None: {line}", room := {"__name__": "evofeed.room"})
    monkeypatch.setattr(cli, "_load", lambda *_: room["broken"])
    ends, code = (SystemExit, "2") if "raise" in line else (ValueError, "[xz]|values")
    with pytest.raises(ends, match=code):
        cli.main(["doctor"])


def test_every_command_has_json_for_machines_and_an_example() -> None:
    """`evofeed serve`, the demo and what a service does too: nothing is left out."""

    def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from leaves(inner, f"{path} {name}")
        if not hasattr(command, "commands"):
            yield path, command

    without = [
        path
        for name, (module, attribute, _) in [*cli.COMMANDS.items(), *cli.BY_URL.items()]
        for path, leaf in leaves(typer.main.get_command(cli._load(module, attribute, name)), name)
        if not any("--json" in parameter.opts for parameter in leaf.params)
        or not re.search(r"Example:\s+evofeed", leaf.help)
    ]
    assert not without


def test_a_progress_bar_shows_share_count_and_time_left_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal, quiet, expected in (("1", False, True), ("1", True, False), ("", False, False)):
        monkeypatch.setenv("FORCE_COLOR", terminal)
        with count_bar("copying", quiet, "MB", 1e6) as progress:
            progress(1_000_000, 4_000_000)
            progress(4_000_000, 4_000_000)
        out, err = capsys.readouterr()
        assert out == ""
        assert ("1 of 4 MB" in err and "4 of 4 MB" in err and "ETA" in err) is expected
        assert bool(err.strip()) is expected


def test_a_progress_bar_counts_the_time_left_anew_in_the_next_stage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("evofeed.base.options._REFRESH_SECONDS", 0.0)
    with count_bar("preparing", False, "items") as progress:
        for done in (1, 4, 1):
            progress(done, 4)
    last = capsys.readouterr().err.split("preparing")[-1]
    assert "1 of 4" in last and "-:--:--" in last and "0:00:00" not in last
