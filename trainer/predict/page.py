"""The HTML page of the predictions of one chain or complex, with the known structure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.files import write_atomic
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_numbers import superposition, thinned
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import ATOM_ORDER
from evofeed.protein.structure_text import Structure, ca_of_mmcif
from evofeed.trainer.predict.compare import known_structure
from evofeed.trainer.predict.many import MAX_PAE, SCORES, Task, ranked
from evofeed.viz import (
    COLOURS,
    FARTHEST,
    MOST_RESIDUES,
    TRUE_COLOUR,
    Model,
    alignment_html,
    expected_distances,
    map_html,
    model_of,
    page_html,
    plddt_html,
    structure_html,
    table_html,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    name: str
    text: str
    residues: list[str]
    ca: np.ndarray
    plddt: np.ndarray
    scores: dict[str, Any]
    distogram: Path


def write_predictions_page(
    path: Path, name: str, tasks: Sequence[Task], record: ChainRecord | AssemblyRecord
) -> Path | None:
    """Writes the page of a name's predictions, the most confident first; None if there are none.

    Tasks without scores are omitted. The record has the alignment that the model saw.
    """
    entries = [_read(task) for task, _ in ranked(tasks)]
    if not entries:
        return None
    shown = entries[: len(COLOURS)]
    reference = known_structure(shown[0].ca, record)
    best = shown[0]
    panels = [
        _structures(shown, reference, name),
        plddt_html("pLDDT by residue", {entry.name: entry.plddt for entry in shown}),
    ]
    scale: dict[str, Any] = {"low": 2.0, "high": FARTHEST, "unit": "Å", "linked": "pairs"}
    scale["residues"] = best.residues
    if "pae" in best.scores:
        panels.append(
            map_html(
                f"predicted aligned error, {best.name}", np.asarray(best.scores["pae"]),
                **scale | {"low": 0.0, "high": MAX_PAE, "near_dark": False},
            )
        )  # fmt: skip
    if best.distogram.is_file():
        with np.load(best.distogram) as file:
            expected = expected_distances(file["probs"])
        panels.append(map_html(f"mean of the distogram, {best.name}", expected, **scale))
    indices = thinned(np.arange(len(best.ca)), MOST_RESIDUES)
    scale["residues"] = [best.residues[i] for i in indices]
    for entry in shown:
        title = f"distances of CA atoms, {entry.name}"
        panels.append(map_html(title, _distances(entry.ca[indices]), **scale))
    if reference is not None:
        ca = _ca_or_nan(reference)[indices]
        panels.append(map_html("distances of CA atoms, known", _distances(ca), **scale))
    chains = record.chains if isinstance(record, AssemblyRecord) else (record,)
    panels += [alignment_html(chain, f"alignment of {chain.chain_id}") for chain in chains]
    head = f"<h1>{escape(name)}</h1>{_table(entries)}"
    body = f'<main>{head}<div class="panels">{"".join(panels)}</div></main>'
    write_atomic(path, page_html(f"{name}: predictions", body))
    return path


def _read(task: Task) -> _Entry:
    text = task.structure.read_text()
    residues, ca, plddt = ca_of_mmcif(text)
    if len({name.split()[0] for name in residues}) == 1:  # a single chain is not named
        residues = [name.split()[1] for name in residues]
    return _Entry(
        name=task.structure.stem, text=text, residues=residues, ca=ca, plddt=plddt,
        scores=json.loads(task.scores.read_text()),
        distogram=task.structure.with_name(f"{task.structure.stem}_distogram.npz"),
    )  # fmt: skip


def _structures(shown: Sequence[_Entry], reference: Structure | None, name: str) -> str:
    """Viewer of all predictions superposed on the known structure, or on the most confident one."""
    target = shown[0].ca if reference is None else _ca_or_nan(reference)
    common = np.isfinite(target).all(-1)
    models, notes = [], []
    for entry, colour in zip(shown, COLOURS, strict=False):
        rotation, shift = superposition(entry.ca[common], target[common])
        moved = entry.ca[common] @ rotation + shift
        rmsd = np.sqrt(((moved - target[common]) ** 2).sum(-1).mean())
        if reference is not None or entry is not shown[0]:
            notes.append(f"{entry.name} {rmsd:.1f} Å")
        placed = tuple(rotation.ravel().tolist()), tuple(shift.tolist())
        models.append(
            Model(name=entry.name, cif=entry.text, plddt=True, colour=colour, placed=placed)
        )
    if reference is not None:
        models.append(model_of(reference, "known structure", plddt=False, colour=TRUE_COLOUR))
    to = "the known structure" if reference is not None else shown[0].name
    return structure_html(models, name, f"CA RMSD to {to}: {', '.join(notes)}" if notes else "")


def _ca_or_nan(structure: Structure) -> np.ndarray:
    """CA atoms `[L, 3]`, nan for those without coordinates."""
    ca = ATOM_ORDER["CA"]
    return np.where(structure.mask[:, ca, None] > 0, structure.positions[:, ca], np.nan)


def _distances(ca: np.ndarray) -> np.ndarray:
    distances: np.ndarray = np.linalg.norm(ca[:, None] - ca, axis=-1)
    return distances


def _table(entries: Sequence[_Entry]) -> str:
    comparisons = [entry.scores.get("known_structure", {}) for entry in entries]
    metrics = list(dict.fromkeys(name for comparison in comparisons for name in comparison))
    names = [name for name in SCORES if any(name in entry.scores for entry in entries)]
    rows, warnings = [], []
    for entry, comparison in zip(entries, comparisons, strict=True):
        values = [entry.scores.get(name) for name in names]
        values += [comparison.get(name) for name in metrics]
        cells = [None if value is None else f"{value:.3f}" for value in values]
        rows.append([entry.name, entry.scores["weights"], entry.scores["seed"], *cells])
        if warning := entry.scores["warning"]:
            warnings.append(f"<p><b>{escape(entry.name)}</b>: {escape(warning)}</p>")
    table = table_html(["prediction", "weights", "seed", *names, *metrics], rows)
    return f'<div class="wide" tabindex="0">{table}</div>{"".join(warnings)}'
