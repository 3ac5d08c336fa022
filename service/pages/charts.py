"""Histograms and counts whose bars lead to filters; `charts.html` draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

Link = Callable[..., str]
"""The page's own question with changed parameters."""
_MOST: Final = 40  # bars of named values
_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its range or name, how many there are, how many are asked for, where it leads."""

    label: str
    total: int
    found: int
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Bars as a template draws them: all pale, those asked for before them; ticks by bar."""

    title: str
    unit: str = ""
    bars: Sequence[Bar]
    ticks: Mapping[float, str]


def histogram(
    statistics: Mapping[str, Any],
    title: str,
    unit: str,
    found: Sequence[int],
    link: Link,
    low: str = "",
    high: str = "",
) -> Chart | None:
    """A histogram of one numeric column; None if nothing is known."""
    edges, counts = statistics.get("edges"), statistics.get("counts")
    if not edges or not counts:
        return None
    whole = statistics.get("kind") == "integer"  # a range ends below its last edge
    bars = []
    for (a, b), total, some in zip(pairwise(edges), counts, found, strict=True):
        asked = {name: value for name, value in ((low, a), (high, b - whole)) if name}
        label = f"{_short(a)} to {_short(b)}"
        bars.append(Bar(label, total, some, link(**asked) if total else ""))
    step = max(1, round(len(counts) / _TICKS))
    ticks = {float(i): _short(edges[i]) for i in range(0, len(edges), step)}
    return Chart(title=title, unit=unit, bars=bars, ticks=ticks)


def years(values: Mapping[str, int], found: Mapping[str, int], link: Link) -> Chart | None:
    """A bar for each year, the last of them; None if none is known."""
    bars = []
    for year, total in list(values.items())[-_MOST:]:
        known = year.isdecimal() and total
        asked = (f"{year}-01-01", f"{int(year) + 1:04d}-01-01") if known else ()
        leads = link(released_from=asked[0], released_before=asked[1]) if asked else ""
        bars.append(Bar(year, total, found.get(year, 0), leads))
    step = max(1, round(len(bars) / 6))
    ticks = {i + 0.5: bar.label for i, bar in enumerate(bars) if i % step == 0}
    return Chart(title="Released in", bars=bars, ticks=ticks) if bars else None


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
