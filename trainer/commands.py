"""`evofeed train`, `evofeed replay` and `evofeed predict`."""

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
            "tiny_multimer. With --resume the run's, else tiny."
        ),
    ] = "",
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="URI of the dataset to train on, or URI@REF; several: a mixture. "
            "With --resume the run's, if not given."
        ),
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
    as_json: Json = False,
) -> None:  # fmt: skip
    """Train AlphaFold2 on a dataset; `evofeed report` says where the time went.

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
    begun = out / "config.yaml"
    settings = load_config(config or (str(begun) if resume and begun.is_file() else "tiny"))
    if steps:
        settings = settings.replace(steps=steps)
    if share:
        try:
            settings = settings.replace(shares=tuple(share))
        except ValueError as error:
            raise typer.BadParameter(f"--share: {error}") from error
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
