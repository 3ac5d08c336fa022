"""`evofeed predict`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evofeed.base.options import Json, picture_name, share_bar, usable_device

if TYPE_CHECKING:
    from evofeed.trainer.predict.many import Settings, Task
    from evofeed.trainer.predict.prediction import Progress

Device = Annotated[
    str,
    typer.Option(help="cpu or cuda; default: a GPU if there is one.", callback=usable_device),
]


_PAGE = "predictions.html"


def predict(
    dataset: Annotated[
        str, typer.Argument(help="URI of the dataset that holds the chains, or URI@REF: a split.")
    ],
    names: Annotated[
        list[str] | None, typer.Argument(help="Chains (102m_A) and complexes to predict.")
    ] = None,
    weights: Annotated[
        list[Path] | None,
        typer.Option(
            "--weights",
            "--checkpoint",
            help="Run or checkpoint folder, AlphaFold's .npz, OpenFold's .pt; several: all.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A .pdb or .cif file for one structure, else a folder.")
    ] = None,
    fasta: Annotated[
        Path | None, typer.Option(help="Predict the chains that this FASTA file names.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every chain of the dataset or split.")
    ] = False,
    seed: Annotated[
        list[int] | None, typer.Option(help="Of the rows drawn from the MSA; several: all.")
    ] = None,
    file_format: Annotated[str, typer.Option("--format", help="In a folder: cif or pdb.")] = "cif",
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Contacts, distances and pLDDT, as .png, .svg or .pdf; in a folder: its ending.",
            callback=picture_name,
        ),
    ] = None,
    distogram: Annotated[
        bool, typer.Option("--distogram", help="Write the distogram as .npz.")
    ] = False,
    relax: Annotated[
        bool, typer.Option("--relax", help="Minimise with OpenMM, if it is installed.")
    ] = False,
    html: Annotated[
        bool, typer.Option("--html", help="A page of each name: structures, maps, alignment.")
    ] = False,
    recycles: Annotated[int, typer.Option(min=0, help="Passes before the last.")] = 3,
    device: Device = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Predict structures: ModelCIF or PDB, pLDDT, aligned errors, ranked where there are several.

    Run again, it makes what is missing in the folder. Under torchrun the ranks take turns with
    several predictions and share a single one.

    Example:  evofeed predict data/ 102m_A --weights runs/first --out 102m_A.pdb --picture a.png

    Example:  evofeed predict data/@valid --all --weights params_model_1_ptm.npz --out predicted/

    Example:  torchrun --nproc-per-node 4 -m evofeed.cli predict data/ 1abc_A --weights params_model_1.npz --out a.cif
    """  # noqa: E501
    if not weights:
        raise typer.BadParameter("name a run's folder or a file of weights with --weights")
    if html and (file_format != "cif" or (out is not None and out.suffix == ".pdb")):
        raise typer.BadParameter("--html shows .cif files, leave pdb away")
    single = out is not None and out.suffix in (".pdb", ".cif")
    if out is None or (out.suffix and not single and not out.is_dir()):
        raise typer.BadParameter("--out must be a folder, or end in .pdb or .cif")
    if file_format not in ("cif", "pdb"):
        raise typer.BadParameter(f"--format must be cif or pdb, not {file_format}")
    for path in (out, picture) if single else ():  # before the model has run
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent} for {path.name}")
    from evofeed.store import Dataset, address_and_ref
    from evofeed.trainer.predict.many import Settings, Task, run_tasks, tasks, write_ranking
    from evofeed.trainer.predict.names import check_sequences, fasta_names
    from evofeed.trainer.predict.page import write_predictions_page
    from evofeed.trainer.run.distributed import join_world

    opened = Dataset.open(*address_and_ref(dataset))
    listed = fasta_names(fasta) if fasta is not None else {}
    chosen = [*(names or ()), *listed]
    chosen += [name for name in opened if name not in chosen] if everything else []
    if not chosen:
        raise typer.BadParameter("name chains or complexes, or say --fasta FILE or --all")
    if single:
        if len(chosen) * len(weights) * len(seed or [0]) > 1:
            raise typer.BadParameter(f"{out} is one file, for several give a folder")
        wanted = [Task(name=chosen[0], weights=weights[0], seed=(seed or [0])[0], structure=out)]
        wanted[0].scores.unlink(missing_ok=True)  # a file that is named is written anew
    else:
        wanted = tasks(chosen, weights, seed or [0], out, file_format)

    def read(name: str) -> Any:
        record = opened.assemblies[name] if name in opened.assemblies else opened[name]
        check_sequences(record, listed.get(name), fasta)
        return record

    axial = None if len(wanted) == 1 else 1  # ranks share one chain; of several each takes its own
    with ExitStack() as stack:
        world = stack.enter_context(join_world(device or None, axial=axial))
        show = stack.enter_context(share_bar("predicting", quiet=as_json or not world.is_first))
        show(0.0, "reading weights")
        settings = Settings(recycles=recycles, world=world, distogram=distogram, relax=relax)
        failed = 0
        told = _silent if as_json else _bars(show, wanted, settings)
        for task, found in run_tasks(wanted, read, settings, told, _drawn(picture, single)):
            failed += "error" in found
            _say(task, found, as_json)
        world.barrier()
        for name in chosen if html and world.is_first else ():
            of_name = [task for task in wanted if task.name == name]
            path = out.with_suffix(".html") if single else of_name[0].structure.parent / _PAGE
            written = write_predictions_page(path, name, of_name, read(name))
            if written and not as_json:
                print(f"{name}: page {written}")
        if world.is_first and not single:
            for name in chosen:
                of_name = [task for task in wanted if task.name == name]
                rows = write_ranking(of_name[0].structure.parent, of_name)
                if len(rows) > 1 and not as_json:
                    print(
                        f"{name}: best {rows[0]['structure']}, "
                        f"confidence {rows[0]['ranking_confidence']:.2f} (ranking.json)"
                    )
    if failed:
        raise typer.Exit(1)


def _drawn(picture: Path | None, single: bool) -> Any:
    """Draws each prediction into the picture named, or beside its structure."""
    if picture is None:
        return None
    from evofeed.viz import draw_prediction

    def draw(task: Task, prediction: Any) -> None:
        draw_prediction(
            picture if single else task.structure.with_suffix(picture.suffix),
            contacts=prediction.contacts, distogram=prediction.distogram, plddt=prediction.plddt,
            title=task.name, warning=prediction.warning,
        )  # fmt: skip

    return draw


def _silent(task: Task) -> None:
    """No bar: JSON is printed."""


def _bars(
    show: Callable[[float, str], None], wanted: list[Task], settings: Settings
) -> Callable[[Task], Progress | None]:
    """Shows which prediction, pass and block are done, and the time that all of them still need."""
    began, passes = time.monotonic(), settings.recycles + 1

    def of_task(task: Task) -> Progress:
        before = wanted.index(task)
        show(before / len(wanted), f"{task.name}: {task.weights.name}")

        def told(done: int, total: int) -> None:
            share = (before + done / total) / len(wanted)
            left = int((time.monotonic() - began) * (1 - share) / share)
            blocks = total // passes
            number, block = divmod(done - 1, blocks)
            text = f"{task.name}: pass {number + 1} of {passes}, block {block + 1} of {blocks}"
            show(share, f"{text}  ETA {left // 60}:{left % 60:02d}")

        return told

    return of_task


def _say(task: Task, found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"name": task.name, "out": str(task.structure), **found}))
    elif "error" in found:
        print(f"{task.name}: {found['error']}")
    else:
        scores = [f"{name} {found[name]:.3f}" for name in ("ptm", "iptm") if name in found]
        known = [f"{n} {v:.3f}" for n, v in found.get("known_structure", {}).items()]
        print(
            f"{task.structure}: {task.name}, {found['residues']} residues, mean pLDDT "
            f"{found['mean_plddt']:.1f}"
            + "".join(f", {text}" for text in scores)
            + (f"; beside the known structure {', '.join(known)}" if known else "")
            + (" (was there)" if found.get("resumed") else "")
        )
        if found["warning"]:
            print(f"warning: {found['warning']}", file=sys.stderr)
