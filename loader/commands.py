"""`evofeed plan` and `evofeed bench`."""

from __future__ import annotations

import itertools
import json
import time
from typing import Annotated, Any

import numpy as np
import typer

from evofeed.base.options import Json, group, usable_device
from evofeed.loader.config import PRESETS, LoaderConfig

bench_commands = group(
    "Measure evofeed on this machine.\n\nExample: evofeed bench loader data/ --steps 100"
)

Dataset = Annotated[str, typer.Argument(help="Path, file://, s3:// or http(s):// of a dataset.")]
Preset = Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")]
Snapshot = Annotated[str, typer.Option(help="Ref or digest.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]


def _config(preset: str, **changes: Any) -> LoaderConfig:
    set_options = {name: value for name, value in changes.items() if value is not None}
    return LoaderConfig.preset(preset, **set_options)


@bench_commands.callback()
def _bench() -> None:
    """Measure evofeed on this machine."""


@bench_commands.command("loader")
def bench_loader(
    dataset: Dataset,
    snapshot: Snapshot = "main",
    preset: Preset = "initial_training",
    crop_size: Annotated[int | None, typer.Option(help="Overrides the preset's.", min=1)] = None,
    steps: Annotated[int, typer.Option(help="Batches to take.", min=2)] = 50,
    step_ms: Annotated[
        float, typer.Option(help="Length of the simulated training step.", min=0)
    ] = 250,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch.", min=1)] = 1,
    threads: Annotated[int, typer.Option(help="Reader threads.", min=1)] = 4,
    device: Annotated[
        str | None,
        typer.Option(help="cuda, cuda:1, cpu; default: a GPU if any.", callback=usable_device),
    ] = None,
    trace: Annotated[str | None, typer.Option(help="Write a Chrome trace here.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure how long a training step would wait for data, and what the loader costs.

    Example: evofeed bench loader data/ --steps 100 --step-ms 50
    """
    from evofeed.loader.feature_loader import FeatureLoader
    from evofeed.store import Dataset as Opened
    from evofeed.store import address_and_ref

    config = _config(preset, crop_size=crop_size, batch_size=batch_size)
    options: dict[str, Any] = {"seed": seed, "device": device, "num_threads": threads}
    opened = Opened.open(*address_and_ref(dataset, snapshot))
    source = opened if config.entries is None else opened.entries
    with FeatureLoader(source, config, **options) as loader:
        result = measure(loader, steps, step_ms / 1e3)
        if trace is not None:
            loader.write_trace(trace)
    if as_json:
        typer.echo(json.dumps(result))
        return
    for name, value in result.items():
        text = f"{value:.3f}" if isinstance(value, float) else str(value)
        typer.echo(f"{name:<24} {text}")


def plan(
    dataset: Dataset,
    snapshot: Snapshot = "main",
    preset: Preset = "initial_training",
    world_size: Annotated[int, typer.Option(help="Ranks.", min=1)] = 1,
    rank: Annotated[int | None, typer.Option(help="Only this rank.")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch of a rank.", min=1)] = 1,
    global_batch_size: Annotated[
        int | None, typer.Option(help="Samples of an optimiser step.", min=1)
    ] = None,
    epoch: Annotated[int, typer.Option(help="Epoch.", min=0)] = 0,
    start: Annotated[int, typer.Option(help="First batch of the epoch to list.", min=0)] = 0,
    batches: Annotated[int, typer.Option(help="Batches of each rank.", min=1)] = 1,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """List which rank reads which chains, by the loader's own plan, without reading any.

    Example: evofeed plan data/ --world-size 8 --batches 2
    """
    from evofeed.loader.plan import RunPlan
    from evofeed.store import Dataset as Opened
    from evofeed.store import address_and_ref

    config = _config(preset, batch_size=batch_size, global_batch_size=global_batch_size)
    if rank is not None and not 0 <= rank < world_size:
        raise typer.BadParameter(f"{rank} is not one of {world_size} ranks", param_hint="--rank")
    if config.entries is not None:
        raise typer.BadParameter("a plan is of chains, entries are drawn", param_hint="--preset")
    index = Opened.open(*address_and_ref(dataset, snapshot)).index
    run = RunPlan(index, config, world_size=world_size, seed=seed)
    rows = run.samples(rank, epoch=epoch, start=start, batches=batches)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    typer.echo("epoch batch  step  rank  position  recycles  chain")
    for row in rows:
        typer.echo(
            f"{row['epoch']:>5} {row['batch']:>5} {row['step']:>5} {row['rank']:>5} "
            f"{row['position']:>9} {row['recycling_iters']:>9}  {row['chain_id']}"
        )


def measure(loader: Any, steps: int, step_seconds: float) -> dict[str, Any]:
    """Take `steps` batches, sleeping `step_seconds` on each; times in milliseconds.

    The first batch is reported separately: it includes the start-up. `cores` is CPU time
    of this process and its reader over wall time; the simulated step sleeps.
    """
    import torch

    stream = itertools.chain.from_iterable(itertools.repeat(loader))  # through the ends of epochs
    waits: list[float] = []
    begun = cpu = 0.0
    for number in range(steps):
        called = time.perf_counter()
        next(stream)
        if loader.device.type == "cuda":
            torch.cuda.current_stream(loader.device).synchronize()
        waits.append(time.perf_counter() - called)
        if not number:
            begun, cpu = time.perf_counter(), _cpu_seconds(loader)
        time.sleep(step_seconds)
    first = waits.pop(0)
    wall, used = time.perf_counter() - begun, _cpu_seconds(loader) - cpu
    stats = loader.stats()
    array = np.array(waits) * 1e3
    return {
        "device": str(loader.device),
        "steps": steps,
        "step_ms": step_seconds * 1e3,
        "first_batch_ms": first * 1e3,
        "wait_p50_ms": float(np.percentile(array, 50)),
        "wait_p99_ms": float(np.percentile(array, 99)),
        "wait_share": float(array.sum() / 1e3 / wall),
        "samples_per_second": steps * loader.config.batch_size / wall,
        "cores": used / wall,
        "cpu_ms_per_sample": used * 1e3 / ((steps - 1) * loader.config.batch_size),
        "mb_per_sample": stats["bytes_per_sample"] / 1e6,
        "make_host_p50_ms": stats["make_host"]["p50_ms"],
        "make_device_p50_ms": stats["make_device"]["p50_ms"],
        "read_p50_ms": stats["read"]["p50_ms"],
        "bad_chains": len(stats["bad_chains"]),
    }


def _cpu_seconds(loader: Any) -> float:
    return time.process_time() + float(loader.stats()["reader_cpu_seconds"])
