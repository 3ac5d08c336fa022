"""Picture files by matplotlib: of chains, complexes, predictions and snapshots.

Residues are counted from 1. Scales are the same in all pictures, so these can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.counts import counted
from evofeed.protein.assembly_numbers import pseudo_beta_distances
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_numbers import msa_cells, msa_coverage
from evofeed.protein.chain_record import ChainRecord
from evofeed.viz.pages import FARTHEST, PLDDT_BANDS


def draw_msa_coverage(record: ChainRecord, path: Path) -> Path:
    """Alignment rows sorted by identity to the query, and the number that cover each column."""
    plt = _pyplot()
    covered, _ = msa_coverage(record)
    cells = msa_cells(record)

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    first, last = 0.5, record.num_res + 0.5
    image = axes.imshow(
        cells,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="viridis",
        vmin=0,
        vmax=1,
        extent=(first, last, 0, record.num_alignments),
    )
    residues = np.arange(1, record.num_res + 1)
    label = "number of sequences that cover the residue"
    axes.plot(residues, covered, color="black", linewidth=1.5, label=label)
    axes.set_title(f"{record.chain_id}: {record.num_alignments} sequences, white is a gap")
    axes.set_xlabel("residue")
    axes.set_ylabel("sequences, the query on top")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    figure.colorbar(image, ax=axes, label="identity to the query")
    return _save(figure, path)


def draw_distogram(record: ChainRecord, distogram: np.ndarray, path: Path) -> Path:
    """Predicted and true pseudo-beta distances, side by side.

    Args:
        record: a chain with a structure.
        distogram: probabilities `[L, L, 64]`; bin edges 2.3125 to 21.6875 Å.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.5), layout="constrained")
    truth = np.minimum(pseudo_beta_distances(AssemblyRecord.of_chain(record)), FARTHEST)
    panels = (
        (expected_distances(distogram), "predicted (mean of the distogram)"),
        (truth, "in the structure"),
    )
    for axis, (values, title) in zip(axes, panels, strict=True):
        image = _distance_map(axis, values)
        axis.set_title(title)
    figure.suptitle(f"{record.chain_id}: {_DISTANCES}")
    figure.colorbar(image, ax=list(axes), label=_SCALE)
    return _save(figure, path)


def expected_distances(distogram: np.ndarray) -> np.ndarray:
    """`f32[L, L]` mean distances in ångström of the distogram's probabilities `[L, L, 64]`.

    The last bin has no upper edge; it counts as one of the same width as the others.
    """
    edges = np.linspace(2.3125, 21.6875, distogram.shape[-1] - 1)
    step = edges[1] - edges[0]
    centres = np.concatenate([edges - step / 2, [edges[-1] + step / 2]])
    # Row by row: a long chain's are float16, and as float64 they would not fit in memory.
    return np.stack([row @ centres for row in distogram]).astype(np.float32)


def draw_prediction(
    path: Path,
    *,
    contacts: np.ndarray,
    distogram: np.ndarray,
    plddt: np.ndarray,
    title: str,
    warning: str = "",
) -> Path:
    """Contact probabilities, expected distances and confidence of a prediction.

    Args:
        contacts: `[L, L]`, probability that two CB are within 8 Å.
        distogram: probabilities `[L, L, 64]`.
        plddt: `[L]`, 0 to 100.
        warning: physical faults of the structure, in red at the bottom.
    """
    plt = _pyplot()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    image = _residue_map(left, contacts, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=left, label="probability of CB within 8 Å")
    left.set_title("contacts")
    figure.colorbar(_distance_map(middle, expected_distances(distogram)), ax=middle, label=_SCALE)
    middle.set_title("expected distances")
    edges = np.array([edge for edge, _ in PLDDT_BANDS])
    band = np.searchsorted(edges, plddt, side="right") - 1
    colours = [PLDDT_BANDS[i][1] for i in band]
    right.bar(np.arange(1, len(plddt) + 1), plddt, width=1.0, color=colours)
    right.set(xlabel="residue", ylabel="pLDDT", ylim=(0, 100))
    right.set_title(f"confidence, mean {plddt.mean():.1f}")
    if warning:
        figure.supxlabel(warning, color="#c2272d", fontsize="medium")
    figure.suptitle(title)
    return _save(figure, path)


def draw_card(card: Mapping[str, Any], path: Path) -> Path:
    """Distributions of a snapshot's columns, and reasons of what was left out."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, 4, figsize=(14, 6), layout="constrained")
    columns = card["columns"]
    panels = (
        ("num_res", "residues"),
        ("num_alignments", "alignment rows"),
        ("resolution", "resolution, Å"),
        ("cluster_size", "size of the cluster"),
    )
    for axis, (name, label) in zip(axes.flat, panels, strict=False):
        _histogram(axis, columns.get(name, {}), label)
    years = columns.get("release_date", {}).get("years", {})
    axes[1, 0].bar(range(len(years)), list(years.values()))
    step = max(1, len(years) // 5)
    axes[1, 0].set_xticks(range(0, len(years), step), list(years)[::step])
    axes[1, 0].set_xlabel("year of release" if years else "year of release: unknown")
    methods = columns.get("method", {}).get("values", {})
    counts = [{"reason": name, "count": count} for name, count in methods.items()]
    _left_out(axes[1, 1], counts, "method" if counts else "method: unknown")
    for axis, field, label in (
        (axes[1, 2], "left_out", "chains left out"),
        (axes[1, 3], "notes", "parts of chains left out"),
    ):
        _left_out(axis, card[field], label if card[field] else f"{label}: none")
    for axis in (axes[0, 0], axes[1, 0]):
        axis.set_ylabel("chains")
    figure.suptitle(f"{card['name']}: {counted(card['chains'], 'chain')}, {card['digest'][:12]}")
    return _save(figure, path)


def _histogram(axis: Any, column: Mapping[str, Any], label: str) -> None:
    axis.set_xlabel(f"{label}: unknown" if not column.get("known") else label)
    if not column.get("known"):
        return
    edges = np.asarray(column["edges"], float)
    axis.stairs(column["counts"], edges, fill=True)
    if column["kind"] == "integer" and edges[-1] > 50 * max(edges[0], 1):
        axis.set_xscale("symlog")
    if column["unknown"]:
        axis.set_title(f"unknown of {column['unknown']:,}", fontsize="small")


def _left_out(axis: Any, kinds: Sequence[Mapping[str, Any]], label: str) -> None:
    """Bars in the order of `kinds`; one bar for all reasons after the sixth."""
    counts = [(kind["reason"][:48], kind["count"]) for kind in kinds[:6]]
    if len(kinds) > 6:
        counts.append(("other reasons", sum(kind["count"] for kind in kinds[6:])))
    axis.set_xlabel(label)
    axis.set_yticks([])
    axis.barh(range(len(counts)), [count for _, count in counts], color="C1", alpha=0.5)
    for y, (reason, count) in enumerate(counts):
        axis.text(0, y, f" {count:,}: {reason}", va="center", fontsize="x-small", clip_on=True)
    axis.invert_yaxis()


_DISTANCES = "distances between residues (CB, CA of glycine)"
_SCALE = "Å; 22 and more in one colour, white is unresolved"


def _distance_map(axis: Any, values: np.ndarray) -> Any:
    return _residue_map(axis, values, cmap="viridis_r", vmin=2, vmax=FARTHEST)


def _residue_map(axis: Any, values: np.ndarray, **colours: Any) -> Any:
    """`[L, L]` as an image whose ticks are residue numbers from 1."""
    last = len(values) + 0.5
    axis.set(xlabel="residue", ylabel="residue")
    return axis.imshow(values, extent=(0.5, last, last, 0.5), **colours)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # no display is needed to write a file
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    _pyplot().close(figure)
    return path
