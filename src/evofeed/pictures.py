"""Pictures of a chain: how deep its alignment is, how far its residues are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.chain_numbers import msa_cells, msa_coverage, pseudo_beta_distances
from evofeed.chain_record import ChainRecord


def draw_msa_coverage(record: ChainRecord, path: Path) -> Path:
    """Alignment rows sorted by identity to the query, and how many cover each column."""
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
    label = "how many sequences cover the residue"
    axes.plot(residues, covered, color="black", linewidth=1.5, label=label)
    axes.set_title(f"{record.chain_id}: {record.num_alignments} sequences, white is a gap")
    axes.set_xlabel("residue")
    axes.set_ylabel("sequences, the query on top")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    figure.colorbar(image, ax=axes, label="identity to the query")
    return _save(figure, path)


def draw_distogram(record: ChainRecord, logits: np.ndarray, path: Path) -> Path:
    """Predicted against true pseudo-beta distances, side by side.

    Args:
        record: a chain with a structure.
        logits: `f32[L, L, 64]` of the distogram head; bin edges 2.3125 to 21.6875 Å.
        path: the PNG to write.
    """
    plt = _pyplot()
    true_distance, known = pseudo_beta_distances(record)
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    expected = expected_distances(shifted / shifted.sum(-1, keepdims=True))

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.5), layout="constrained")
    truth = np.where(known, np.minimum(true_distance, _FARTHEST), np.nan)
    panels = ((expected, "predicted (mean of the distogram)"), (truth, "in the structure"))
    for axis, (values, title) in zip(axes, panels, strict=True):
        image = _distance_map(axis, values)
        axis.set_title(title)
    figure.suptitle(f"{record.chain_id}: {_WHAT}")
    figure.colorbar(image, ax=list(axes), label=_SCALE)
    return _save(figure, path)


def expected_distances(distogram: np.ndarray) -> np.ndarray:
    """`[L, L]` mean distances in ångström of the distogram's probabilities `[L, L, 64]`."""
    edges = np.linspace(2.3125, 21.6875, 63)
    step = edges[1] - edges[0]
    return np.asarray(distogram @ np.concatenate([edges - step / 2, [edges[-1] + step / 2]]))


def draw_complex(
    path: Path,
    pred: np.ndarray,
    true: np.ndarray,
    chain: np.ndarray,
    distances: tuple[np.ndarray, np.ndarray],
    title: str,
) -> Path:
    """A predicted complex on the true one, and its distances, predicted and true.

    Args:
        path: the PNG to write.
        pred: predicted CA atoms, superposed on the true ones, `[n, 3]`, ångström.
        true: the true ones.
        chain: number of the chain of each, from 1.
        distances: predicted and true, `[L, L]`, ångström; NaN where unknown.
        title: above.
    """
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    middle = true.mean(axis=0)
    axes = np.linalg.svd(true - middle, full_matrices=True)[2][
        :2
    ]  # the longest two, from the front
    for number in np.unique(chain).tolist():
        colour, own = f"C{number - 1}", chain == number
        for points, width, strength in ((true, 6, 0.3), (pred, 1.8, 1.0)):
            x, y = axes @ (points[own] - middle).T
            label = f"chain {chr(ord('A') + (number - 1) % 26)}" if strength == 1 else None
            left.plot(x, y, color=colour, linewidth=width, alpha=strength, label=label)
    left.set_aspect("equal")
    left.set_axis_off()
    left.set_title("predicted (thin) on true (broad), CA atoms", fontsize="medium")
    left.legend(loc="upper center", ncols=4, frameon=False, bbox_to_anchor=(0.5, 0.0))
    upper = np.triu(np.ones(distances[0].shape, bool))
    image = _distance_map(right, np.where(upper, distances[0], np.minimum(distances[1], _FARTHEST)))
    right.set_title("distances: predicted above the diagonal, true below", fontsize="medium")
    figure.colorbar(image, ax=right, label=_SCALE)
    figure.suptitle(title)
    return _save(figure, path)


def draw_distances(record: ChainRecord, path: Path) -> Path:
    """Distances between pseudo-betas (CB, CA for glycine) of a chain with a structure."""
    distance, known = pseudo_beta_distances(record)
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(5.4, 4.5), layout="constrained")
    image = _distance_map(axis, np.where(known, distance, np.nan))
    axis.set_title(f"{record.chain_id}: {_WHAT}")
    figure.colorbar(image, ax=axis, label=_SCALE)
    return _save(figure, path)


def draw_card(card: Mapping[str, Any], path: Path) -> Path:
    """What a snapshot holds and what was left out of it.

    Args:
        card: `DataCard.to_dict()`.
        path: the picture to write.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
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
    axes[1, 1].bar(range(len(years)), list(years.values()))
    step = max(1, len(years) // 5)
    axes[1, 1].set_xticks(range(0, len(years), step), list(years)[::step])
    axes[1, 1].set_xlabel("year of release" if years else "year of release: unknown")
    left_out = card["left_out"]
    _left_out(axes[1, 2], left_out, "chains left out" if left_out else "nothing was left out")
    for axis in (axes[0, 0], axes[1, 0]):
        axis.set_ylabel("chains")
    figure.suptitle(f"{card['name']}: {card['chains']:,} chains, {card['digest'][:12]}")
    return _save(figure, path)


def draw_check(
    report: Mapping[str, Any], spreads: Mapping[str, Sequence[float]], path: Path
) -> Path:
    """What an input holds, and what is amiss in it.

    Args:
        report: `CheckReport.to_dict()`.
        spreads: its `spreads`.
        path: the picture to write.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(11, 6), layout="constrained")
    panels = ("residues", "resolution, Å", "year of release")
    for axis, name in zip(axes.flat, panels, strict=False):
        values = np.asarray(spreads.get(name, ()))
        axis.set_xlabel(name if values.size else f"{name}: unknown")
        axis.set_ylabel("chains")
        if values.size and name == "year of release":
            years, counts = np.unique(values, return_counts=True)
            axis.bar(years, counts)
        elif values.size:
            axis.hist(values, bins=30)
        if values.size and (lacking := report["chains"] - len(values)) > 0:
            axis.set_title(f"unknown of {lacking:,}", fontsize="small")
    kinds = [
        {"reason": f"{kind['severity']}: {kind['kind']}", "count": kind["count"]}
        for kind in report["findings"]
    ]
    _left_out(axes[1, 1], kinds, "findings" if kinds else "nothing amiss")
    figure.suptitle(
        f"{report['chains']:,} chains, {report['with_structure']:,} with a structure, "
        f"{report['with_alignments']:,} with alignments"
    )
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
    """Bars in the order given; reasons beyond the sixth together."""
    counts = [(kind["reason"][:48], kind["count"]) for kind in kinds[:6]]
    if len(kinds) > 6:
        counts.append(("other reasons", sum(kind["count"] for kind in kinds[6:])))
    axis.set_xlabel(label)
    axis.set_yticks([])
    axis.barh(range(len(counts)), [count for _, count in counts], color="C1", alpha=0.5)
    for place, (reason, count) in enumerate(counts):
        axis.text(0, place, f" {count:,}: {reason}", va="center", fontsize="x-small", clip_on=True)
    axis.invert_yaxis()


_FARTHEST = 21.84375  # middle of the distogram's last bin, Å
_WHAT = "distances between residues (CB, of glycine CA)"
_SCALE = "Å; 22 and more in one colour, white is unresolved"


def _distance_map(axis: Any, values: np.ndarray) -> Any:
    """`[L, L]` distances as an image whose ticks are residue numbers from 1."""
    last = len(values) + 0.5
    axis.set_xlabel("residue")
    axis.set_ylabel("residue")
    return axis.imshow(values, cmap="viridis_r", vmin=2, vmax=22, extent=(0.5, last, last, 0.5))


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # no display is needed to write a PNG
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    figure.clear()
    return path
