"""A predicted CA trace on the true one, drawn from the front; the page's script turns it."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import numpy as np

_SIZE = 360
_MARGIN = 14
_WIDEST = 700  # residues drawn; of longer chains every second, third, ...


def structure_view(path: Path, title: str, run: int = 0) -> str:
    """A panel with both traces of `structure.npz`.

    Args:
        path: file with `pred` and `true`, `[n, 3]` each, ångström, superposed already.
        title: of the panel.
        run: number of the run on the page: the colour of its prediction.

    Returns:
        HTML; empty without such a file, or with fewer than two residues in it.
    """
    if not path.is_file():
        return ""
    with np.load(path) as traces:
        pred, true = np.asarray(traces["pred"], float), np.asarray(traces["true"], float)
    if len(true) < 2 or not (np.isfinite(pred).all() and np.isfinite(true).all()):
        return ""
    rmsd = float(np.sqrt(((pred - true) ** 2).sum(axis=1).mean()))
    residues = len(true)
    step = -(-residues // _WIDEST)
    pred, true = _from_the_front(pred[::step], true[::step])
    radius = float(np.linalg.norm(np.concatenate([pred, true]), axis=1).max()) or 1.0
    scale = (_SIZE / 2 - _MARGIN) / radius
    points = {"pred": pred * scale, "true": true * scale}
    data = json.dumps({name: np.round(p, 1).tolist() for name, p in points.items()})
    half = _SIZE / 2
    lines = "".join(
        f'<polyline class="{name}" points="'
        + " ".join(f"{half + x:.1f},{half - y:.1f}" for x, y, _ in points[name])
        + '"/>'
        for name in ("true", "pred")
    )
    return (
        f'<figure class="structure run{run}"><figcaption>{escape(title)} '
        f"<small>{residues} residues, CA RMSD {rmsd:.1f} Å</small></figcaption>"
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" role="img" tabindex="0" '
        f'aria-label="{escape(title)}" data-traces="{escape(data)}">{lines}</svg>'
        '<p><span class="pred">predicted</span> on <span class="true">true</span>'
        '<span class="turn" hidden>; drag it or use the arrow keys to turn it</span></p></figure>'
    )


def _from_the_front(pred: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both in the true trace's principal axes, its longest across; a rotation, never a mirror."""
    centre = true.mean(axis=0)
    axes = np.linalg.svd(true - centre, full_matrices=True)[2]
    if np.linalg.det(axes) < 0:
        axes[2] *= -1
    return (pred - centre) @ axes.T, (true - centre) @ axes.T
