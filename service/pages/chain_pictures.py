"""What the page of a chain draws."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from evofeed.chain_numbers import (
    ca_trace,
    msa_cells,
    msa_coverage,
    pseudo_beta_distances,
    runs,
)
from evofeed.chain_record import ChainRecord
from evofeed.drawing.charts import Curve, chart
from evofeed.residues import ATOM_ORDER
from evofeed.service.pages.charts import histogram

_LINE, _BLOCK = 60, 10  # residues of a line, and of a group in it
_ROWS, _COLUMNS = 400, 800  # cells of the picture of an alignment, at most
RESIDUES = 512  # of a map of distances, at most
_NEAR, _FAR, _CONTACT = 2.0, 22.0, 8.0  # ångström
_BINS = 20
_LINE_COLOUR = np.array([0.76, 0.16, 0.18, 1.0])


def sequence_blocks(record: ChainRecord) -> list[dict[str, Any]]:
    """The sequence in lines: number of the first residue, and groups of `(letters, resolved)`."""
    known = np.isfinite(ca_trace(record)[:, 0])
    if record.all_atom_positions is None:
        known[:] = True  # nothing to tell apart
    lines = []
    for start in range(0, record.num_res, _LINE):
        groups = []
        for first in range(start, min(start + _LINE, record.num_res), _BLOCK):
            last = min(first + _BLOCK, record.num_res)
            cuts = [first, *(i for i in range(first + 1, last) if known[i] != known[i - 1]), last]
            groups.append([(record.sequence[a:b], bool(known[a])) for a, b in pairwise(cuts)])
        lines.append({"first": start + 1, "groups": groups})
    return lines


def coverage_chart(record: ChainRecord) -> Markup:
    """How many rows of the alignment cover each residue."""
    covered, _ = msa_coverage(record)
    curve = Curve(run=0, steps=range(1, record.num_res + 1), values=covered.tolist())
    return Markup(chart("sequences that cover each residue", [curve], low=0.0, last=False))


def identity_histogram(record: ChainRecord) -> Markup:
    """How alike the rows are to the query."""
    _, identity = msa_coverage(record)
    edges = [round(i / _BINS, 2) for i in range(_BINS + 1)]
    counts, _ = np.histogram(identity[1:], edges)
    statistics = {"edges": edges, "counts": counts.tolist()}
    return histogram(statistics, "Identity to the query", "share of covered residues")


def template_rows(record: ChainRecord) -> list[dict[str, Any]]:
    """Each template: name, date, score, share of residues it covers, and which."""
    rows = []
    for i in range(record.num_templates):
        covered = record.template_all_atom_mask[i, :, ATOM_ORDER["CA"]] > 0
        rows.append(
            {
                "name": _nth(record.template_domain_names, i),
                "released": _nth(record.template_release_date, i),
                "sum_probs": float(record.template_sum_probs[i]),
                "share": float(covered.mean()),
                "runs": runs(covered),
            }
        )
    return rows


def alignment_png(record: ChainRecord) -> bytes:
    """The alignment: a row a sequence, the most alike on top; nothing where it has a gap."""
    return _png(msa_cells(record, _ROWS, _COLUMNS)[::-1], "viridis", 0.0, 1.0)


def distances_png(record: ChainRecord) -> bytes:
    """Distances above the diagonal, contacts below it; nothing where a residue is missing."""
    distance, known = pseudo_beta_distances(record, RESIDUES)
    return _png(_with_contacts(np.where(known, distance, np.nan)), "viridis_r", _NEAR, _FAR)


def complex_png(distance: np.ndarray, chain: np.ndarray) -> bytes:
    """As `distances_png`, of `assembly_distances`; red lines part the chains."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    values = _with_contacts(distance)
    cells = colormaps["viridis_r"](Normalize(_NEAR, _FAR, clip=True)(values))
    cells[np.isnan(values)] = 0.0
    ends = np.flatnonzero(np.diff(chain)) + 1
    for axis in (0, 1):
        cells = np.insert(cells, ends, _LINE_COLOUR, axis=axis)
    return _png(cells, None, None, None)


def _with_contacts(values: np.ndarray) -> np.ndarray:
    """Distances above the diagonal, contacts below it: the nearest or the farthest colour."""
    contact = np.where(values < _CONTACT, _NEAR, np.where(np.isnan(values), np.nan, _FAR))
    below = np.tril(np.ones_like(values, dtype=bool), -1)
    return np.where(below, contact, values)


def _png(values: np.ndarray, colours: str | None, low: float | None, high: float | None) -> bytes:
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, values, cmap=colours, vmin=low, vmax=high, format="png")
    return file.getvalue()


def _scale(colours: str, low: str, high: str) -> Markup:
    """A bar of the colours with what its ends mean."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    steps = 24
    rects = Markup("").join(
        Markup('<rect x="{}" y="0" width="5.5" height="8" fill="{}"/>').format(
            5 * i, to_hex(colormaps[colours](i / (steps - 1)))
        )
        for i in range(steps)
    )
    return Markup(
        '<span class="scale">{} <svg viewBox="0 0 120 8" aria-hidden="true">{}</svg> {}</span>'
    ).format(low, rects, high)


class _Scales:
    """Made when a page first asks: matplotlib takes a while to load."""

    @property
    def identity(self) -> Markup:
        """Of `alignment_png`."""
        return _scale("viridis", "0 %", "100 %")

    @property
    def distance(self) -> Markup:
        """Of `distances_png`."""
        return _scale("viridis_r", f"{_NEAR:g} Å", f"{_FAR:g} Å and more")


SCALES: Final = _Scales()


def _nth(values: tuple[str, ...], i: int) -> str:
    return values[i] if i < len(values) else ""
