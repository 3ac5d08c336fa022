"""The run report as one HTML page that needs nothing else: no network, no other file.

Several runs share each panel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.files import write_atomic
from evofeed.base.run_files import HANGS, NONFINITE
from evofeed.protein.residues import ATOM_ORDER
from evofeed.protein.structure_text import Structure
from evofeed.trainer.log.runlog import STRUCTURE, read_steps
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.report.run_report import (
    make_report,
    report_rows,
    training_seconds,
)
from evofeed.viz import (
    COLOURS,
    TRUE_COLOUR,
    Curve,
    bars_html,
    curves_html,
    model_of,
    page_html,
    structure_html,
    usual_top,
)

_Curves = Mapping[str, tuple[list[int], list[float | None]]]
"""Steps and values by name: `loss`, `norm`, `rate`, `terms: NAME`, `metrics: NAME`."""


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
    if not 1 <= len(folders) <= len(COLOURS):
        raise InputError(
            f"a page compares up to {len(COLOURS)} runs, and {len(folders)} were given"
        )
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    runs = [
        _Run(name=name, folder=folder, report=make_report(folder), steps=read_steps(folder))
        for name, folder in zip(names, folders, strict=True)
    ]
    write_atomic(path, _page(runs))
    return path


def _page(runs: Sequence[_Run]) -> str:
    heads = [f"<th>{escape(run.name)}</th>" for run in runs]
    heads = heads if len(runs) > 1 else []
    title = " and ".join(run.name for run in runs)
    names = ", ".join(f"{escape(run.name)}: {escape(_kind(run))}" for run in runs)
    curves = {run.name: _curves(run) for run in runs}
    return page_html(
        f"{title}: training report",
        f"<main><h1>{escape(title)}</h1><p>{names}</p>\n"
        f"{_section('What went wrong', _troubles(runs), panels=False)}"
        f"{_section('Loss', _losses(curves))}"
        f"{_section('Validation', _validations(curves))}"
        f"{_section('Structure', _structures(runs))}"
        f"{_section('Where the time went', _times(runs, curves))}"
        f"{_section('Ranks', _ranks(runs))}"
        f"{_section('In figures', [table(heads, _figures(runs))], panels=False)}"
        f"{_section('Configuration', _settings(runs, heads), panels=False)}</main>",
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


def _curves(run: _Run) -> _Curves:
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
            if name != "loss" and value != 0:  # 0: of a sample that has nothing of this term
                add(f"terms: {name}", line["step"], value)
        add("seconds", line["step"], 1e3 * training_seconds(line))
    for entry in run.report["validation"]:
        for name, value in entry.items():
            if name != "step":
                add(f"metrics: {name}", entry["step"], value)
    return found


def _panel(title: str, runs: Mapping[str, _Curves], name: str, *, cut: bool = False) -> str:
    """The curve of that name of each run; cut: a few values far above the others are cut off."""
    curves = [
        Curve(name=run, steps=curves[name][0], values=curves[name][1], colour=colour)
        for (run, curves), colour in zip(runs.items(), COLOURS, strict=False)
        if name in curves
    ]
    known = [v for curve in curves for v in curve.values if v is not None]
    top = usual_top(np.array(known)) if cut and known else None
    return curves_html(title, curves, low=None if top is None else 0.0, high=top)


def _losses(runs: Mapping[str, _Curves]) -> list[str]:
    return [
        _panel("loss", runs, "loss"),
        _panel("gradient norm", runs, "norm", cut=True),
        _panel("learning rate", runs, "rate"),
        *(_panel(name.removeprefix("terms: "), runs, name) for name in _named(runs, "terms: ")),
    ]


def _validations(runs: Mapping[str, _Curves]) -> list[str]:
    return [
        _panel(name.removeprefix("metrics: "), runs, name) for name in _named(runs, "metrics: ")
    ]


def _named(runs: Mapping[str, _Curves], kind: str) -> list[str]:
    return list(dict.fromkeys(n for curves in runs.values() for n in curves if n.startswith(kind)))


def _structures(runs: Sequence[_Run]) -> list[str]:
    """The first validated chain of each run: known, predicted at first and at last."""
    parts: list[str] = []
    for run in runs:
        if not (run.folder / STRUCTURE).is_file():
            continue
        with np.load(run.folder / STRUCTURE) as file:
            there = dict(file)
        names = {"true": "known", "first": "first validation", "pred": "last validation"}
        if np.array_equal(there["first"], there["pred"]):
            del names["first"]
        colours = dict(zip(names, (TRUE_COLOUR, *COLOURS[: len(names) - 1]), strict=True))
        models = [
            model_of(
                Structure(
                    name=name, aatype=there["aatype"], residue_index=there["residue"],
                    positions=there[name], chain=there["chain"], entity=there["chain"],
                    mask=there["true_mask" if name == "true" else "pred_mask"],
                    confidence=there["plddt"],
                ),
                words, plddt=name == "pred", colour=colours[name],
            )
            for name, words in names.items()
        ]  # fmt: skip
        ca = [there[name][:, ATOM_ORDER["CA"]] for name in ("pred", "true")]
        rmsd = np.sqrt(((ca[0] - ca[1]) ** 2).sum(-1).mean())
        title = f"first validated chain{f' of {run.name}' if len(runs) > 1 else ''}"
        note = f"{len(ca[0])} residues, CA RMSD {rmsd:.1f} Å"
        parts.append(structure_html(models, title, note))
    return parts


def _times(runs: Sequence[_Run], curves: Mapping[str, _Curves]) -> list[str]:
    shares, groups = (
        _by_name({run.name: select(run.report) for run in runs})
        for select in (
            lambda report: report["breakdown"]["share"],
            lambda report: {
                name: entry["share"]
                for name, entry in report["operators"].get("groups", {}).items()
            },
        )
    )
    return [
        _panel("milliseconds of a step, without validation and checkpoints", curves, "seconds",
               cut=True),
        bars_html("share of wall time", {k: v for k, v in shares.items() if any(v.values())}, "%"),
        bars_html("operators of the profiled steps", groups, "%"),
    ]  # fmt: skip


def _by_name(shares: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Percent by part and run, of shares by run and part."""
    names = dict.fromkeys(name for row in shares.values() for name in row)
    return {
        name: {run: 100 * max(0.0, row[name]) for run, row in shares.items() if name in row}
        for name in names
    }


def _ranks(runs: Sequence[_Run]) -> list[str]:
    """What each rank waited for data and for the others, and its peak of memory."""
    if all(run.report["run"]["world_size"] == 1 for run in runs):
        return []
    ranks = range(max(run.report["run"]["world_size"] for run in runs))

    def panel(title: str, unit: str, values: Mapping[str, Sequence[float]]) -> str:
        rows = {
            f"rank {rank}": {run: row[rank] for run, row in values.items() if rank < len(row)}
            for rank in ranks
        }
        return bars_html(title, rows, unit)

    parts = {run.name: run.report["parts_by_rank"] for run in runs}
    memory = {run.name: [b / 2**30 for b in run.report["peak_memory_by_rank"]] for run in runs}
    return [
        *(
            panel(f"{part} by rank", "seconds",
                  {run: [p.get(part, 0.0) for p in row] for run, row in parts.items()})
            for part in ("data_wait", "communication")
        ),
        panel("peak memory by rank", "GiB", memory),
    ]  # fmt: skip


def _figures(runs: Sequence[_Run]) -> dict[str, list[str]]:
    """The report's rows, and what the run was made of."""
    columns = []
    for run in runs:
        facts = run.report["run"]
        rows = {  # parts stand indented below the others in a terminal, and one has a score's name
            f"share: {label.strip()}" if label.startswith(" ") else label: text.strip()
            for label, text in report_rows(run.report)
        }
        for name in ("date", "command", "parameters", "dataset", "versions"):
            if facts.get(name) is not None:
                rows[name] = _words(facts[name])
        columns.append(rows)
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name, "") for column in columns] for name in names}


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


def preset_settings(name: str) -> dict[str, str]:
    """What a preset means, its model, loss and loader with every field; empty if unknown."""
    if name not in PRESETS:  # of another version
        return {}
    preset = PRESETS[name]()
    return _flat(
        {
            **preset.train.to_dict(),
            "model": asdict(preset.model),
            "loss": asdict(preset.loss),
            "loader": asdict(preset.loader),
        }
    )


def run_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """All settings of a run, from the configuration in its `run.json` over its preset."""
    own = _flat(config)
    base = preset_settings(str(config.get("preset")))
    # `template: null` takes the place of every template.something.
    whole = {k: v for k, v in base.items() if not any(k.startswith(f"{name}.") for name in own)}
    return whole | own


def differences(columns: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Settings that are not the same in all columns, with their value in each."""
    names = dict.fromkeys(name for column in columns for name in column)
    rows = {name: [column.get(name, "(none)") for column in columns] for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def table(heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """An HTML table: `heads` are HTML, everything else is escaped; empty without rows."""
    if not rows:
        return ""
    top = f"<tr><td></td>{''.join(heads)}</tr>" if heads else ""
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>"
        for name, row in rows.items()
    )
    return f"<table>{top}{body}</table>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(value, default=str, ensure_ascii=False)
    return flat
