"""Panels of charts and maps (drawn by plotly.js), structures (by Mol*) and alignments."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from evofeed.protein.chain_numbers import thinned
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP, MSA_LETTERS
from evofeed.protein.structure_text import Structure, to_mmcif, to_model_cif
from evofeed.viz.document import Panel, panel_html

COLOURS: Final = ("#1f77b4", "#e07b00", "#2b8a3e", "#8a3ea8")
"""Colours of the runs of a page, in order."""
PLDDT_BANDS: Final = ((0, "#ff7d45"), (50, "#ffdb13"), (70, "#65cbf3"), (90, "#0053d6"))
"""Lower edge and colour, as AlphaFold DB shows confidence."""
FARTHEST: Final = 22.0
"""Distance from which on every map has one colour, ångström."""
MOST_RESIDUES: Final = 512
"""Residues of a map in a page; a longer one shows evenly spread residues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a chart; a value that is None or not finite is a gap."""

    name: str
    steps: Sequence[int | float]
    values: Sequence[int | float | None]
    colour: str = COLOURS[0]


def figure_html(
    data: Sequence[Mapping[str, Any]], title: str, note: str = "", **layout: Any
) -> Panel:
    """A panel with a figure.

    Args:
        data: plotly's traces; arrays may be numpy's, and values that are not finite are gaps.
        layout: plotly's layout; `linked` names figures that are zoomed together.
    """
    return panel_html("figure", {"data": data, "layout": layout}, title, note)


def curves_html(
    title: str,
    curves: Sequence[Curve],
    *,
    low: float | None = None,
    high: float | None = None,
    across: str = "step",
) -> Panel:
    """A panel with one line for each curve, and its last value in words; empty without a number."""
    finite = [
        (curve, [v for v in curve.values if v is not None and math.isfinite(v)]) for curve in curves
    ]
    finite = [(curve, values) for curve, values in finite if values]
    if not finite:
        return Panel()
    data = [
        {"type": "scatter", "mode": "lines" if len(values) > 50 else "lines+markers",
         "name": curve.name, "x": list(curve.steps), "y": list(curve.values),
         "line": {"color": curve.colour, "width": 1.5}}
        for curve, values in finite
    ]  # fmt: skip
    span = None if low is None and high is None else [low, high]
    last = f"last {', '.join(f'{values[-1]:.4g}' for _, values in finite)}"
    return figure_html(
        data, title, last if across == "step" else "",
        xaxis={"title": {"text": across}}, yaxis={"range": span},
    )  # fmt: skip


def bars_html(title: str, rows: Mapping[str, Mapping[str, float]], unit: str = "") -> Panel:
    """A panel of horizontal bars, one for each name and series; empty without a positive length."""
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    if not any(value > 0 for row in rows.values() for value in row.values()):
        return Panel()
    data = [
        {"type": "bar", "orientation": "h", "name": name, "y": list(rows),
         "x": [row.get(name) for row in rows.values()], "marker": {"color": colour}}
        for name, colour in zip(series, COLOURS, strict=False)
    ]  # fmt: skip
    return figure_html(
        data, title, xaxis={"title": {"text": unit}}, yaxis={"autorange": "reversed"}
    )


def histogram_html(title: str, edges: Sequence[float], counts: Sequence[int], unit: str) -> Panel:
    """A panel with one bar for each bin, all of one width; `edges` has one more than `counts`."""
    if not counts:
        return Panel()
    names = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    data = [{"type": "bar", "x": names, "y": list(counts), "marker": {"color": COLOURS[0]}}]
    return figure_html(data, title, xaxis={"title": {"text": unit}}, bargap=0.05)


def map_html(
    title: str,
    values: np.ndarray,
    *,
    low: float,
    high: float,
    unit: str,
    near_dark: bool = True,
    residues: Sequence[int | str] | None = None,
    linked: str = "",
) -> Panel:
    """A panel with a map of residue pairs, which shows the value under the pointer.

    Args:
        values: `[L, L]`, NaN where unknown; above `MOST_RESIDUES` evenly spread ones are shown.
        near_dark: True if low values are dark.
        residues: number or name of each; by default they are counted from 1.
        linked: maps of one page with this name are zoomed together.
    """
    shown = thinned(np.arange(len(values)), MOST_RESIDUES)
    names = [residues[i] for i in shown] if residues is not None else (shown + 1).tolist()
    cells = np.asarray(values, np.float32)[np.ix_(shown, shown)]
    data = [
        {"type": "heatmap", "x": names, "y": names, "zmin": low, "zmax": high,
         "z": {"dtype": "f4", "shape": f"{len(shown)}, {len(shown)}",
               "bdata": b64encode(cells.astype("<f4").tobytes()).decode()},
         "colorscale": "Viridis", "reversescale": near_dark, "hoverongaps": False,
         "hovertemplate": f"%{{y}}, %{{x}}: %{{z:.1f}} {unit}<extra></extra>",
         "colorbar": {"title": {"text": unit}, "thickness": 12}}
    ]  # fmt: skip
    note = "" if len(shown) == len(values) else f"{len(shown)} of {len(values):,} residues"
    axis = {"title": {"text": "residue"}, "constrain": "domain", "nticks": 10}
    return figure_html(
        data, title, note, linked=linked, height=440, xaxis=axis,
        yaxis=axis | {"autorange": "reversed", "scaleanchor": "x"},
    )  # fmt: skip


def plddt_html(title: str, curves: Mapping[str, np.ndarray]) -> Panel:
    """A panel with the pLDDT of every residue, from 1, and one line for each prediction."""
    return curves_html(
        title,
        [
            Curve(name=name, steps=range(1, len(values) + 1), values=values.tolist(), colour=colour)
            for (name, values), colour in zip(curves.items(), COLOURS, strict=False)
        ],
        low=0.0, high=100.0, across="residue",
    )  # fmt: skip


def usual_top(values: np.ndarray) -> float:
    """Upper end of an axis, above the usual values even if a few outliers are higher."""
    top = 1.5 * float(np.quantile(values, 0.9))
    return top if 0 < top < values.max() / 2 else 1.05 * float(values.max()) or 1.0


MAX_CELLS: Final = 4 << 20
"""Cells of an alignment inside a page, 1 byte each; a larger one shows its first rows."""


def alignment_html(record: ChainRecord, title: str = "alignment", url: str = "") -> Panel:
    """A panel with the rows of an alignment, the query on top, residues counted from 1.

    Args:
        url: address of the rows, one letter for each cell and `-` for gaps, which is read in ranges
            as they come into view; without it the rows are in the page.
    """
    covered = (record.msa != GAP).sum(0)
    rows = record.num_alignments
    data = {"columns": record.num_res, "covered": covered}
    if url:
        return panel_html("alignment", data | {"rows": rows, "url": url}, title, f"{rows:,} rows")
    shown = max(1, min(rows, MAX_CELLS // record.num_res))
    note = f"{rows:,} rows" if shown == rows else f"the first {shown:,} of {rows:,} rows"
    letters = b64encode(MSA_LETTERS[record.msa[:shown]].tobytes()).decode()
    return panel_html("alignment", data | {"rows": shown, "letters": letters}, title, note)


TRUE_COLOUR = "#9aa5b3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One structure of a panel.

    Attributes:
        cif: mmCIF text, ModelCIF if it has pLDDT.
        url: instead of `cif`, its address on the page's host.
        plddt: True if it can be coloured by pLDDT.
        colour: to distinguish several structures.
        placed: rotation `[3, 3]`, row by row, multiplied from the right, and shift.
    """

    name: str
    cif: str = ""
    url: str = ""
    plddt: bool = False
    colour: str = COLOURS[0]
    placed: tuple[tuple[float, ...], tuple[float, ...]] | None = None


def structure_html(models: Sequence[Model], title: str, note: str = "") -> Panel:
    """A panel with structures in one frame, which can be rotated, restyled, coloured and hidden."""
    if not models:
        return Panel()
    shown = [
        {"name": model.name, "plddt": model.plddt, "colour": model.colour, "placed": model.placed}
        | ({"url": model.url} if model.url else {"cif": model.cif})
        for model in models
    ]
    return panel_html("structure", {"models": shown}, title, note)


def model_of(structure: Structure, name: str, *, plddt: bool, colour: str = COLOURS[0]) -> Model:
    """A structure of a panel; `plddt`: its confidence is pLDDT."""
    text = to_model_cif(structure) if plddt else to_mmcif(structure)
    return Model(name=name, cif=text, plddt=plddt, colour=colour)
