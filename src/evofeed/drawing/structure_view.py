"""CA traces drawn from the front; `structure.js` turns them, and without it they stand still."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import numpy as np

SPECTRUM: Final = 8
"""Colours of a single chain, from its first residue to its last: classes `part0` to `part7`."""
_APART: Final = (0, 6, 3, 5, 1, 7, 2, 4)
_SIZE = 360
_MARGIN = 14
_WIDEST = 700  # residues drawn; of longer chains every second, third, ...
_NAMED = 24  # chains that a legend names
_BREAK = 4.2  # ångström between neighbours of a trace beyond which nothing joins them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnTrace:
    """A line through points `[n, 3]`, drawn in the style of a class."""

    kind: str
    points: np.ndarray


def trace_view(
    title: str, note: str, traces: Sequence[DrawnTrace], legend: str, *, by_depth: bool = False
) -> str:
    """A panel with traces that belong together, in the principal axes of all their points.

    Args:
        title: of the panel.
        note: small, behind it.
        traces: in order of drawing, the last on top.
        legend: HTML below the picture.
        by_depth: once it is turned, nearer traces are drawn over farther ones.

    Returns:
        HTML; empty without two points.
    """
    traces = [trace for trace in traces if len(trace.points) > 1]
    if not traces or not all(np.isfinite(trace.points).all() for trace in traces):
        return ""
    front = _from_the_front([trace.points for trace in traces])
    radius = max(float(np.linalg.norm(points, axis=1).max()) for points in front) or 1.0
    scale, half = (_SIZE / 2 - _MARGIN) / radius, _SIZE / 2
    drawn = [points * scale for points in front]
    order = list(range(len(drawn)))
    if by_depth:
        order.sort(key=lambda i: float(drawn[i][:, 2].mean()))
    # The script knows lines by their order.
    shown = [np.round(drawn[i], 1).tolist() for i in order]
    data = json.dumps(shown, separators=(",", ":"))
    lines = "".join(
        f'<polyline class="{traces[i].kind}" points="'
        + " ".join(f"{half + x:.1f},{half - y:.1f}" for x, y, _ in drawn[i])
        + '"/>'
        for i in order
    )
    depth = ' data-depth="1"' if by_depth else ""
    return (
        f"<figcaption>{escape(title)} <small>{escape(note)}</small></figcaption>"
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" role="img" tabindex="0" '
        f'aria-label="{escape(title)}"{depth} data-traces="{escape(data)}">{lines}</svg>'
        f'<p>{legend}<span class="turn" hidden>; drag it or use the arrow keys to turn it</span>'
        "</p>"
    )


def pair_view(pred: np.ndarray, true: np.ndarray, title: str, run: int = 0) -> str:
    """A panel with a predicted trace on the true one.

    Args:
        pred: `[n, 3]`, ångström, superposed already.
        true: likewise.
        title: of the panel.
        run: number of the run on the page: the colour of its prediction.

    Returns:
        HTML; empty with fewer than two residues.
    """
    if len(true) < 2 or not (np.isfinite(pred).all() and np.isfinite(true).all()):
        return ""
    rmsd = float(np.sqrt(((pred - true) ** 2).sum(axis=1).mean()))
    step = -(-len(true) // _WIDEST)
    traces = [
        DrawnTrace(kind="true", points=true[::step]),
        DrawnTrace(kind="pred", points=pred[::step]),
    ]
    body = trace_view(
        title,
        f"{len(true)} residues, CA RMSD {rmsd:.1f} Å",
        traces,
        '<span class="pred">predicted</span> on <span class="true">true</span>',
    )
    return f'<figure class="structure run{run}">{body}</figure>'


def structure_view(path: Path, title: str, run: int = 0) -> str:
    """`pair_view` of a file with `pred` and `true`; empty without such a file."""
    if not path.is_file():
        return ""
    with np.load(path) as traces:
        pred, true = np.asarray(traces["pred"], float), np.asarray(traces["true"], float)
    return pair_view(pred, true, title, run)


def chain_view(ca: np.ndarray, title: str) -> str:
    """A panel with one chain, coloured from its first residue to its last.

    Args:
        ca: `[L, 3]`, ångström, NaN where a residue is not resolved; the line breaks there.
        title: of the panel.

    Returns:
        HTML; empty with fewer than two resolved residues.
    """
    known = np.isfinite(ca).all(axis=1)
    traces = _pieces(ca, np.arange(len(ca)) * SPECTRUM // max(len(ca), 1), -(-len(ca) // _WIDEST))
    note = f"{int(known.sum())} of {len(ca)} residues"
    legend = 'from the <span class="part0">first</span> residue to the '
    legend += f'<span class="part{SPECTRUM - 1}">last</span>'
    body = trace_view(title, note, traces, legend, by_depth=True)
    return f'<figure class="structure">{body}</figure>' if body else ""


def chain_colour(number: int) -> str:
    """Class of the colour of a complex's chain, from 0: neighbours differ most."""
    return f"part{_APART[number % SPECTRUM]}"


def complex_view(ca: np.ndarray, chain: np.ndarray, names: Sequence[str], title: str) -> str:
    """A panel with a complex, each chain in a colour of its own.

    Args:
        ca: `[L, 3]`, ångström, NaN where a residue is not resolved; lines break there.
        chain: number of each residue's chain, `[L]`, from 1.
        names: of the chains.
        title: of the panel.

    Returns:
        HTML; empty with fewer than two resolved residues.
    """
    known = np.isfinite(ca).all(axis=1)
    step = -(-len(ca) // _WIDEST)
    traces = []
    for number in range(1, len(names) + 1):
        own = ca[chain == number]
        traces += _pieces(own, np.full(len(own), _APART[(number - 1) % SPECTRUM]), step)
    shown = [
        f'<span class="{chain_colour(number)}">{escape(name)}</span>'
        for number, name in enumerate(names[:_NAMED])
    ]
    legend = f"chains {', '.join(shown)}{' and more' if len(names) > _NAMED else ''}"
    note = f"{int(known.sum())} of {len(ca)} residues"
    body = trace_view(title, note, traces, legend, by_depth=True)
    return f'<figure class="structure">{body}</figure>' if body else ""


def _pieces(ca: np.ndarray, colour: np.ndarray, step: int) -> list[DrawnTrace]:
    """A chain's trace, every `step`-th residue, cut where it is broken or its colour changes."""
    at = np.flatnonzero(np.isfinite(ca).all(axis=1))[::step]
    far = np.linalg.norm(np.diff(ca[at], axis=0), axis=1) > _BREAK * step
    broken = (np.diff(at) > step) | far
    traces, first = [], 0
    for i in range(1, len(at) + 1):
        if i < len(at) and not broken[i - 1] and colour[at[i]] == colour[at[first]]:
            continue
        joined = i < len(at) and not broken[i - 1]  # the next colour begins where this one ends
        points = ca[at[first : i + joined]]
        traces.append(DrawnTrace(kind=f"part{colour[at[first]]}", points=points))
        first = i
    return traces


def _from_the_front(traces: Sequence[np.ndarray]) -> list[np.ndarray]:
    """In the principal axes of all points, the longest across; a rotation, never a mirror."""
    every = np.concatenate(traces)
    centre = every.mean(axis=0)
    axes = np.linalg.svd(every - centre, full_matrices=True)[2]
    if np.linalg.det(axes) < 0:
        axes[2] *= -1
    return [(points - centre) @ axes.T for points in traces]
