"""A page of the predictions of one chain or complex, beside each other and the known structure."""

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
from evofeed.trainer.predict.compare import known_atoms
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
class _Shown:
    name: str
    text: str
    residues: list[str]
    ca: np.ndarray
    plddt: np.ndarray
    scores: dict[str, Any]
    distogram: Path


def write_predictions_page(
    path: Path, name: str, wanted: Sequence[Task], record: ChainRecord | AssemblyRecord
) -> Path | None:
    """Write the page of a name's predictions, the most confident first; None if there is none.

    Tasks without scores are left out. The record has the alignment that the model saw.
    """
    every = [_read(task) for task, _ in ranked(wanted)]
    if not every:
        return None
    shown = every[: len(COLOURS)]
    known = known_atoms(shown[0].ca, record)
    best = shown[0]
    panels = [
        _structures(shown, known, name),
        plddt_html("pLDDT by residue", {each.name: each.plddt for each in shown}),
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
    at = thinned(np.arange(len(best.ca)), MOST_RESIDUES)
    scale["residues"] = [best.residues[i] for i in at]
    for each in shown:
        title = f"distances of CA atoms, {each.name}"
        panels.append(map_html(title, _distances(each.ca[at]), **scale))
    if known is not None:
        ca = known.positions[:, ATOM_ORDER["CA"]]
        there = np.where(known.mask[:, ATOM_ORDER["CA"], None] > 0, ca, np.nan)[at]
        panels.append(map_html("distances of CA atoms, known", _distances(there), **scale))
    chains = record.chains if isinstance(record, AssemblyRecord) else (record,)
    panels += [alignment_html(chain, f"alignment of {chain.chain_id}") for chain in chains]
    head = f"<h1>{escape(name)}</h1>{_table(every)}"
    body = f'<main>{head}<div class="panels">{"".join(panels)}</div></main>'
    write_atomic(path, page_html(f"{name}: predictions", body))
    return path


def _read(task: Task) -> _Shown:
    text = task.structure.read_text()
    residues, ca, plddt = ca_of_mmcif(text)
    if len({name.split()[0] for name in residues}) == 1:  # a chain's residues need no name of it
        residues = [name.split()[1] for name in residues]
    return _Shown(
        name=task.structure.stem, text=text, residues=residues, ca=ca, plddt=plddt,
        scores=json.loads(task.scores.read_text()),
        distogram=task.structure.with_name(f"{task.structure.stem}_distogram.npz"),
    )  # fmt: skip


def _structures(shown: Sequence[_Shown], known: Structure | None, name: str) -> str:
    """All in the frame of the known structure, or of the most confident one."""
    goal = shown[0].ca.copy()
    if known is not None:
        ca = ATOM_ORDER["CA"]
        goal = np.where(known.mask[:, ca, None] > 0, known.positions[:, ca], np.nan)
    both = np.isfinite(goal).all(-1)
    models, notes = [], []
    for each, colour in zip(shown, COLOURS, strict=False):
        turn, shift = superposition(each.ca[both], goal[both])
        moved = each.ca[both] @ turn + shift
        rmsd = np.sqrt(((moved - goal[both]) ** 2).sum(-1).mean())
        if known is not None or each is not shown[0]:
            notes.append(f"{each.name} {rmsd:.1f} Å")
        placed = tuple(turn.ravel().tolist()), tuple(shift.tolist())
        models.append(
            Model(name=each.name, cif=each.text, plddt=True, colour=colour, placed=placed)
        )
    if known is not None:
        models.append(model_of(known, "known structure", plddt=False, colour=TRUE_COLOUR))
    on = "the known structure" if known is not None else shown[0].name
    return structure_html(models, name, f"CA RMSD to {on}: {', '.join(notes)}" if notes else "")


def _distances(ca: np.ndarray) -> np.ndarray:
    distances: np.ndarray = np.linalg.norm(ca[:, None] - ca, axis=-1)
    return distances


def _table(every: Sequence[_Shown]) -> str:
    compared = [each.scores.get("known_structure", {}) for each in every]
    known = list(dict.fromkeys(key for found in compared for key in found))
    names = [key for key in SCORES if any(key in each.scores for each in every)]
    rows, said = [], []
    for each, found in zip(every, compared, strict=True):
        numbers = [*(each.scores.get(key) for key in names), *(found.get(key) for key in known)]
        words = [None if number is None else f"{number:.3f}" for number in numbers]
        rows.append([each.name, each.scores["weights"], each.scores["seed"], *words])
        if warning := each.scores["warning"]:
            said.append(f"<p><b>{escape(each.name)}</b>: {escape(warning)}</p>")
    table = table_html(["prediction", "weights", "seed", *names, *known], rows)
    return f'<div class="wide" tabindex="0">{table}</div>{"".join(said)}'
