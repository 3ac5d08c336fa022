"""The two pictures of the demo: how deep the alignment is, what the model believes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from evofeed.features import ChainRecord
from evofeed.residues import GAP


def draw_msa_coverage(record: ChainRecord, path: Path) -> Path:
    """Alignment rows sorted by identity to the query, and how many cover each column."""
    plt = _pyplot()
    covered = record.msa != GAP
    same = (record.msa == record.msa[0]) & covered
    identity = same.sum(1) / np.maximum(covered.sum(1), 1)
    order = np.argsort(identity, kind="stable")
    cells = np.where(covered, identity[:, None], np.nan)[order]

    figure, axes = plt.subplots(figsize=(8, 4.5))
    extent = (0, record.num_res, 0, record.num_alignments)
    image = axes.imshow(
        cells, aspect="auto", origin="lower", cmap="rainbow_r", vmin=0, vmax=1, extent=extent
    )
    axes.plot(np.arange(record.num_res) + 0.5, covered.sum(0), color="black", linewidth=1.5)
    axes.set_title(f"{record.chain_id}: {record.num_alignments} sequences")
    axes.set_xlabel("residue")
    axes.set_ylabel("sequences (line: how many cover the residue)")
    figure.colorbar(image, ax=axes, label="identity to the query")
    return _save(figure, path)


def draw_distogram(
    chain_id: str,
    logits: np.ndarray,
    true_distance: np.ndarray,
    known: np.ndarray,
    path: Path,
) -> Path:
    """Predicted against true pseudo-beta distances, side by side.

    Args:
        chain_id: for the title.
        logits: `f32[L, L, 64]` of the distogram head; bin edges 2.3125 to 21.6875 Å.
        true_distance: `f32[L, L]`, ångström.
        known: `bool[L, L]`, where both residues are resolved.
        path: the PNG to write.
    """
    plt = _pyplot()
    edges = np.linspace(2.3125, 21.6875, 63)
    step = edges[1] - edges[0]
    centres = np.concatenate([edges - step / 2, [edges[-1] + step / 2]])
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    expected = (shifted / shifted.sum(-1, keepdims=True)) @ centres

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.3), layout="constrained")
    truth = np.where(known, np.minimum(true_distance, centres[-1]), np.nan)
    panels = ((expected, "predicted (expected distance)"), (truth, "in the structure"))
    for axis, (values, title) in zip(axes, panels, strict=True):
        image = axis.imshow(values, cmap="viridis_r", vmin=2, vmax=22)
        axis.set_title(title)
        axis.set_xlabel("residue")
    axes[0].set_ylabel("residue")
    figure.suptitle(f"{chain_id}: distances between residues")
    figure.colorbar(image, ax=list(axes), label="Å (22 and more in one colour)")
    return _save(figure, path)


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
