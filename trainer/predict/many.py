"""Many predictions: chains and complexes by several weights and seeds, ranked, resumable.

Each is written as structure, scores and aligned errors, in the forms other tools read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import InputError, TrainerError
from evofeed.base.files import parse_json, write_atomic
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.parallel.rows import out_of_memory
from evofeed.trainer.predict.compare import compared
from evofeed.trainer.predict.prediction import (
    Prediction,
    Progress,
    evaluate,
    named,
    predict_structure,
    prediction_batch,
    spread,
)
from evofeed.trainer.predict.weights import kind_of, load_model, trained_sizes
from evofeed.trainer.run.distributed import World

Record = ChainRecord | AssemblyRecord
SCORES = ("ranking_confidence", "mean_plddt", "ptm", "iptm")
MAX_PAE = 31.75
"""Centre of the last bin of aligned errors, ångström; AlphaFold DB's name for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prediction: what, by which weights, with which rows of its alignment."""

    name: str
    weights: Path
    seed: int
    structure: Path
    """File for the atoms; the others lie beside it."""

    @property
    def scores(self) -> Path:
        """Written last: a task is done where it is."""
        return self.structure.with_name(f"{self.structure.stem}_scores.json")


def tasks(
    names: Sequence[str], weights: Sequence[Path], seeds: Sequence[int], folder: Path, ending: str
) -> list[Task]:
    """Every name by every weights with every seed, weights by weights: each is loaded once.

    Files are called `NAME/WEIGHTS_seed0.cif`, the weights by their file's stem.

    Raises:
        InputError: two files of weights would give files of the same name.
    """
    stems = [path.resolve().stem for path in weights]
    for stem in stems:
        if stems.count(stem) > 1:
            raise InputError(f"two of the weights are called {stem}: rename one")
    return [
        Task(
            name=name, weights=path, seed=seed,
            structure=folder / name.replace("/", "_") / f"{stem}_seed{seed}.{ending}",
        )
        for path, stem in zip(weights, stems, strict=True)
        for seed in seeds
        for name in names
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How predictions are made: recycles, if not as trained, device and ranks, what is written."""

    recycles: int | None
    world: World
    distogram: bool = False
    relax: bool = False


def run_tasks(
    wanted: Sequence[Task],
    read: Callable[[str], Record],
    settings: Settings,
    progress: Callable[[Task], Progress | None] = lambda task: None,
    drawn: Callable[[Task, Prediction], None] = lambda task, prediction: None,
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Make the predictions that are not there yet; yields each with its scores, in order.

    The ranks take turns, or share the one that there is. A chain that fails is yielded with its
    `error`; the others go on.

    `progress` gives what is told of every block of a task, `drawn` takes every prediction made.
    """
    world = settings.world
    shared = world.axis is not None and world.axis.size > 1
    model, loaded = None, None
    for task in wanted if shared else wanted[world.rank :: world.size]:
        if (done := read_summary(task.scores)) is not None and not shared:
            yield task, done | {"resumed": True}
            continue
        told = progress(task)
        if model is None or loaded != task.weights:
            model = None  # the memory of one model is free before the next
            model, loaded = load_model(task.weights).to(world.device), task.weights
        try:
            made = _predicted(task, model, read(task.name), settings, told)
        except (InputError, TrainerError) as error:
            if shared or len(wanted) == 1:
                raise
            yield task, {"name": task.name, "error": str(error)}
            continue
        if made is None:
            continue
        prediction, facts = made
        task.structure.parent.mkdir(parents=True, exist_ok=True)
        found = write_prediction(
            prediction, task.structure, facts=facts, distogram=settings.distogram
        )
        drawn(task, prediction)
        yield task, found


def _predicted(
    task: Task, model: AlphaFold, record: Record, settings: Settings, progress: Progress | None
) -> tuple[Prediction, dict[str, Any]] | None:
    """The prediction and facts about it; None on a rank that only helps the first."""
    world = settings.world
    name, names = named(record)
    sizes = {"no_recycling_iters": 3} | trained_sizes(task.weights)
    if settings.recycles is not None:
        sizes["no_recycling_iters"] = settings.recycles
    batch = prediction_batch(record, model, seed=task.seed, **sizes)
    num_res = batch["aatype"].shape[-1]
    try:
        batch = {key: value.to(world.device) for key, value in batch.items()}
        if "forward" not in vars(model):  # from its first long chain on it works in parts
            spread(model, num_res, world.axis)
        if world.axis is not None and not world.is_first:
            evaluate(model, batch)
            return None
        made = predict_structure(model, batch, name=name, chain_names=names, progress=progress)
    except RuntimeError as error:
        if not (why := out_of_memory(error)):
            raise
        raise TrainerError(
            f"out of memory ({why}): share the {num_res} residues among more GPUs with "
            f"torchrun --nproc-per-node {2 * world.size} -m evofeed.cli predict",
            item=name,
        ) from error
    known = compared(made, record)
    facts: dict[str, Any] = {
        "weights": str(task.weights), "model": kind_of(model.config), "seed": task.seed,
        "recycles": sizes["no_recycling_iters"], **({"known_structure": known} if known else {}),
    }  # fmt: skip
    if settings.relax:
        from evofeed.trainer.predict.relax import relaxed

        made, facts["relaxed"] = relaxed(made)
    return made, facts


def write_prediction(
    prediction: Prediction,
    structure: Path,
    *,
    facts: dict[str, Any] | None = None,
    distogram: bool = False,
) -> dict[str, Any]:
    """Write a prediction's files beside each other, `*_scores.json` last.

    Beside `x.cif` (ModelCIF) or `x.pdb` lie `x_scores.json` (the fields of ColabFold's scores,
    and those of `facts`), of models with that head `x_predicted_aligned_error.json` (AlphaFold
    DB's form), and on demand `x_distogram.npz` (`bin_edges` in ångström, `probs [L, L, 64]`).

    Args:
        structure: file for the atoms, .cif or .pdb; the others take its stem.
        facts: more for the scores, such as the weights' name and a comparison with the truth.

    Returns:
        `name`, `residues`, `mean_plddt`, the model's scores, `ranking_confidence`, `warning`, the
        `facts` and the names of the `files`. AlphaFold ranks by that confidence: 0.8 ipTM + 0.2 pTM
        of a complex, else the mean pLDDT.
    """
    stem = structure.with_suffix("")
    files = {"structure": structure.name}
    write_atomic(structure, prediction.text(structure.suffix.lstrip(".")))
    if prediction.pae is not None:
        files["predicted_aligned_error"] = f"{stem.name}_predicted_aligned_error.json"
        content = [
            {
                "predicted_aligned_error": prediction.pae.round().astype(int).tolist(),
                "max_predicted_aligned_error": MAX_PAE,
            }
        ]
        write_atomic(stem.with_name(files["predicted_aligned_error"]), json.dumps(content))
    if distogram:
        files["distogram"] = f"{stem.name}_distogram.npz"
        bins = prediction.distogram.shape[-1]
        np.savez_compressed(
            stem.with_name(files["distogram"]),
            bin_edges=np.linspace(2.3125, 21.6875, bins - 1),
            probs=prediction.distogram.astype(np.float16),
        )
    files["scores"] = f"{stem.name}_scores.json"
    mean = float(prediction.plddt.mean())
    found = {
        "name": prediction.structure.name,
        "residues": len(prediction.plddt),
        "mean_plddt": round(mean, 2),
        **{name: round(value, 4) for name, value in prediction.scores.items()},
        "ranking_confidence": round(prediction.scores.get("ranking", mean), 4),
        "warning": prediction.warning,
        **(facts or {}),
        "files": files,
    }
    arrays: dict[str, Any] = {"plddt": _rounded(prediction.plddt)}
    if prediction.pae is not None:
        arrays |= {
            "max_pae": round(float(prediction.pae.max()), 2), "pae": _rounded(prediction.pae),
        }  # fmt: skip
    write_atomic(stem.with_name(files["scores"]), json.dumps(found | arrays))
    return found


def read_summary(scores: Path) -> dict[str, Any] | None:
    """What `write_prediction` returned for this file of scores; None where it is not whole."""
    try:
        found = parse_json(scores.read_text())
        names = found["files"].values()
        whole = all(scores.with_name(name).is_file() for name in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return {k: v for k, v in found.items() if k not in ("plddt", "pae")} if whole else None


def _rounded(values: np.ndarray) -> list[Any]:
    return np.round(values.astype(float), 2).tolist()  # type: ignore[no-any-return]


def ranked(wanted: Sequence[Task]) -> list[tuple[Task, dict[str, Any]]]:
    """Tasks that are done with their scores, the most confident first."""
    read = [(task, read_summary(task.scores)) for task in wanted]
    good = [(task, found) for task, found in read if found is not None]
    return sorted(good, key=lambda pair: (-pair[1]["ranking_confidence"], pair[0].structure.name))


def write_ranking(folder: Path, wanted: Sequence[Task]) -> list[dict[str, Any]]:
    """Write `ranking.json` of one name's predictions, those with scores, the most confident first.

    Returns:
        What it holds: a row a prediction.
    """
    rows = [
        {"rank": rank, "structure": task.structure.name, "weights": str(task.weights),
         "seed": task.seed, **{key: found[key] for key in SCORES if key in found}}
        for rank, (task, found) in enumerate(ranked(wanted), 1)
    ]  # fmt: skip
    if rows:
        write_atomic(folder / "ranking.json", json.dumps(rows, indent=1))
    return rows
