"""How far runs of `two_trainers.py` lie apart, term by term: seeds of one trainer, and trainers.

    python benchmarks/two_trainers_apart.py a.json b.json ... --window 0:64 --window 120:141 \
        --out both.json --picture both.png

Each pair of runs with the same precision, kind of dropout, device and dataset is compared over
the steps that both have, and within each window of steps: the mean of |a - b| over the mean of
(a + b) / 2. A run that began at a checkpoint of another (`--began RUN=OTHER`) is compared with
that one and with others that did. Of runs that began at the first weights, the loss terms there
too. The picture shows the curves of runs on a GPU that began there, but for those `--aside`, and
below them the distance of each pair of losses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

TERMS = (
    "loss", "distogram", "experimentally_resolved", "fape", "masked_msa", "plddt_loss",
    "supervised_chi", "violation",
)  # fmt: skip
Steps = list[tuple[dict[str, Any], dict[str, Any]]]
"""The same steps of two runs."""
_SMOOTHED = 21  # steps whose mean a point of the picture's distances is
_COLORS = {"openfold": "#c44e52", "evofeed": "#4c72b0", "": "#8c8c8c"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--window", type=_window, action="append", default=[], help="first:end")
    parser.add_argument("--began", action="append", default=[], help="RUN=OTHER")
    parser.add_argument("--aside", action="append", default=[], help="RUN not to be drawn")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    return parser.parse_args()


def _window(text: str) -> range:
    first, end = map(int, text.split(":"))
    return range(first, end)


def compare(
    paths: Sequence[Path], windows: Sequence[range], began: dict[str, str]
) -> dict[str, Any]:
    """All runs by name, what each came to in each window, and all pairs that can be compared."""
    runs = {path.stem: json.loads(path.read_text()) for path in paths}
    for name, other in began.items():
        runs[name]["began_in"] = other
    means: dict[str, Any] = {}
    for name, run in runs.items():
        for window in windows:
            inside = [step for step in run["steps"] if step["step"] in window]
            if len(inside) == len(window):
                means.setdefault(_name(window), {})[name] = _means(inside)
    pairs = [
        {"runs": [a, b], **_apart(runs[a], runs[b], windows)}
        for a, b in combinations(runs, 2)
        if _kind(runs[a]) == _kind(runs[b])
        and (began.get(a, a) == began.get(b, b) or not {a, b} & set(began))
    ]
    return {"runs": runs, "means": means, "pairs": pairs}


def _name(window: range) -> str:
    return f"{window.start}:{window.stop}"


def _kind(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["precision"], run["dropout"] < 0, run["device"], run.get("dataset")


def _means(steps: list[dict[str, Any]]) -> dict[str, float]:
    terms = {name: sum(step["terms"][name] for step in steps) / len(steps) for name in TERMS}
    return {**terms, "norm": sum(step["norm"] for step in steps) / len(steps)}


def _shared(a: dict[str, Any], b: dict[str, Any]) -> Steps:
    others = {step["step"]: step for step in b["steps"]}
    steps = [(step, others[step["step"]]) for step in a["steps"] if step["step"] in others]
    unequal = [x["step"] for x, y in steps if x["recycles"] != y["recycles"]]
    if unequal:
        raise ValueError(f"not the same batches: recycles differ in steps {unequal[:5]}")
    return steps


def _apart(a: dict[str, Any], b: dict[str, Any], windows: Sequence[range]) -> dict[str, Any]:
    steps = _shared(a, b)
    starts = [(a["start"][name], b["start"][name]) for name in TERMS if a["start"] and b["start"]]
    measured = [(x["metrics"], y["metrics"]) for x, y in steps if "metrics" in x and "metrics" in y]
    within = {_name(w): [pair for pair in steps if pair[0]["step"] in w] for w in windows}
    return {
        "same_trainer": a["trainer"] == b["trainer"],
        "precision": a["precision"],
        "dropout": a["dropout"] >= 0,
        "start": max((_distance([s]) for s in starts if max(map(abs, s)) > 0), default=None),
        "lddt_ca": [[x["lddt_ca"], y["lddt_ca"]] for x, y in measured],
        **_over(steps),
        "windows": {
            name: _over(part)
            for name, part in within.items()
            if len(part) == len(_window(name))
        },
    }  # fmt: skip


def _over(steps: Steps) -> dict[str, Any]:
    terms = {
        name: _distance([(x["terms"][name], y["terms"][name]) for x, y in steps]) for name in TERMS
    }
    norm = _distance([(x["norm"], y["norm"]) for x, y in steps])
    return {"steps": len(steps), "first_step": steps[0][0]["step"], "terms": terms, "norm": norm}


def _distance(values: list[tuple[float, float]]) -> float:
    return sum(abs(x - y) for x, y in values) / sum((abs(x) + abs(y)) / 2 for x, y in values)


def draw(found: dict[str, Any], aside: Sequence[str], path: Path) -> None:
    """Loss, FAPE, norm and validation of all runs on GPUs; how far each pair of losses is apart."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    runs = {
        name: run for name, run in found["runs"].items() if _is_drawn(run) and name not in aside
    }
    columns = sorted({run["precision"] for run in runs.values()})
    panels = ("loss", "FAPE", "gradient norm", "lDDT-Cα", "losses apart, %")
    figure, axes = plt.subplots(
        len(panels), len(columns), figsize=(5.5 * len(columns), 11.5), sharex="col", squeeze=False
    )
    for column, precision in enumerate(columns):
        ours = {name: run for name, run in runs.items() if run["precision"] == precision}
        for run in ours.values():
            look = _look(run)
            for row, key in enumerate(("loss", "fape", "norm", "lddt")):
                marker = {"marker": "o", "markersize": 4} if key == "lddt" else {}
                axes[row][column].plot(*_series(run, key), **look, **marker)
        labelled: set[str] = set()
        for a, b in combinations(ours, 2):
            if _kind(ours[a]) == _kind(ours[b]):
                _draw_distance(axes[4][column], ours[a], ours[b], labelled)
        axes[0][column].set_title(precision)
        axes[4][column].set_ylim(bottom=0)
        axes[4][column].set_xlabel("step")
        for row in (0, 4):
            axes[row][column].legend(fontsize=7)
    for row, title in enumerate(panels):
        axes[row][0].set_ylabel(title)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def _is_drawn(run: dict[str, Any]) -> bool:
    whole = run["steps"][0]["step"] == 0 and len(run["steps"]) >= 50
    return bool(run["device"] != "CPU" and whole)


def _look(run: dict[str, Any]) -> dict[str, Any]:
    masks = f"dropout seed {run['dropout']}" if run["dropout"] >= 0 else "no dropout"
    return {
        "label": f"{run['trainer']}, {masks}",
        "color": _COLORS[run["trainer"]],
        "linestyle": ["-", "--", ":"][run["dropout"] % 3],
        "linewidth": 1,
    }


def _draw_distance(axis: Any, a: dict[str, Any], b: dict[str, Any], labelled: set[str]) -> None:
    of = a["trainer"] if a["trainer"] == b["trainer"] else ""
    label = f"two seeds of {of}" if of else "evofeed and openfold"
    losses = [(x["terms"]["loss"], y["terms"]["loss"]) for x, y in _shared(a, b)]
    half = _SMOOTHED // 2
    distances = [
        100 * _distance(losses[max(0, at - half) : at + half + 1]) for at in range(len(losses))
    ]
    shown = {} if label in labelled else {"label": label}
    axis.plot(range(len(losses)), distances, color=_COLORS[of], linewidth=1, **shown)
    labelled.add(label)


def _series(run: dict[str, Any], key: str) -> tuple[list[int], list[float]]:
    steps = run["steps"]
    if key == "lddt":
        steps = [step for step in steps if "metrics" in step]
        return [s["step"] for s in steps], [s["metrics"]["lddt_ca"] for s in steps]
    if key == "norm":
        return [s["step"] for s in steps], [s["norm"] for s in steps]
    return [s["step"] for s in steps], [s["terms"][key] for s in steps]


def _short(value: Any) -> Any:
    """The same with six digits a number."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    options = arguments()
    found = compare(options.runs, options.window, dict(pair.split("=") for pair in options.began))
    options.out.write_text(json.dumps(_short(found)) + "\n")
    if options.picture:
        draw(found, options.aside, options.picture)
    for pair in found["pairs"]:
        for name, part in {"": pair, **pair["windows"]}.items():
            terms = "  ".join(f"{term} {100 * value:.3f}" for term, value in part["terms"].items())
            print(
                f"{' | '.join(pair['runs'])} {name} ({part['steps']} steps from "
                f"{part['first_step']}), %: {terms}  norm {100 * part['norm']:.2f}"
            )
    for name, runs in found["means"].items():
        for run, means in runs.items():
            print(name, run, "  ".join(f"{term} {value:.5g}" for term, value in means.items()))


if __name__ == "__main__":
    main()
