"""The run report as one self-contained HTML page: without network or other files.

Several runs share each panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.files import write_atomic
from evofeed.base.run_files import STRUCTURE
from evofeed.protein.residues import ATOM_ORDER
from evofeed.protein.structure_text import Structure
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.report.run_report import make_report, report_rows, training_seconds
from evofeed.viz import (
    COLOURS,
    TRUE_COLOUR,
    Curve,
    bars_html,
    curves_html,
    model_of,
    page_html,
    structure_html,
    table_html,
    usual_top,
)

_LISTED = 10  # steps without a finite gradient that are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    name: str
    folder: Path
    report: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]


def write_page(folders: Sequence[Path], path: Path) -> Path:
    """Writes the page of one run, or of several runs; returns its path.

    Raises:
        InputError: a folder has no run, or there are more runs than colours.
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
    title, facts = " and ".join(names), [run.report["run"] for run in runs]
    kinds = [
        f"{run.name}: {fact['config'].get('preset')}, {fact['steps']:,} steps on "
        f"{fact['world_size']} x {fact['device']}"
        for run, fact in zip(runs, facts, strict=True)
    ]
    sections = [
        _section("What went wrong", map(_skipped_steps, runs)),
        *_charts(runs),
        _section("In figures", [table_html(["", *names], _rows(map(_figures, runs)))]),
    ]
    head = f"<h1>{escape(title)}</h1><p>{escape(', '.join(kinds))}</p>\n"
    page = page_html(f"{title}: training report", f"<main>{head}{''.join(sections)}</main>")
    write_atomic(path, page)
    return path


def _section(title: str, parts: Iterable[str], *, panels: bool = False) -> str:
    """A heading with its parts; empty if all parts are."""
    body = "\n".join(part for part in parts if part)
    body = f'<div class="panels">{body}</div>\n' if body and panels else body
    return f"<h2>{title}</h2>\n{body}" if body else ""


def _skipped_steps(run: _Run) -> str:
    """A paragraph on steps without a finite gradient; empty if there are none."""
    skipped = [line["step"] for line in run.steps if not line.get("finite", True)]
    if not skipped:
        return ""
    first = ", ".join(map(str, skipped[:_LISTED])) + (" ..." if skipped[_LISTED:] else "")
    return (
        f"<p>{escape(run.name)}: {len(skipped)} of {len(run.steps):,} steps had no finite "
        f"gradient and changed nothing: {first}. Their samples are in steps.jsonl.</p>"
    )


def _charts(runs: Sequence[_Run]) -> list[str]:
    """All sections of panels."""
    by_run = {run.name: _curves(run) for run in runs}
    names = list(dict.fromkeys(name for curves in by_run.values() for name in curves))

    def panel(title: str, name: str, *, cut: bool = False) -> str:
        """The runs' curves of one name; `cut`: outliers far above the others are cut off."""
        curves = [
            Curve(name=run, steps=list(of[name]), values=list(of[name].values()), colour=colour)
            for (run, of), colour in zip(by_run.items(), COLOURS, strict=False)
            if name in of
        ]
        finite = [v for curve in curves for v in curve.values if v is not None]
        top = usual_top(np.array(finite)) if cut and finite else None
        return curves_html(title, curves, low=None if top is None else 0.0, high=top)

    def bars(title: str, unit: str, values: Iterable[Mapping[str, float]]) -> str:
        rows = {
            part: {run: length for run, length in zip(by_run, row, strict=True) if length}
            for part, *row in _rows(values)
        }
        return bars_html(title, rows, unit)

    def by_rank(part: str) -> str:
        seconds = (
            {f"rank {n}": parts.get(part, 0.0) for n, parts in enumerate(report["parts_by_rank"])}
            for report in reports
        )
        return bars(f"{part} by rank", "seconds", seconds)

    def panels_of(kind: str) -> list[str]:
        return [panel(name.removeprefix(kind), name) for name in names if name.startswith(kind)]

    reports = [run.report for run in runs]
    memory = [
        {f"rank {n}": b / 2**30 for n, b in enumerate(report["peak_memory_by_rank"])}
        for report in reports
    ]
    time, share = "milliseconds of a step, without validation and checkpoints", "share of wall time"
    groups = [report["operators"].get("groups", {}) for report in reports]
    return [
        _section(title, panels, panels=True)
        for title, panels in {
            "Loss": [
                panel("loss", "loss"),
                panel("gradient norm", "norm", cut=True),
                panel("learning rate", "rate"),
                *panels_of("terms: "),
            ],
            "Validation": panels_of("metrics: "),
            "Structure": [_structure(run) for run in runs],
            "Where the time went": [
                panel(time, "seconds", cut=True),
                bars(share, "%", (_percent(report["breakdown"]["share"]) for report in reports)),
                bars(
                    "operators of the profiled steps", "%",
                    (_percent({k: v["share"] for k, v in by_group.items()}) for by_group in groups),
                ),
            ],
            "Ranks": [
                by_rank("data_wait"),
                by_rank("communication"),
                bars("peak memory by rank", "GiB", memory),
            ] if any(report["run"]["world_size"] > 1 for report in reports) else [],
        }.items()
    ]  # fmt: skip


def _curves(run: _Run) -> dict[str, dict[int, float | None]]:
    """Values of a run's steps and validations, by name and step."""
    curves: dict[str, dict[int, float | None]] = {}
    for line in run.steps:
        values = {name: line.get(name) for name in ("loss", "norm", "rate")}
        values["seconds"] = 1e3 * training_seconds(line)
        for name, value in line.get("terms", {}).items():
            if name != "loss" and value != 0:  # 0: the term does not apply to the sample
                values[f"terms: {name}"] = value
        for name, value in values.items():
            curves.setdefault(name, {})[line["step"]] = value
    for entry in run.report["validation"]:
        for name in (name for name in entry if name != "step"):
            curves.setdefault(f"metrics: {name}", {})[entry["step"]] = entry[name]
    return curves


def _percent(shares: Mapping[str, float]) -> dict[str, float]:
    return {name: 100 * share for name, share in shares.items() if share > 0}


def _structure(run: _Run) -> str:
    """Viewer of the first validated chain of a run: known, predicted first and last."""
    if not (run.folder / STRUCTURE).is_file():
        return ""
    with np.load(run.folder / STRUCTURE) as file:
        arrays = dict(file)
    names = {"true": "known", "first": "first validation", "pred": "last validation"}
    if np.array_equal(arrays["first"], arrays["pred"]):
        del names["first"]
    models = [
        model_of(
            Structure(
                name=name, aatype=arrays["aatype"], residue_index=arrays["residue"],
                positions=arrays[name], chain=arrays["chain"], entity=arrays["chain"],
                mask=arrays["true_mask" if name == "true" else "pred_mask"],
                confidence=arrays["plddt"],
            ),
            words, plddt=name == "pred", colour=colour,
        )
        for (name, words), colour in zip(names.items(), (TRUE_COLOUR, *COLOURS), strict=False)
    ]  # fmt: skip
    ca = [arrays[name][:, ATOM_ORDER["CA"]] for name in ("pred", "true")]
    rmsd = np.sqrt(((ca[0] - ca[1]) ** 2).sum(-1).mean())
    note = f"{len(ca[0])} residues, CA RMSD {rmsd:.1f} Å"
    return structure_html(models, f"first validated chain of {run.name}", note)


def _figures(run: _Run) -> dict[str, str]:
    """The report's rows, and facts such as date, command and dataset."""
    rows = {  # parts are indented in a terminal, and one has the name of a metric
        f"share: {label.strip()}" if label.startswith(" ") else label: text.strip()
        for label, text in report_rows(run.report)
    }
    facts, names = run.report["run"], ("date", "command", "parameters", "dataset", "versions")
    return rows | {name: _in_words(facts[name]) for name in names if facts.get(name) is not None}


def _in_words(fact: Any) -> str:
    if isinstance(fact, Mapping):
        fact = [f"{name} {value}" for name, value in fact.items()]
    return ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)


def _rows(columns: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Table rows of dict columns: a key and its value in each column, None if absent."""
    columns = list(columns)
    names = dict.fromkeys(name for column in columns for name in column)
    return [[name, *(column.get(name) for column in columns)] for name in names]
