"""Many predictions: chains and complexes by several weights and seeds, ranked, resumable.

Each is written as structure, scores and aligned errors, in the formats that other tools read.
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
from evofeed.trainer.predict.compare import compare_to_known
from evofeed.trainer.predict.prediction import (
    Prediction,
    Progress,
    evaluate,
    predict_structure,
    prediction_batch,
    prepare_model,
    record_names,
)
from evofeed.trainer.predict.weights import describe_model, load_model, trained_sizes
from evofeed.trainer.run.distributed import World

Record = ChainRecord | AssemblyRecord
SCORES = ("ranking_confidence", "mean_plddt", "ptm", "iptm")
MAX_PAE = 31.75
"""Centre of the last bin of aligned errors, ångström; AlphaFold DB's name for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prediction: of a chain or complex, by one file of weights, with one seed for MSA rows."""

    name: str
    weights: Path
    seed: int
    structure: Path
    """File for the atoms; the other files are written next to it."""

    @property
    def scores(self) -> Path:
        """The file of scores, written last: a task is done if it exists."""
        return self.structure.with_name(f"{self.structure.stem}_scores.json")


def make_tasks(
    names: Sequence[str], weights: Sequence[Path], seeds: Sequence[int], folder: Path, ending: str
) -> list[Task]:
    """Tasks for all names, weights and seeds, grouped by weights: each is loaded once.

    Files are named `NAME/WEIGHTS_seed0.cif`, with the stem of the weights' file.

    Raises:
        InputError: two files of weights have the same stem.
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
    """Options of all predictions: recycles (None: as trained), ranks, optional outputs."""

    recycles: int | None
    world: World
    distogram: bool = False
    relax: bool = False


def run_tasks(
    tasks: Sequence[Task],
    read: Callable[[str], Record],
    settings: Settings,
    progress: Callable[[Task], Progress | None] = lambda task: None,
    on_prediction: Callable[[Task, Prediction], None] = lambda task, prediction: None,
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Makes the missing predictions; yields every task with its scores, in order.

    The ranks take turns, or share the chain if they form an axis. A task that fails is yielded with
    its `error`, and the next one follows.

    `progress` gives the callback for a task's blocks; `on_prediction` gets every new prediction.
    """
    world = settings.world
    shared = world.axis is not None and world.axis.size > 1
    model, loaded = None, None
    for task in tasks if shared else tasks[world.rank :: world.size]:
        if (done := read_summary(task.scores)) is not None and not shared:
            yield task, done | {"resumed": True}
            continue
        block_progress = progress(task)
        if model is None or loaded != task.weights:
            model = None  # frees the memory of one model before the next
            model, loaded = load_model(task.weights).to(world.device), task.weights
        try:
            result = _predicted(task, model, read(task.name), settings, block_progress)
        except (InputError, TrainerError) as error:
            if shared or len(tasks) == 1:
                raise
            yield task, {"name": task.name, "error": str(error)}
            continue
        if result is None:
            continue
        prediction, facts = result
        task.structure.parent.mkdir(parents=True, exist_ok=True)
        summary = write_prediction(
            prediction, task.structure, facts=facts, distogram=settings.distogram
        )
        on_prediction(task, prediction)
        yield task, summary


def _predicted(
    task: Task, model: AlphaFold, record: Record, settings: Settings, progress: Progress | None
) -> tuple[Prediction, dict[str, Any]] | None:
    """The prediction and facts about it; None on the ranks other than the first of an axis."""
    world = settings.world
    name, names = record_names(record)
    sizes = {"no_recycling_iters": 3} | trained_sizes(task.weights)
    if settings.recycles is not None:
        sizes["no_recycling_iters"] = settings.recycles
    batch = prediction_batch(record, model, seed=task.seed, **sizes)
    num_res = batch["aatype"].shape[-1]
    try:
        batch = {key: value.to(world.device) for key, value in batch.items()}
        if "forward" not in vars(model):  # after its first long chain it stays parallelized
            prepare_model(model, num_res, world.axis)
        if world.axis is not None and not world.is_first:
            evaluate(model, batch)
            return None
        prediction = predict_structure(
            model, batch, name=name, chain_names=names, progress=progress
        )
    except RuntimeError as error:
        if not (text := out_of_memory(error)):
            raise
        raise TrainerError(
            f"out of memory ({text}): share the {num_res} residues among more GPUs with "
            f"torchrun --nproc-per-node {2 * world.size} -m evofeed.cli predict",
            item=name,
        ) from error
    comparison = compare_to_known(prediction, record)
    facts: dict[str, Any] = {
        "weights": str(task.weights), "model": describe_model(model.config), "seed": task.seed,
        "recycles": sizes["no_recycling_iters"],
    }  # fmt: skip
    if comparison:
        facts["known_structure"] = comparison
    if settings.relax:
        from evofeed.trainer.predict.relax import relaxed

        prediction, facts["relaxed"] = relaxed(prediction)
    return prediction, facts


def write_prediction(
    prediction: Prediction,
    structure: Path,
    *,
    facts: dict[str, Any] | None = None,
    distogram: bool = False,
) -> dict[str, Any]:
    """Writes a prediction's files into one folder, `*_scores.json` last.

    Next to `x.cif` (ModelCIF) or `x.pdb` there are `x_scores.json` (the fields of ColabFold's
    scores, and those of `facts`), `x_predicted_aligned_error.json` for models with that head
    (AlphaFold DB's format), and on demand `x_distogram.npz` (`bin_edges` in ångström,
    `probs [L, L, 64]`).

    Args:
        structure: file for the atoms, .cif or .pdb; the others take its stem.
        facts: more for the scores, such as the weights' name and a comparison with the truth.

    Returns:
        `name`, `residues`, `mean_plddt`, the model's scores, `ranking_confidence`, `warning`, the
        `facts` and the names of the `files`. AlphaFold ranks by that confidence: 0.8 ipTM + 0.2 pTM
        for a complex, else the mean pLDDT.
    """
    stem = structure.with_suffix("")
    files = {"structure": structure.name}
    write_atomic(structure, prediction.text(structure.suffix.lstrip(".")))
    if prediction.pae is not None:
        files["predicted_aligned_error"] = f"{stem.name}_predicted_aligned_error.json"
        pae = {"predicted_aligned_error": prediction.pae.round().astype(int).tolist()}
        content = json.dumps([pae | {"max_predicted_aligned_error": MAX_PAE}])
        write_atomic(stem.with_name(files["predicted_aligned_error"]), content)
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
    summary = {
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
        arrays["max_pae"] = round(float(prediction.pae.max()), 2)
        arrays["pae"] = _rounded(prediction.pae)
    write_atomic(stem.with_name(files["scores"]), json.dumps(summary | arrays))
    return summary


def read_summary(scores: Path) -> dict[str, Any] | None:
    """The summary that `write_prediction` returned for this file of scores; None if it or one of
    the other files is missing or damaged.
    """
    try:
        summary = parse_json(scores.read_text())
        names = summary["files"].values()
        complete = all(scores.with_name(name).is_file() for name in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return {k: v for k, v in summary.items() if k not in ("plddt", "pae")} if complete else None


def _rounded(values: np.ndarray) -> list[Any]:
    return np.round(values.astype(float), 2).tolist()  # type: ignore[no-any-return]


def ranked(tasks: Sequence[Task]) -> list[tuple[Task, dict[str, Any]]]:
    """Finished tasks with their scores, the most confident first."""
    summaries = [(task, read_summary(task.scores)) for task in tasks]
    done = [(task, summary) for task, summary in summaries if summary is not None]
    return sorted(done, key=lambda pair: (-pair[1]["ranking_confidence"], pair[0].structure.name))


def write_ranking(folder: Path, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Writes `ranking.json` of one name's finished predictions, the most confident first.

    Returns:
        Its rows, one per prediction.
    """
    rows = [
        {"rank": rank, "structure": task.structure.name, "weights": str(task.weights),
         "seed": task.seed, **{key: summary[key] for key in SCORES if key in summary}}
        for rank, (task, summary) in enumerate(ranked(tasks), 1)
    ]  # fmt: skip
    if rows:
        write_atomic(folder / "ranking.json", json.dumps(rows, indent=1))
    return rows
