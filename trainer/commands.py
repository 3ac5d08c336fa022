"""`evofeed train`."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from evofeed.base.options import Device, Json


def train(
    config: Annotated[
        str,
        typer.Argument(
            help="A YAML file, or a preset: initial_training, finetuning, multimer, overfit, tiny, "
            "tiny_multimer. Default: the run's with --resume, else tiny."
        ),
    ] = "",
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="URI of the dataset to train on, or URI@REF; several: a mixture. "
            "With --resume default: the run's."
        ),
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option(help="Share of each dataset in the mixture, in order.")
    ] = None,
    chain: Annotated[
        list[str] | None, typer.Option(help="Train on this chain only; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, max=10**9, help="Total steps.")] = None,
    validation: Annotated[str, typer.Option(help="URI of held-out chains, or URI@REF.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    weights: Annotated[
        Path | None,
        typer.Option(help="Start from a run, a checkpoint, or OpenFold's or AF2's file."),
    ] = None,
    device: Device = "",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files.")] = False,
    wandb: Annotated[str, typer.Option(help="Log to this Weights & Biases project.")] = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Train AlphaFold2 on a dataset; `evofeed report` shows where the time went.

    Example:  evofeed train tiny --dataset data/ --steps 50 --out runs/first

    Example:  evofeed train finetuning --dataset data/ --weights runs/first --out runs/second

    Example:  evofeed train --resume --out runs/first --steps 100

    Example:  evofeed train overfit --dataset data/ --chain 102m_A --out runs/by_heart

    Example:  evofeed train initial_training --dataset pdb/ --share 0.25 --dataset distilled/ --share 0.75 --out runs/mix

    Example:  torchrun --nproc-per-node 4 -m evofeed.cli train initial_training --dataset data/ --out runs/four
    """  # noqa: E501
    from evofeed.trainer.run.folder import source_of
    from evofeed.trainer.run.settings import load_config
    from evofeed.trainer.run.train import train as run_training

    if out is None or not (dataset or resume):
        raise typer.BadParameter("training needs --dataset and --out")
    if not dataset:
        source = source_of(out)
        dataset, validation = source["dataset"], validation or "".join(source["validation"][:1])
    saved = out / "config.yaml"
    settings = load_config(config or (str(saved) if resume and saved.is_file() else "tiny"))
    if steps:
        settings = settings.replace(steps=steps)
    if share:
        settings = settings.replace(shares=tuple(share))
    if chain:
        settings = settings.replace(loader={**settings.loader, "chains": tuple(chain)})
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
    if (out / "report.json").is_file() and os.environ.get("RANK", "0") == "0":
        from evofeed.trainer.report.commands import show_report

        values = dataclasses.asdict(result)
        del values["losses"]  # steps.jsonl has them
        report = json.loads((out / "report.json").read_text())
        show_report(report | {"result": values}, as_json)
