"""Small charts as inline SVG: no script, no style attribute, so that a strict CSP holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from markupsafe import Markup

_WIDTH: Final = 400
_HEIGHT: Final = 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 22, 34
_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Brush:
    """What the bars of a histogram lead to.

    Attributes:
        links: of each bar.
        low: name of the parameter that a range begins with; empty for none.
        high: name of the one that it ends with.
        edges: of the bars.
        whole: the values are whole numbers, so that a range ends below its last edge.
    """

    links: Sequence[str]
    low: str
    high: str
    edges: Sequence[float]
    whole: bool


def histogram(
    statistics: Mapping[str, Any],
    title: str,
    unit: str,
    found: Sequence[int] | None = None,
    brush: Brush | None = None,
) -> Markup:
    """A histogram of one numeric column; empty if nothing is known.

    Bars are equally wide: for counts such as lengths, the bins have equal ratios, so
    the axis is logarithmic.

    Args:
        statistics: a column of `column_statistics`, with `edges` and `counts`.
        title: what is shown.
        unit: of the axis.
        found: counts of those that are asked for, drawn before all.
        brush: makes the bars filters.
    """
    edges, counts = statistics.get("edges"), statistics.get("counts")
    if not edges or not counts:
        return Markup("")
    labels = [f"{_short(low)} to {_short(high)}" for low, high in pairwise(edges)]
    step = max(1, round(len(counts) / _TICKS))
    ticks = {float(i): _short(edges[i]) for i in range(0, len(edges), step)}
    data = Markup("")
    if brush:
        data = Markup(' data-low="{}" data-high="{}" data-edges="{}" data-whole="{}"').format(
            brush.low, brush.high, " ".join(map(str, brush.edges)), int(brush.whole)
        )
    links = brush.links if brush else None
    return _chart(counts, found, labels, ticks, title, unit, links, data)


def bars(
    values: Mapping[str, int],
    title: str,
    found: Mapping[str, int] | None = None,
    links: Mapping[str, str] | None = None,
) -> Markup:
    """One bar for each name, as many as fit: the last of them.

    Args:
        values: count of each.
        title: what is shown.
        found: counts of those that are asked for, drawn before all.
        links: what a bar leads to.
    """
    shown = dict(list(values.items())[-40:])
    if not shown:
        return Markup("")
    step = max(1, round(len(shown) / 6))
    ticks = {i + 0.5: name for i, name in enumerate(shown) if i % step == 0}
    some = [found.get(name, 0) for name in shown] if found is not None else None
    leads = [links.get(name, "") for name in shown] if links is not None else None
    return _chart(list(shown.values()), some, list(shown), ticks, title, "", leads, Markup(""))


_RECT: Final = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')


def _chart(
    counts: Sequence[int],
    found: Sequence[int] | None,
    labels: Sequence[str],
    ticks: Mapping[float, str],
    title: str,
    unit: str,
    links: Sequence[str] | None,
    data: Markup,
) -> Markup:
    top = max(counts) or 1
    floor = _HEIGHT - _BOTTOM
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="{}" aria-label="{}"{}>').format(
            _WIDTH, _HEIGHT, "group" if links else "img", title, data
        ),
        Markup('<text class="title" x="{}" y="13">{}</text>').format(_LEFT, title),
        Markup('<text class="unit" x="{}" y="13" text-anchor="end">{}</text>').format(
            _WIDTH - _RIGHT, f"highest bar {top:,}"
        ),
    ]
    for i, label in enumerate(labels):
        some = counts[i] if found is None else found[i]
        parts.append(_bar(i, len(counts), counts[i] / top, some / top, some != counts[i]))
        words = f"{label}{' ' + unit if unit else ''}: {some:,}"
        words += f" of {counts[i]:,}" if some != counts[i] else ""
        body = Markup("<title>{}</title>{}").format(words, parts.pop())
        lead = links[i] if links and counts[i] else ""
        parts.append(
            Markup('<a href="{}" aria-label="{}" tabindex="-1">{}</a>').format(lead, words, body)
            if lead
            else Markup("<g>{}</g>").format(body)
        )
    parts.append(
        Markup('<line x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
            _LEFT, floor, _WIDTH - _RIGHT, floor
        )
    )
    width = (_WIDTH - _LEFT - _RIGHT) / len(counts)
    for at, text in ticks.items():
        x = min(max(_LEFT + at * width, 18), _WIDTH - 18)
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                x, floor + 13, text
            )
        )
    parts.append(
        Markup('<text class="unit" x="{}" y="{}" text-anchor="middle">{}</text></svg>').format(
            _WIDTH / 2, _HEIGHT - 5, unit
        )
    )
    return Markup("").join(parts)


def _bar(i: int, number: int, share: float, some: float, both: bool) -> Markup:
    """All chains of a bin pale where not all are asked for, and those that are before them."""
    width = (_WIDTH - _LEFT - _RIGHT) / number
    full, floor = _HEIGHT - _TOP - _BOTTOM, _HEIGHT - _BOTTOM
    x, wide = _LEFT + i * width, max(width - 1.5, 0.5)
    # The whole height can be pointed at, also above a low bar.
    parts = [_RECT.format("hit", x, _TOP, wide, full)]
    if both:
        parts.append(_RECT.format("all", x, floor - full * share, wide, full * share))
    parts.append(_RECT.format("bar", x, floor - full * some, wide, full * some))
    return Markup("").join(parts)


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
