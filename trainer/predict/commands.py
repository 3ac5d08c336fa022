"""`evofeed predict`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evofeed.base.errors import InputError
from evofeed.base.options import Device, Json, share_bar

if TYPE_CHECKING:
    from evofeed.trainer.predict.many import Task
    from evofeed.trainer.predict.prediction import Prediction, Progress

_PAGE = "predictions.html"


def predict(
    dataset: Annotated[
        str, typer.Argument(help="URI of the dataset with the chains, or URI@REF for a split.")
    ],
    names: Annotated[
        list[str] | None, typer.Argument(help="Chains (102m_A) and complexes to predict.")
    ] = None,
    weights: Annotated[
        list[Path] | None,
        typer.Option(
            "--weights",
            "--checkpoint",
            help="Run or checkpoint folder, AlphaFold's .npz, OpenFold's .pt. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A .pdb or .cif file for one structure, or a folder.")
    ] = None,
    fasta: Annotated[
        Path | None, typer.Option(help="Predict the chains that this FASTA file names.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every chain of the dataset or split.")
    ] = False,
    seed: Annotated[
        list[int] | None, typer.Option(help="Seed for drawing MSA rows. Repeatable.")
    ] = None,
    file_format: Annotated[str, typer.Option("--format", help="In a folder: cif or pdb.")] = "cif",
    picture: Annotated[
        Path | None,
        typer.Option(help="Contacts, distances, pLDDT: .png, .svg or .pdf; in a folder one each."),
    ] = None,
    distogram: Annotated[
        bool, typer.Option("--distogram", help="Write the distogram as .npz.")
    ] = False,
    relax: Annotated[
        bool, typer.Option("--relax", help="Minimise with OpenMM, if it is installed.")
    ] = False,
    html: Annotated[
        bool, typer.Option("--html", help="A page for each name: structures, maps, alignment.")
    ] = False,
    recycles: Annotated[
        int | None, typer.Option(min=0, help="Passes before the last; default: the run's, else 3.")
    ] = None,
    device: Device = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Predict structures: ModelCIF or PDB, pLDDT, aligned errors; several are ranked.

    Run again, it makes only the predictions missing in the folder. Under torchrun the ranks take
    turns with several predictions and share a single one.

    Example:  evofeed predict data/ 102m_A --weights runs/first --out 102m_A.pdb --picture a.png

    Example:  evofeed predict data/@valid --all --weights params_model_1_ptm.npz --out predicted/

    Example:  torchrun --nproc-per-node 4 -m evofeed.cli predict data/ 1abc_A --weights params_model_1.npz --out a.cif
    """  # noqa: E501
    if not weights:
        raise typer.BadParameter("name a run's folder or a file of weights with --weights")
    if html and (file_format != "cif" or (out is not None and out.suffix == ".pdb")):
        raise typer.BadParameter("--html shows .cif files: use cif, not pdb")
    single = out is not None and out.suffix in (".pdb", ".cif")
    if out is None or (out.suffix and not single and not out.is_dir()):
        raise typer.BadParameter("--out must be a folder, or end in .pdb or .cif")
    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(
            f"--picture must end in .png, .svg or .pdf, not {picture.suffix!r}"
        )
    if file_format not in ("cif", "pdb"):
        raise typer.BadParameter(f"--format must be cif or pdb, not {file_format}")
    for path in (out, picture) if single else ():  # checked before the model runs
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent} for {path.name}")
    from evofeed.store import Dataset, address_and_ref
    from evofeed.trainer.predict.many import Settings, Task, make_tasks, run_tasks, write_ranking
    from evofeed.trainer.predict.page import write_predictions_page
    from evofeed.trainer.run.distributed import join_world

    opened = Dataset.open(*address_and_ref(dataset))
    listed = {} if fasta is None else _fasta_sequences(fasta)
    chosen = [*(names or ()), *listed]
    chosen += [name for name in opened if name not in chosen] if everything else []
    if not chosen:
        raise typer.BadParameter("name chains or complexes, or give --fasta FILE or --all")
    if single:
        if len(chosen) * len(weights) * len(seed or [0]) > 1:
            raise typer.BadParameter(f"{out} is one file; for several predictions give a folder")
        tasks = [Task(name=chosen[0], weights=weights[0], seed=(seed or [0])[0], structure=out)]
        tasks[0].scores.unlink(missing_ok=True)  # an explicit file is written again
    else:
        tasks = make_tasks(chosen, weights, seed or [0], out, file_format)

    def read(name: str) -> Any:
        if name in opened.assemblies:
            return opened.assemblies[name]
        record, sequence = opened[name], listed.get(name)
        if sequence and sequence != record.sequence:
            raise InputError(
                f"{name} has {len(sequence)} residues here, and another sequence of "
                f"{record.num_res} in the dataset: featurize this file, or rename the record",
                path=str(fasta), item=name,
            )  # fmt: skip
        return record

    def draw(task: Task, prediction: Prediction) -> None:
        if picture is None:
            return
        from evofeed.viz import draw_prediction

        draw_prediction(
            picture if single else task.structure.with_suffix(picture.suffix),
            contacts=prediction.contacts, distogram=prediction.distogram, plddt=prediction.plddt,
            title=task.name, warning=prediction.warning,
        )  # fmt: skip

    axial = None if len(tasks) == 1 else 1  # ranks share a single chain, else take turns
    with ExitStack() as stack:
        world = stack.enter_context(join_world(device or None, axial=axial))
        show = stack.enter_context(share_bar("predicting", quiet=as_json or not world.is_first))
        show(0.0, "reading weights")
        settings = Settings(recycles=recycles, world=world, distogram=distogram, relax=relax)
        failed = 0
        progress = (lambda task: None) if as_json else _bars(show, tasks)
        for task, summary in run_tasks(tasks, read, settings, progress, draw):
            failed += "error" in summary
            _print_result(task, summary, as_json)
        world.barrier()
        for name in chosen if world.is_first else ():
            tasks_of_name = [task for task in tasks if task.name == name]
            folder = tasks_of_name[0].structure.parent
            if html:
                page = out.with_suffix(".html") if single else folder / _PAGE
                written = write_predictions_page(page, name, tasks_of_name, read(name))
                if written and not as_json:
                    print(f"{name}: page {written}")
            rows = [] if single else write_ranking(folder, tasks_of_name)
            if len(rows) > 1 and not as_json:
                print(
                    f"{name}: best {rows[0]['structure']}, "
                    f"confidence {rows[0]['ranking_confidence']:.2f} (ranking.json)"
                )
    if failed:
        raise typer.Exit(1)


def _fasta_sequences(path: Path) -> dict[str, str]:
    """Sequences by name, the first word after each `>`."""
    sequences: dict[str, str] = {}
    name = ""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        text = line.strip()
        if text.startswith(">"):
            name = (text[1:].split() or [""])[0]
            if not name or name in sequences:
                fault = f"a name twice: {name}" if name else "a record without a name"
                raise InputError(
                    f"{fault}; every record needs a unique name", path=str(path), line=number
                )
            sequences[name] = ""
        elif text and not name:
            raise InputError(
                "a FASTA file begins with a line like >name", path=str(path), line=number
            )
        elif text:
            sequences[name] += text.upper()
    if not sequences:
        raise InputError("there is no sequence in it", path=str(path))
    return sequences


def _bars(show: Callable[[float, str], None], tasks: list[Task]) -> Callable[[Task], Progress]:
    """Callbacks by task that show the current prediction and block."""

    def of_task(task: Task) -> Progress:
        position = tasks.index(task)
        show(position / len(tasks), f"{task.name}: {task.weights.name}")

        def progress(done: int, total: int) -> None:
            share = (position + done / total) / len(tasks)
            show(share, f"{task.name}: block {done} of {total}, all recycles together")

        return progress

    return of_task


def _print_result(task: Task, summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"name": task.name, "out": str(task.structure), **summary}))
        return
    if "error" in summary:
        print(f"{task.name}: {summary['error']}")
        return
    parts = [task.name, f"{summary['residues']} residues"]
    parts.append(f"mean pLDDT {summary['mean_plddt']:.1f}")
    parts += [f"{name} {summary[name]:.3f}" for name in ("ptm", "iptm") if name in summary]
    metrics = [f"{name} {value:.3f}" for name, value in summary.get("known_structure", {}).items()]
    comparison = f"; against the known structure {', '.join(metrics)}" if metrics else ""
    parts[-1] += comparison + (" (already there)" if summary.get("resumed") else "")
    print(f"{task.structure}: {', '.join(parts)}")
    if summary["warning"]:
        print(f"warning: {task.structure}: {summary['warning']}", file=sys.stderr)
