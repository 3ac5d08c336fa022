"""The run report as a picture: loss, step times, where the time went, operators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evofeed.trainer.report.run_report import make_report
from evofeed.trainer.run.clock import PARTS
from evofeed.trainer.run.runlog import read_steps

_COLOURS = (
    "#d62728", "#1f77b4", "#aec7e8", "#9467bd", "#2ca02c", "#8c564b", "#bcbd22", "#c7c7c7",
)  # fmt: skip


def plot_report(folder: Path, path: Path) -> Path:
    """Draw the run in `folder` into a PNG file; returns its path."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed
    from matplotlib import pyplot as plt

    report, steps = make_report(folder), read_steps(folder)
    figure, ((loss, times), (parts, operators)) = plt.subplots(
        2, 2, figsize=(12, 8), layout="constrained"
    )
    numbers = [line["step"] for line in steps]
    loss.plot(numbers, [line.get("loss") for line in steps], color="#1f77b4")
    loss.set(title="loss", xlabel="step")
    measured = [entry for entry in report["validation"] if "lddt_ca" in entry]
    if measured:
        scores = loss.twinx()
        steps_of = [entry["step"] for entry in measured]
        scores.plot(steps_of, [entry["lddt_ca"] for entry in measured], "o-", color="#d62728")
        scores.set(ylabel="lDDT-Ca of the validation, red", ylim=(0, 1))
    _stacked(times, steps, numbers)
    _bars(parts, report["breakdown"]["share"], "share of wall time")
    groups = report["operators"].get("groups", {})
    _bars(operators, {name: entry["share"] for name, entry in groups.items()}, "operators")
    run, step = report["run"], report["figures"]["step_seconds"]
    figure.suptitle(
        f"{run['config']['preset']} on {run['world_size']} x {run['device']}: "
        f"{step['mean'] * 1e3:.0f} ms a step, {report['data_wait']['share']:.2%} data wait"
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _stacked(axes: Any, steps: list[dict[str, Any]], numbers: list[int]) -> None:
    parts = [part for part in PARTS if part != "profiling"]  # it would dwarf the rest
    rows = [[line["seconds"].get(part, 0.0) * 1e3 for line in steps] for part in parts]
    axes.stackplot(numbers, rows, labels=parts, colors=_COLOURS)
    axes.set(title="milliseconds of each step", xlabel="step")
    axes.legend(fontsize=7, loc="upper right", ncols=2)


def _bars(axes: Any, shares: Mapping[str, float], title: str) -> None:
    names = list(shares)[::-1]
    bars = axes.barh(names, [100 * shares[name] for name in names], color="#1f77b4")
    axes.bar_label(bars, fmt="%.1f %%", fontsize=8, padding=2)
    axes.set(title=title, xlabel="%")
