"""Curves and bars as inline SVG: no script, colours by class, so that a page is whole offline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

RUNS: Final = 4
"""Runs that a chart has colours for."""
_WIDTH, _HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 22
_POINTS = 300  # more steps than this are drawn as means, with their range behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run's line in a chart; a value that is None or not finite is a gap."""

    run: int
    """Number of the run on the page: its colour."""
    steps: Sequence[int | float]
    values: Sequence[int | float | None]


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    low: float | None = None,
    high: float | None = None,
    dots: bool = False,
    last: bool = True,
) -> str:
    """A panel with one line for each run and the last value of each in words.

    Args:
        title: of the panel.
        curves: of the runs.
        low: lower end of the axis; that of the data if None.
        high: upper end; values above are drawn along it.
        dots: mark every value.
        last: say the last value of each.

    Returns:
        HTML; empty if there is no number to draw.
    """
    drawn = [(curve.run, *_finite(curve)) for curve in curves]
    drawn = [(run, x, y) for run, x, y in drawn if np.isfinite(y).any()]
    if not drawn:
        return ""
    every_y = np.concatenate([y[np.isfinite(y)] for _, _, y in drawn])
    every_x = np.concatenate([x for _, x, _ in drawn])
    bottom = float(every_y.min()) if low is None else low
    top = float(every_y.max()) if high is None else high
    if top - bottom <= 1e-6 * abs(bottom):  # the same but for rounding
        bottom, top = bottom - (abs(bottom) or 1) * 0.05, bottom + (abs(bottom) or 1) * 0.05
    axes = _Axes(float(every_x.min()), float(every_x.max()), bottom, top)
    body = "".join(_line(run, x, y, axes, dots=dots) for run, x, y in drawn)
    lasts = " ".join(
        f'<span class="run{run}">{_number(float(y[np.isfinite(y)][-1]))}</span>'
        for run, _, y in drawn
    )
    words = f" <small>last {lasts}</small>" if last else ""
    return (
        f"<figure><figcaption>{escape(title)}{words}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{axes.drawn()}{body}</svg></figure>"
    )


def bars(title: str, values: Mapping[str, Sequence[tuple[int, float, str]]]) -> str:
    """A panel of horizontal bars, one a run below each name.

    Args:
        title: of the panel.
        values: by name: number of the run, length (not negative), and that length in words.

    Returns:
        HTML; empty if nothing is above zero.
    """
    longest = max((length for row in values.values() for _, length, _ in row), default=0.0)
    if not longest > 0:
        return ""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>"
        + "".join(
            f'<div class="bar run{run}"><i style="width:{70 * length / longest:.1f}%"></i>'
            f"{escape(text)}</div>"
            for run, length, text in row
        )
        + "</td></tr>"
        for name, row in values.items()
    )
    head = f"<figcaption>{escape(title)}</figcaption>"
    return f'<figure>{head}<table class="bars">{rows}</table></figure>'


@dataclass(frozen=True, slots=True)
class _Axes:
    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        width = (self.right - self.left) or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - self.left) / width

    def y(self, value: float) -> float:
        share = (min(max(value, self.bottom), self.top) - self.bottom) / (self.top - self.bottom)
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share)

    def drawn(self) -> str:
        """Grid lines with their numbers, and steps below."""
        ticks = _ticks(self.bottom, self.top)
        lines = "".join(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{self.y(v):.1f}" y2="{self.y(v):.1f}"/>'
            f'<text x="{_LEFT - 4}" y="{self.y(v) + 4:.1f}" text-anchor="end">{text}</text>'
            for v, text in zip(ticks, _told_apart(ticks), strict=True)
        )
        steps = [v for v in _ticks(self.left, self.right) if v == int(v)] or [self.left]
        return lines + "".join(
            f'<text x="{min(self.x(v), _WIDTH - 20):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">'
            f"{int(v):,}</text>"
            for v in steps
        )


def _finite(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    values = np.array([math.nan if v is None else v for v in curve.values], float)
    return np.array(curve.steps, float), np.where(np.isfinite(values), values, math.nan)


def _line(run: int, x: np.ndarray, y: np.ndarray, axes: _Axes, *, dots: bool) -> str:
    size = math.ceil(len(x) / _POINTS)
    if size == 1:
        path = _path(x, y, axes)
        known = np.isfinite(np.concatenate([[math.nan], y, [math.nan]]))
        alone = ~known[:-2] & ~known[2:]
        marks = "".join(
            f'<circle cx="{axes.x(a):.1f}" cy="{axes.y(b):.1f}" r="2.5"/>'
            for a, b, single in zip(x, y, alone, strict=True)
            # A number alone between gaps would not be seen as a line.
            if math.isfinite(b) and (dots or single)
        )
        return f'<g class="run{run}"><path class="line" d="{path}"/>{marks}</g>'
    kept = [
        (x[at : at + size].mean(), part.mean(), part.min(), part.max())
        for at in range(0, len(x), size)
        if len(part := y[at : at + size][np.isfinite(y[at : at + size])])
    ]
    middle, mean, least, most = np.array(kept).T
    band = [*zip(middle, most, strict=True), *zip(middle[::-1], least[::-1], strict=True)]
    points = " ".join(f"{axes.x(a):.1f},{axes.y(b):.1f}" for a, b in band)
    return (
        f'<g class="run{run}"><polygon points="{points}"/>'
        f'<path class="line" d="{_path(middle, mean, axes)}"/></g>'
    )


def _path(x: np.ndarray, y: np.ndarray, axes: _Axes) -> str:
    """Moves after a gap, lines elsewhere."""
    parts, pen = [], "M"
    for a, b in zip(x, y, strict=True):
        if math.isfinite(b):
            parts.append(f"{pen}{axes.x(a):.1f} {axes.y(b):.1f}")
        pen = "L" if math.isfinite(b) else "M"
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(n for n in (1, 2, 2.5, 5, 10) if n * unit >= rough)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float, digits: int = 3) -> str:
    if 1_000 <= abs(value) < 100_000:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    if 0 < abs(value) < 0.001 and "e" not in text:  # as wide as the others
        text = f"{value:.{digits - 1}e}"
        mantissa, power = text.split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{power}"
    return text.replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def _told_apart(values: list[float]) -> list[str]:
    """The numbers with as many digits, from three on, as make each another text."""
    for digits in range(3, 9):
        texts = [_number(value, digits) for value in values]
        if len(set(texts)) == len(texts):
            break
    return texts
