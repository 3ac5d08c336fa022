"""What the page of a chain or a complex draws."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from evofeed.protein.assembly_numbers import assembly_distances
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_numbers import (
    ca_trace,
    msa_coverage,
    pseudo_beta_distances,
    runs,
    thinned,
)
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import ATOM_ORDER
from evofeed.viz import (
    FARTHEST,
    MOST_RESIDUES,
    Curve,
    curves_html,
    histogram_html,
    map_html,
)

_LINE, _BLOCK = 60, 10  # residues of a line, and of a group in it
_BINS = 20


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
    curve = Curve(name="sequences", steps=range(1, record.num_res + 1), values=covered.tolist())
    return Markup(
        curves_html("sequences that cover each residue", [curve], low=0.0, across="residue")
    )


def identity_histogram(record: ChainRecord) -> Markup:
    """How alike the rows are to the query."""
    _, identity = msa_coverage(record)
    edges = [round(i / _BINS, 2) for i in range(_BINS + 1)]
    counts, _ = np.histogram(identity[1:], edges)
    return Markup(
        histogram_html("identity to the query", edges, counts.tolist(), "of covered residues")
    )


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


def chain_distances(record: ChainRecord) -> Markup:
    """Distances between the residues of a chain."""
    distance, known = pseudo_beta_distances(record, MOST_RESIDUES)
    residues = thinned(np.arange(1, record.num_res + 1), MOST_RESIDUES).tolist()
    return _distances(np.where(known, distance, np.nan), residues, record.num_res)


def complex_distances(record: AssemblyRecord) -> Markup:
    """Distances between the residues of all chains, each named by its chain and number."""
    distance, _ = assembly_distances(record, MOST_RESIDUES)
    names = [
        f"{name} {i}"
        for name, chain in zip(record.chain_names, _lengths(record), strict=True)
        for i in range(1, chain + 1)
    ]
    at = thinned(np.arange(len(names)), MOST_RESIDUES)
    return _distances(distance, [names[i] for i in at], len(names))


def _lengths(record: AssemblyRecord) -> list[int]:
    return [
        chain.num_res
        for chain, names in zip(record.chains, record.copies, strict=True)
        for _ in names
    ]


def _distances(values: np.ndarray, residues: Sequence[int | str], total: int) -> Markup:
    title = "distances between residues (CB, of glycine CA)"
    if len(residues) < total:
        title += f", {len(residues)} of {total:,}"
    return Markup(map_html(title, values, low=2.0, high=FARTHEST, unit="Å", residues=residues))


def _nth(values: tuple[str, ...], i: int) -> str:
    return values[i] if i < len(values) else ""
