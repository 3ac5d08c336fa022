"""Small charts as inline SVG: no script, no style attribute, so that a strict CSP holds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from markupsafe import Markup, escape

_WIDTH: Final = 520
_HEIGHT: Final = 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 18, 34
_TICKS: Final = 6


def histogram(statistics: dict[str, Any], title: str, unit: str) -> Markup:
    """A histogram of one numeric column; empty if nothing is known.

    Bars are equally wide: for counts such as lengths, the bins have equal ratios, so
    the axis is logarithmic.

    Args:
        statistics: a column of `column_statistics`, with `edges` and `counts`.
        title: what is shown.
        unit: of the axis.
    """
    edges, counts = statistics.get("edges"), statistics.get("counts")
    if not edges or not counts:
        return Markup("")
    labels = [f"{_short(low)} to {_short(high)}" for low, high in pairwise(edges)]
    step = max(1, round(len(counts) / _TICKS))
    ticks = {i: _short(edges[i]) for i in range(0, len(edges), step)}
    return _bars(counts, labels, ticks, title, unit)


def bars(values: dict[str, int], title: str) -> Markup:
    """One bar for each name, as many as fit."""
    shown = dict(list(values.items())[:40])
    if not shown:
        return Markup("")
    step = max(1, round(len(shown) / 10))
    ticks = {i + 0.5: name for i, name in enumerate(shown) if i % step == 0}
    return _bars(list(shown.values()), list(shown), ticks, title, "")


_BAR: Final = Markup(
    '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
)


def _bars(
    counts: list[int], labels: list[str], ticks: dict[Any, str], title: str, unit: str
) -> Markup:
    width = (_WIDTH - _LEFT - _RIGHT) / len(counts)
    full, floor = _HEIGHT - _TOP - _BOTTOM, _HEIGHT - _BOTTOM
    top = max(counts) or 1
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            _WIDTH, _HEIGHT, title
        ),
        Markup('<text class="title" x="{}" y="12">{}</text>').format(_LEFT, title),
        Markup('<text class="unit" x="{}" y="12" text-anchor="end">{}</text>').format(
            _WIDTH - _RIGHT, f"most in a bar: {top:,}"
        ),
    ]
    for i, (count, label) in enumerate(zip(counts, labels, strict=True)):
        height = full * count / top
        parts.append(
            _BAR.format(
                _LEFT + i * width,
                floor - height,
                max(width - 1.5, 0.5),
                height,
                f"{label}{' ' + unit if unit else ''}: {count:,}",
            )
        )
    parts.append(
        Markup('<line x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
            _LEFT, floor, _WIDTH - _RIGHT, floor
        )
    )
    for at, text in ticks.items():
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                min(max(_LEFT + at * width, 18), _WIDTH - 18), floor + 13, text
            )
        )
    parts.append(
        Markup('<text class="unit" x="{}" y="{}" text-anchor="middle">{}</text></svg>').format(
            _WIDTH / 2, _HEIGHT - 5, escape(unit)
        )
    )
    return Markup("").join(parts)


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
