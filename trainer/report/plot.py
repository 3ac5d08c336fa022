"""The run report as a picture: loss, step times, where the time went, operators.

A run that was validated also shows its scores and the structure of its first chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.drawing.run_charts import usual_top
from evofeed.trainer.log.runlog import STRUCTURE, read_steps
from evofeed.trainer.log.step_times import PARTS
from evofeed.trainer.report.run_report import make_report

_NOW_AND_THEN = ("validation", "checkpoint", "profiling")
"""Parts that only some steps have: they would dwarf the rest, and are among the shares."""
_COLOURS = ("#d62728", "#1f77b4", "#aec7e8", "#9467bd", "#2ca02c", "#c7c7c7")


def plot_report(folder: Path, path: Path) -> Path:
    """Draw the run in `folder` into a PNG file; returns its path."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed
    from matplotlib import pyplot as plt

    report, steps = make_report(folder), read_steps(folder)
    measured = [entry for entry in report["validation"] if "lddt_ca" in entry]
    groups = report["operators"].get("groups", {})
    traced = bool(measured) and (folder / STRUCTURE).is_file()
    layout = _layout(operators=bool(groups), scores=bool(measured), structure=traced)
    figure, panels = plt.subplot_mosaic(
        layout, figsize=(6 * len(layout[0]), 8), layout="constrained",
        per_subplot_kw={"structure": {"projection": "3d"}} if traced else {},
    )  # fmt: skip
    numbers = [line["step"] for line in steps]
    losses: Any = [line.get("loss") for line in steps]
    panels["loss"].plot(numbers, losses, color="#1f77b4")
    panels["loss"].set(title="loss", xlabel="step")
    _stacked(panels["times"], steps, numbers)
    _bars(panels["parts"], report["breakdown"]["share"], "share of wall time")
    if measured:
        _scores(panels["scores"], measured)
    if traced:
        _structure(panels["structure"], folder / STRUCTURE, measured[-1])
    if groups:
        shares = {name: entry["share"] for name, entry in groups.items()}
        _bars(panels["operators"], shares, "operators")
    run, step = report["run"], report["figures"]["step_seconds"]
    figure.suptitle(
        f"{run['config']['preset']} on {run['world_size']} x {run['device']}: "
        f"{step['mean'] * 1e3:.0f} ms a step, {report['data_wait']['share']:.2%} data wait"
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _layout(*, operators: bool, scores: bool, structure: bool) -> Any:
    """Two rows of the panels there is something to draw in; the loss takes a place that is left."""
    wanted = {"operators": operators, "scores": scores, "structure": structure}
    names = ["loss", "times", "parts", *(name for name, there in wanted.items() if there)]
    names = ["loss"] * (len(names) % 2) + names
    half = len(names) // 2
    return [names[:half], names[half:]]


def _scores(axes: Any, measured: list[dict[str, Any]]) -> None:
    steps = [entry["step"] for entry in measured]
    for name, label in (("lddt_ca", "lDDT-Ca"), ("tm_score", "TM-score")):
        axes.plot(steps, [entry[name] for entry in measured], "o-", markersize=4, label=label)
    axes.set(title="validation", xlabel="steps done", ylim=(0, 1))
    axes.legend(fontsize=8)


def _structure(axes: Any, path: Path, last: Mapping[str, Any]) -> None:
    """The CA traces of the first validated chain, predicted and true."""
    axes.set_axis_off()
    with np.load(path) as traces:
        for name, colour in (("true", "#c7c7c7"), ("pred", "#d62728")):
            axes.plot(*traces[name].T, color=colour, linewidth=2 if name == "true" else 1)
    axes.set_aspect("equal")
    axes.set_title(f"first chain after {last['step']} steps: predicted (red) on true")


def _stacked(axes: Any, steps: list[dict[str, Any]], numbers: list[int]) -> None:
    parts = [part for part in PARTS if part not in _NOW_AND_THEN]
    rows = [[line["seconds"].get(part, 0.0) * 1e3 for line in steps] for part in parts]
    axes.stackplot(numbers, rows, labels=parts, colors=_COLOURS)
    totals = np.sum(rows, axis=0) if steps else np.zeros(1)
    top = usual_top(totals)
    axes.set_ylim(0, top)
    for number, total in zip(numbers, totals, strict=False):
        if total > top:  # a compilation, a machine that stood still
            text = f"step {number}: {total / 1e3:.1f} s"
            axes.annotate(text, (number, top), xytext=(3, -10), textcoords="offset points", size=7)
    axes.set(title="milliseconds of each step, without validation and checkpoints", xlabel="step")
    axes.legend(fontsize=7, loc="upper right", ncols=2)


def _bars(axes: Any, shares: Mapping[str, float], title: str) -> None:
    names = list(shares)[::-1]
    bars = axes.barh(names, [100 * shares[name] for name in names], color="#1f77b4")
    axes.bar_label(bars, fmt="%.1f %%", fontsize=8, padding=2)
    axes.margins(x=0.12)  # room for the labels
    axes.set(title=title, xlabel="%")
