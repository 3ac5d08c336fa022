"""`evofeed train`, `evofeed replay` and `evofeed predict`."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from evofeed.options import Json, picture_name, share_bar, usable_device

Device = Annotated[
    str,
    typer.Option(help="cpu or cuda; default: a GPU if there is one.", callback=usable_device),
]


def train(
    config: Annotated[
        str, typer.Argument(help="A YAML file, or initial_training, finetuning, tiny, overfit.")
    ] = "tiny",
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="URI of the dataset to train on, or URI@REF; several: a mixture."),
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option(help="Share of each dataset in the mixture, in order.")
    ] = None,
    chain: Annotated[
        list[str] | None, typer.Option(help="Train on this chain alone; several: on these.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps in all.")] = None,
    validation: Annotated[str, typer.Option(help="URI of held-out chains, or URI@REF.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from --out.")] = False,
    weights: Annotated[
        Path | None,
        typer.Option(help="Start from a run, a checkpoint, or OpenFold's or AF2's file."),
    ] = None,
    device: Device = "",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Event files too.")] = False,
    wandb: Annotated[str, typer.Option(help="Log to this Weights & Biases project too.")] = "",
    openfold_config: Annotated[
        Path | None,
        typer.Option(help="JSON of an OpenFold configuration: its model and losses, not ours."),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Train AlphaFold2 on a dataset; `evofeed report` says where the time went.

    Example:  evofeed train tiny --dataset data/ --steps 50 --out runs/first

    Example:  evofeed train finetuning --dataset data/ --weights runs/first --out runs/second

    Example:  evofeed train overfit --dataset data/ --chain 102m_A --out runs/by_heart

    Example:  evofeed train initial_training --dataset pdb/ --share 0.25 --dataset distilled/ --share 0.75 --out runs/mix

    Example:  torchrun --nproc-per-node 4 -m evofeed.cli train initial_training --dataset data/ --out runs/four
    """  # noqa: E501
    from evofeed.trainer.run.settings import load_config
    from evofeed.trainer.run.train import train as run_training

    if not dataset or out is None:
        raise typer.BadParameter("training needs --dataset and --out")
    settings = load_config(config)
    if steps:
        settings = settings.replace(steps=steps)
    if share:
        try:
            settings = settings.replace(shares=tuple(share))
        except ValueError as error:
            raise typer.BadParameter(f"--share: {error}") from error
    if chain:
        settings = settings.replace(loader={**settings.loader, "chains": tuple(chain)})
    if openfold_config is not None:
        from evofeed.trainer.formats.openfold_config import with_openfold_config

        settings = with_openfold_config(settings, openfold_config)
    result = run_training(
        settings,
        dataset,
        out=out,
        resume=resume,
        weights=weights,
        validation=validation or None,
        device=device or None,
        show=not as_json,
        tensorboard=tensorboard,
        wandb=wandb,
    )
    if (out / "report.json").is_file() and _first_rank():
        from evofeed.trainer.report.commands import show_report

        show_report(
            json.loads((out / "report.json").read_text()) | {"result": _plain(result)}, as_json
        )


def _plain(result: Any) -> dict[str, Any]:
    values = dataclasses.asdict(result)
    del values["losses"]  # steps.jsonl has them
    return values


def _first_rank() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def replay(
    step: Annotated[Path, typer.Argument(help="A folder below nonfinite/ of a run.")],
    device: Device = "",
    precision: Annotated[str, typer.Option(help="Instead: bf16, fp16, tf32, fp32.")] = "",
    kernels: Annotated[str, typer.Option(help="Instead of the run's: fused, torch.")] = "",
    as_json: Json = False,
) -> None:
    """Repeat a step that had no finite gradient and name the module where it began.

    Example:  evofeed replay runs/a/nonfinite/step_00000412.rank0 --device cpu --precision fp32
    """
    import torch

    from evofeed.trainer.run.replay import replay_step

    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    found = replay_step(step, place, precision or None, kernels or None)
    if as_json:
        print(json.dumps(found))
        return
    print(f"step {found['step']} of {', '.join(found['samples']) or 'unnamed samples'}")
    for number, one in enumerate(found["passes"]):
        terms = ", ".join(f"{name} {value}" for name, value in one["terms"].items())
        print(f"pass {number}: loss {one['loss']} ({terms})")
        print(f"  first module with an output that is not finite: {one['first_module'] or 'none'}")
        bad = one["gradients"]
        more = f", {bad[0]} first" if bad else ""
        print(f"  gradients that are not finite: {len(bad)}{more}")
    how = f"on {found['device']} in {found['precision']} with {found['kernels']} kernels"
    print(f"{'finite' if found['finite'] else 'not finite'} {how}")


def _told(show: Callable[[float, str], None], passes: int) -> Callable[[int, int], None]:
    """Shows which pass and block of a prediction are done, and the time left."""
    began = time.monotonic()

    def told(done: int, total: int) -> None:
        left = int((time.monotonic() - began) * (total - done) / done)
        blocks = total // passes
        number, block = divmod(done - 1, blocks)
        text = f"pass {number + 1} of {passes}, block {block + 1} of {blocks}"
        show(done / total, f"{text}  ETA {left // 60}:{left % 60:02d}")

    return told


def predict(
    dataset: Annotated[
        str, typer.Argument(help="URI of the dataset that holds the chain, or URI@REF.")
    ],
    chain: Annotated[str, typer.Argument(help="Chain to predict, 102m_A for one, or a complex.")],
    checkpoint: Annotated[
        Path, typer.Option(help="Run folder, checkpoint folder, or OpenFold's or AF2's file.")
    ],
    out: Annotated[Path, typer.Option(help="Structure file to write: .pdb or .cif.")],
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Contacts, distances and pLDDT, as .png, .svg or .pdf.", callback=picture_name
        ),
    ] = None,
    recycles: Annotated[int, typer.Option(min=0, help="Passes before the last.")] = 3,
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Predict the structure of a chain or of a complex, pLDDT in the B column.

    Example:  evofeed predict data/ 102m_A --checkpoint runs/first --out 102m_A.pdb --picture a.png

    Example:  torchrun --nproc-per-node 4 -m evofeed.cli predict data/ 1abc_A --checkpoint params_model_1.npz --out a.cif
    """  # noqa: E501
    file_format = out.suffix.lstrip(".")
    if file_format not in ("pdb", "cif"):
        raise typer.BadParameter(f"--out must end in .pdb or .cif, not {out.name}")
    for path in (out, picture):  # before the model has run
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent} for {path.name}")
    from evofeed.files import write_atomic
    from evofeed.store import Dataset, address_and_ref
    from evofeed.trainer.parallel.memory import explained
    from evofeed.trainer.predict.prediction import (
        evaluate,
        load_model,
        named,
        predict_structure,
        prediction_batch,
        spread,
        trained_sizes,
    )
    from evofeed.trainer.run.distributed import join_world

    opened = Dataset.open(*address_and_ref(dataset))
    record = opened.assemblies[chain] if chain in opened.assemblies else opened[chain]
    with join_world(device or None, axial=None) as world:  # under torchrun all share the chain
        model = load_model(checkpoint).to(world.device)
        sizes = trained_sizes(checkpoint)
        batch = prediction_batch(record, model, no_recycling_iters=recycles, **sizes)
        num_res = batch["aatype"].shape[-1]
        templates = batch["template_aatype"].shape[-2]
        _, names = named(record)
        with explained(chain, model.config, num_res, world.size, world.device, templates):
            batch = {name: value.to(world.device) for name, value in batch.items()}
            model = spread(model, num_res, world.axis)
            if not world.is_first:  # one writes what all found
                evaluate(model, batch)
                return
            with share_bar("predicting", quiet=as_json) as show:
                found = predict_structure(
                    model, batch, name=chain, chain_names=names,
                    progress=None if as_json else _told(show, recycles + 1),
                )  # fmt: skip
    write_atomic(out, found.text(file_format))
    if picture is not None:
        from evofeed.trainer.predict.plot import plot_prediction

        plot_prediction(found, picture)
    facts: dict[str, Any] = {"chain": chain, "out": str(out)}
    facts |= {"mean_plddt": float(found.plddt.mean()), **found.scores}
    facts["residues"] = len(found.plddt)
    if as_json:
        print(json.dumps(facts))
    else:
        print(
            f"{out}: {chain}, {facts['residues']} residues, mean pLDDT {facts['mean_plddt']:.1f}"
            + "".join(f", {name} {value:.3f}" for name, value in found.scores.items())
        )
