"""Charts of training runs, the same in a run's report and on the service's pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evofeed.drawing.charts import Curve, chart

Curves = Mapping[str, tuple[Sequence[int], Sequence[float | None]]]
"""Of one run, steps and values by name: `loss`, `norm`, `rate`, `terms: NAME`, `metrics: NAME`."""


def loss_charts(runs: Sequence[Curves]) -> list[str]:
    """Loss, gradient norm and learning rate, and each term that is not zero throughout.

    A term of which a sample has nothing is 0 there and left out: confidence is learnt from
    structures of a good resolution alone.
    """
    parts = [
        chart("loss", _of(runs, "loss")),
        chart_of_most("gradient norm", _of(runs, "norm")),
        chart("learning rate", _of(runs, "rate")),
    ]
    for name in _named(runs, "terms: "):
        curves = _of(runs, name)
        some = [_without_zeros(curve) for curve in curves]
        if name != "terms: loss" and any(_values(some)):
            partly = " (of the samples that have it)" if 0 in _values(curves) else ""
            parts.append(chart(name.removeprefix("terms: ") + partly, some))
    return [part for part in parts if part]


def validation_charts(runs: Sequence[Curves]) -> list[str]:
    """Each score of the validations, on an axis from 0 to 1 if it is a share."""
    parts = []
    for name in _named(runs, "metrics: "):
        curves = _of(runs, name)
        share = all(0 <= value <= 1 for value in _values(curves))
        low, high = (0.0, 1.0) if share else (None, None)
        parts.append(chart(name.removeprefix("metrics: "), curves, low=low, high=high, dots=True))
    return [part for part in parts if part]


def chart_of_most(title: str, curves: Sequence[Curve]) -> str:
    """A chart whose axis the few values far above the others do not set."""
    known = np.array(_values(curves))
    if not len(known):
        return ""
    top = usual_top(known)
    more = " (the highest are cut off)" if top < known.max() else ""
    return chart(title + more, curves, low=0.0, high=top)


def usual_top(values: np.ndarray) -> float:
    """Upper end of an axis: the few steps far above the others do not set it."""
    usual = 1.5 * float(np.quantile(values, 0.9))
    return usual if 0 < usual < values.max() / 2 else 1.05 * float(values.max()) or 1.0


def _named(runs: Sequence[Curves], kind: str) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run if name.startswith(kind)))


def _of(runs: Sequence[Curves], name: str) -> list[Curve]:
    return [
        Curve(run=i, steps=run[name][0], values=run[name][1])
        for i, run in enumerate(runs)
        if name in run
    ]


def _values(curves: Sequence[Curve]) -> list[float]:
    return [value for curve in curves for value in curve.values if value is not None]


def _without_zeros(curve: Curve) -> Curve:
    points = [(step, v) for step, v in zip(curve.steps, curve.values, strict=True) if v != 0]
    return Curve(run=curve.run, steps=[s for s, _ in points], values=[v for _, v in points])
