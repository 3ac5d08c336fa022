"""`evofeed bench comm`, beside the loader's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evofeed.base.files import write_atomic
from evofeed.base.options import Device, Json
from evofeed.loader import bench_commands
from evofeed.trainer.config import GRADIENTS

__all__ = ["bench_commands", "table"]


def _modes(names: list[str]) -> list[str]:
    for name in names:
        if name not in (*GRADIENTS, "all"):
            raise typer.BadParameter(f"{name!r} is not all or one of {', '.join(GRADIENTS)}")
    return list(GRADIENTS) if "all" in names else names


@bench_commands.command("comm")
def bench_comm(
    config: Annotated[str, typer.Argument(help="A run: a YAML file or a preset's name.")],
    dataset: Annotated[str, typer.Option(help="URI of the dataset that batches are made of.")],
    mode: Annotated[
        list[str], typer.Option(help="Of `gradients`; several, or all.", callback=_modes)
    ] = ["none"],  # noqa: B006  typer's way
    steps: Annotated[int, typer.Option(min=2, help="Of every case.")] = 200,
    hosts: Annotated[int, typer.Option(min=0, help="Pretend to be so many; 0: torchrun's.")] = 0,
    gbit: Annotated[
        float, typer.Option(min=0, help="Pretend a host's link is so slow, by waiting; 0: no.")
    ] = 0.0,
    device: Device = "",
    out: Annotated[
        Path | None, typer.Option(help="The JSON also here, written after every case.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What communication adds to a training step: N cards, the same without a word, one alone.

    Example: torchrun --nproc-per-node 2 -m evofeed.cli bench comm initial_training --dataset data/

    Example: torchrun --nproc-per-node 4 -m evofeed.cli bench comm run.yaml --dataset data/ --mode all --hosts 2 --gbit 10
    """  # noqa: E501
    from evofeed.trainer.bench.comm import measure
    from evofeed.trainer.run.distributed import join_world
    from evofeed.trainer.run.settings import load_config

    def save(found: dict[str, Any]) -> None:
        if out is not None:
            write_atomic(out, json.dumps(found, indent=1))

    settings = load_config(config)
    with join_world(device or None, settings.axial) as world:
        found = measure(
            settings, dataset, world, modes=mode, steps=steps, hosts=hosts, gbit=gbit, tell=save
        )  # fmt: skip
        if world.is_first:
            typer.echo(json.dumps(found) if as_json else "\n".join(table(found)))


def table(found: dict[str, Any]) -> list[str]:
    """What `measure` found, in lines for a terminal."""
    alone, together = found["alone"]["step_ms"], found["together"]["step_ms"]
    who = "one rank alone" if found["axial"] == 1 else "one sample alone"
    lines = [
        f"{found['ranks']} x {found['device']}, {found['parameters']:,} parameters",
        f"{who:<21}{alone:10.1f} ms a step",
        f"all, without a word  {together:10.1f} ms",
        "mode              step ms   exposed   share  scaling  MB between  MB inside",
    ]
    own = {"none, own link": found["unthrottled"]} if "unthrottled" in found else {}
    for name, one in (own | found["modes"]).items():
        lines.append(
            f"{name:<15}{one['step_ms']:>10.1f}{one['exposed_ms']:>10.1f}"
            f"{one['exposed_share']:>8.1%}{one['linear_scaling']:>9.3f}"
            f"{one['bytes_between'] / 1e6:>12.2f}{one['bytes_inside'] / 1e6:>11.2f}"
        )
    return lines
