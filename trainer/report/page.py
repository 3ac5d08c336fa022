"""The run report as one HTML page that needs nothing else: no network, no other file.

It reads without its script, which only turns the structures. Several runs share each panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from evofeed.drawing.charts import RUNS, Curve, bars
from evofeed.drawing.run_charts import Curves, chart_of_most, loss_charts, validation_charts
from evofeed.drawing.structure_view import structure_view
from evofeed.errors import InputError
from evofeed.files import write_atomic
from evofeed.run_files import HANGS, NONFINITE
from evofeed.trainer.log.runlog import STRUCTURE, read_steps
from evofeed.trainer.log.step_times import PARTS
from evofeed.trainer.report.run_report import (
    make_report,
    report_rows,
    training_seconds,
)
from evofeed.trainer.report.settings_table import (
    differences,
    preset_settings,
    run_settings,
    table,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    name: str
    folder: Path
    report: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]


def write_page(folders: Sequence[Path], path: Path) -> Path:
    """Write the page of one run, or of several side by side; returns its path.

    Raises:
        InputError: a folder holds no run, or there are more of them than colours.
    """
    if not 1 <= len(folders) <= RUNS:
        raise InputError(f"a page compares up to {RUNS} runs, and {len(folders)} were given")
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    runs = [
        _Run(name=name, folder=folder, report=make_report(folder), steps=read_steps(folder))
        for name, folder in zip(names, folders, strict=True)
    ]
    write_atomic(path, _page(runs))
    return path


def _page(runs: Sequence[_Run]) -> str:
    own, drawing = files("evofeed.trainer.report"), files("evofeed.drawing")
    style = (own / "page.css").read_text("utf-8") + (drawing / "drawing.css").read_text("utf-8")
    script = (drawing / "structure.js").read_text("utf-8")
    heads = [f'<th class="run{i}">{escape(run.name)}</th>' for i, run in enumerate(runs)]
    heads = heads if len(runs) > 1 else []
    title = escape(" and ".join(run.name for run in runs))
    names = ", ".join(
        f'<span class="run{i}">{escape(run.name)}</span>: {escape(_kind(run))}'
        for i, run in enumerate(runs)
    )
    # The browser itself sees to it that the page asks nobody for anything.
    curves = [_curves(run) for run in runs]
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}: training report</title><style>\n{style}</style></head>\n<body>"
        f"<h1>{title}</h1><p>{names}</p>\n"
        f"{_section('What went wrong', _troubles(runs), panels=False)}"
        f"{_section('Loss', loss_charts(curves))}"
        f"{_section('Validation', validation_charts(curves))}"
        f"{_section('Structure', _structures(runs))}"
        f"{_section('Where the time went', _times(runs))}"
        f"{_section('Ranks', _ranks(runs))}"
        f"{_section('In figures', [table(heads, _figures(runs))], panels=False)}"
        f"{_section('Configuration', _settings(runs, heads), panels=False)}"
        f"<script>\n{script}</script></body></html>\n"
    )


def _kind(run: _Run) -> str:
    facts = run.report["run"]
    preset, device = facts["config"].get("preset"), facts["device"]
    return f"{preset}, {facts['steps']:,} steps on {facts['world_size']} x {device}"


def _section(title: str, parts: Sequence[str], *, panels: bool = True) -> str:
    """A heading and what is below it; nothing if there is nothing below it."""
    body = "\n".join(part for part in parts if part)
    if not body:
        return ""
    return f"<h2>{title}</h2>\n" + (f'<div class="panels">{body}</div>\n' if panels else body)


def _troubles(runs: Sequence[_Run]) -> list[str]:
    """Steps without a finite gradient and times without a step, with where to look."""
    parts = []
    for run in runs:
        who = f"{escape(run.name)}: " if len(runs) > 1 else ""
        skipped = [line["step"] for line in run.steps if not line.get("finite", True)]
        kept = sorted(path.name for path in (run.folder / NONFINITE).glob("step_*"))
        if skipped:
            first = ", ".join(map(str, skipped[:_LISTED])) + (" ..." if skipped[_LISTED:] else "")
            again = f" <code>evofeed replay {escape(str(run.folder / NONFINITE / kept[0]))}</code>"
            parts.append(
                f"<p>{who}{len(skipped)} of {len(run.steps):,} steps had no finite gradient and "
                f"changed nothing: {first}.{again + ' repeats the first.' if kept else ''}</p>"
            )
        hangs = sorted(path.name for path in (run.folder / HANGS).glob("*.txt"))
        if hangs:
            parts.append(
                f"<p>{who}it stopped because no step came: "
                f"<code>{escape(str(run.folder / HANGS / hangs[-1]))}</code> has the stacks of all "
                "threads.</p>"
            )
    return parts


_LISTED = 10  # steps named one by one


def _curves(run: _Run) -> Curves:
    """What each step and validation of a run says, by name; nothing is said of a step left out."""
    found: dict[str, tuple[list[int], list[float | None]]] = {}

    def add(name: str, step: int, value: float | None) -> None:
        steps, values = found.setdefault(name, ([], []))
        steps.append(step)
        values.append(value)

    for line in run.steps:
        for name in ("loss", "norm", "rate"):
            add(name, line["step"], line.get(name))
        for name, value in line.get("terms", {}).items():
            add(f"terms: {name}", line["step"], value)
    for entry in run.report["validation"]:
        for name, value in entry.items():
            if name != "step":
                add(f"metrics: {name}", entry["step"], value)
    return found


def _structures(runs: Sequence[_Run]) -> list[str]:
    return [
        structure_view(
            run.folder / STRUCTURE,
            f"first validated chain{f' of {run.name}' if len(runs) > 1 else ''}",
            i,
        )
        for i, run in enumerate(runs)
    ]


def _times(runs: Sequence[_Run]) -> list[str]:
    shares = {
        part: [
            (i, max(0.0, share), f"{share:.2%}")
            for i, run in enumerate(runs)
            if (share := run.report["breakdown"]["share"][part])
        ]
        for part in PARTS
    }
    groups: dict[str, list[tuple[int, float, str]]] = {}
    for i, run in enumerate(runs):
        for name, entry in run.report["operators"].get("groups", {}).items():
            groups.setdefault(name, []).append((i, entry["share"], f"{entry['share']:.2%}"))
    steps = [
        Curve(
            run=i,
            steps=[line["step"] for line in run.steps],
            values=[1e3 * training_seconds(line) for line in run.steps],
        )
        for i, run in enumerate(runs)
    ]
    return [
        chart_of_most("milliseconds of a step, without validation and checkpoints", steps),
        bars("share of wall time", {name: row for name, row in shares.items() if row}),
        bars("operators of the profiled steps", groups),
    ]


def _ranks(runs: Sequence[_Run]) -> list[str]:
    """What each rank waited for data and for the others, and its peak of memory."""
    if all(run.report["run"]["world_size"] == 1 for run in runs):
        return []
    parts = []
    for part in ("data_wait", "communication"):
        seconds = [[p.get(part, 0.0) for p in run.report["parts_by_rank"]] for run in runs]
        parts.append(bars(f"seconds of {part} by rank", _by_rank(seconds, "{:.2f} s")))
    memory = [[b / 2**30 for b in run.report["peak_memory_by_rank"]] for run in runs]
    return [*parts, bars("peak memory by rank", _by_rank(memory, "{:.2f} GiB"))]


def _by_rank(
    values: Sequence[Sequence[float]], form: str
) -> dict[str, list[tuple[int, float, str]]]:
    return {
        f"rank {rank}": [
            (i, row[rank], form.format(row[rank]))
            for i, row in enumerate(values)
            if rank < len(row)
        ]
        for rank in range(max(map(len, values)))
    }


def _figures(runs: Sequence[_Run]) -> dict[str, list[str]]:
    """The report's rows, and what the run was made of."""
    columns = []
    for run in runs:
        facts = run.report["run"]
        rows = {_label(label): text.strip() for label, text in report_rows(run.report)}
        for name in ("date", "command", "parameters", "dataset", "versions"):
            if facts.get(name) is not None:
                rows[name] = _words(facts[name])
        columns.append(rows)
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name, "") for column in columns] for name in names}


def _label(label: str) -> str:
    """Parts stand indented below the others in a terminal, and one has the scores' name."""
    return f"share: {label.strip()}" if label.startswith(" ") else label


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _settings(runs: Sequence[_Run], heads: Sequence[str]) -> list[str]:
    configs = [run.report["run"]["config"] for run in runs]
    whole = [run_settings(config) for config in configs]
    parts = []
    if len(runs) > 1:
        apart = differences(whole)
        parts.append("<p>Where the runs differ:</p>" if apart else "<p>The runs do not differ.</p>")
        parts.append(table(heads, apart))
    for run, config, own in zip(runs, configs, whole, strict=True):
        name, preset = str(config.get("preset")), preset_settings(str(config.get("preset")))
        who = escape(run.name) if len(runs) > 1 else "This run"
        changed = differences([preset, own]) if preset else {}
        if changed:
            columns = [f"<th>preset {escape(name)}</th>", "<th>run</th>"]
            parts.append(f"<p>{who} against its preset:</p>{table(columns, changed)}")
        elif preset:
            parts.append(f"<p>{who} has all settings from the preset {escape(name)}.</p>")
    names = dict.fromkeys(name for column in whole for name in column)
    every = {name: [column.get(name, "") for column in whole] for name in names}
    parts.append(f"<details><summary>All settings</summary>{table(heads, every)}</details>")
    return parts
