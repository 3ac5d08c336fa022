"""`train`: builds model, loss, loader and loop for a dataset, and runs the training."""

from __future__ import annotations

import json
import logging
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.base.errors import TrainerError
from evofeed.base.files import write_atomic
from evofeed.base.run_files import RUN, STEPS, STRUCTURE
from evofeed.trainer.config import TrainConfig, save_config
from evofeed.trainer.log import boards
from evofeed.trainer.log.runlog import RunLog, drop_steps
from evofeed.trainer.losses import AlphaFoldLoss
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.compiled import compile_structure
from evofeed.trainer.parallel.rows import out_of_memory
from evofeed.trainer.report.flops import count_step_flops
from evofeed.trainer.report.operators import OperatorSampler
from evofeed.trainer.report.run_report import write_report
from evofeed.trainer.run.build import build_loader, build_model, build_validation, set_precision
from evofeed.trainer.run.distributed import World, join_world
from evofeed.trainer.run.folder import at_run_snapshot, sole_writer
from evofeed.trainer.run.loop import Loop
from evofeed.trainer.run.passes import LossFunction
from evofeed.trainer.run.result import TrainResult
from evofeed.trainer.run.settings import parts_of
from evofeed.trainer.run.stream import Loader, loader_stats

_LOG = logging.getLogger(__name__)
_RESULTS = ("seconds", "skipped", "overflows", "stopped_by", "untouched")
_WARM_UP = 5  # steps before the profiled ones: kernels compiled, buffers grown


def train(
    config: TrainConfig,
    dataset: Any,
    *,
    out: Path,
    resume: bool = False,
    weights: Path | None = None,
    validation: Any = None,
    device: str | None = None,
    show: bool = False,
    tensorboard: bool = False,
    wandb: str = "",
    flops: Mapping[str, float] | None = None,
) -> TrainResult:
    """Trains AlphaFold2 on a dataset; under torchrun, as one of the ranks.

    Writes below `out`: `config.yaml`, `run.json`, `steps.jsonl`, `checkpoints/`,
    and at the end `report.json`.

    Args:
        dataset: a dataset, its URI, a list of them (see `shares`), or a ready loader of this
            rank's batches. A resumed run reads a URI at the snapshot that it began with.
        resume: continue from the newest complete checkpoint below `out`, if any.
        weights: start a new run from these, not from random weights (see `build_model`).
        validation: a dataset or URI of held-out chains.
        device: `cpu` or `cuda`; default: this rank's GPU if there is one.
        flops: of one pass, if known (see `flops.count_step_flops`); else counted at the end.

    Raises:
        TrainerError: training cannot start or continue; gives the reason.
        CheckpointError: a checkpoint does not fit, or cannot be written.
    """
    began = time.perf_counter()
    source = {  # URIs, for `--resume`
        name: [uri for uri in (value if isinstance(value, list | tuple) else [value])
               if isinstance(uri, str)]
        for name, value in (("dataset", dataset), ("validation", validation))
    }  # fmt: skip
    with join_world(device, config.axial) as world, ExitStack() as cleanup:
        set_precision(config)
        model, loss = build_model(config, world.device, weights, world.axis)
        graphs = config.kernels == "fused" and config.cuda_graphs and world.device.type == "cuda"
        if graphs and world.axis is None and isinstance(model, AlphaFold):
            compile_structure(model.structure_module)
        if resume:
            dataset = at_run_snapshot(dataset, out, world)
        loader = build_loader(config, dataset, world)
        if isinstance(loss, AlphaFoldLoss):  # a step recorded as a CUDA graph cannot count them
            loss.no_chains = getattr(loader, "most_chains", None)
        if loader is not dataset and hasattr(loader, "close"):
            cleanup.callback(loader.close)
        return run(
            config,
            model,
            loss,
            loader,
            world=world,
            out=out,
            source=source,
            resume=resume,
            began=began,
            validate=build_validation(config, model, validation, loader, world, out / STRUCTURE),
            show=show and world.is_first,
            tensorboard=tensorboard,
            wandb=wandb,
            count_flops=lambda batch: (
                flops or count_step_flops(lambda: AlphaFold(parts_of(config).model), batch)
            ),
        )


def run(
    config: TrainConfig,
    model: nn.Module,
    loss: LossFunction,
    loader: Loader,
    *,
    world: World,
    out: Path,
    resume: bool = False,
    began: float | None = None,
    source: Mapping[str, Sequence[str]] | None = None,
    validate: Callable[[], dict[str, float]] | None = None,
    show: bool = False,
    tensorboard: bool = False,
    wandb: str = "",
    count_flops: Callable[[dict[str, Tensor]], Mapping[str, float]] | None = None,
) -> TrainResult:
    """Trains the given model, loss and loader and writes the run's folder; see `train`."""
    began = time.perf_counter() if began is None else began
    with sole_writer(out, world):
        existing = any(file.exists() and file.stat().st_size for file in (out / RUN, out / STEPS))
        if not resume and world.share(existing):
            raise TrainerError(
                "a run is here already; --resume continues it, another --out starts afresh",
                path=str(out),
            )
        facts = _facts(config, model, loader, world) | {"source": source or {}}
        log = None
        if world.is_first:
            loggers = [boards.tensorboard(out, facts)] if tensorboard else []
            loggers += [boards.weights_and_biases(wandb, out, facts)] if wandb else []
            samples = facts["samples_per_step"]
            log = RunLog(out, steps=config.steps, show=show, boards=loggers, samples=samples)
        loop = Loop(
            config, model, loss, loader, out=out, world=world, log=log, validate=validate,
            provenance={"dataset": facts["dataset"], "versions": facts["versions"]},
            masks=_masks_at_once(model, world),
        )  # fmt: skip
        first = loop.resume() if resume else 0
        if first >= config.steps:  # all steps are done, and the report is written
            if world.is_first:
                _LOG.warning("%s: all %d steps are done; a larger --steps continues", out, first)
            return loop.result
        if world.is_first:
            save_config(config, out / "config.yaml")  # not before its checkpoint is known to fit
            drop_steps(out, first)
        facts |= {"first_step": first, "seconds_before_first_wait": time.perf_counter() - began}
        return _accounted(loop, log, facts, count_flops)


def _masks_at_once(model: nn.Module, world: World) -> int:
    """Dropout masks drawn at once (see `OnePass`): 1 if a pass may draw a mask again.

    With recomputation, and maybe in an unknown model, blocks run again in the backward pass; and
    ranks that share a sample draw masks of different sizes for their parts, some of them equal.
    """
    runs_once = isinstance(model, AlphaFold) and not model.evoformer.checkpointing
    return 32 if runs_once and world.axis is None else 1


def _accounted(
    loop: Loop,
    log: RunLog | None,
    facts: dict[str, Any],
    count_flops: Callable[[dict[str, Tensor]], Mapping[str, float]] | None,
) -> TrainResult:
    """Runs the loop to its end; writes `run.json` before and after it."""
    config, world, first = loop.config, loop.world, facts["first_step"]
    count = config.profile_steps if config.steps - first > _WARM_UP + config.profile_steps else 0
    sampler = OperatorSampler(loop.clock, first=first + _WARM_UP, steps=count)
    loop.watch = sampler.watch

    def write_facts() -> None:
        if world.is_first:
            write_atomic(loop.out / RUN, json.dumps(facts, indent=1, default=str))

    write_facts()
    with log or nullcontext():
        try:
            result = loop.run()
        except RuntimeError as error:
            if not (text := out_of_memory(error)):
                raise
            raise TrainerError(
                f"out of memory ({text}); recompute activations with "
                "`model: {activation_checkpointing: true}`, share each sample among more ranks "
                "with a larger `axial`, or lower loader.crop_size or batch_size"
            ) from error
    sampler.close()
    facts |= {
        "steps": result.step,
        **{name: getattr(result, name) for name in _RESULTS},
        "operators": sampler.result,
        "loader": loader_stats(loop.loader),
        "parts_by_rank": world.collect(result.parts),
        "peak_memory_by_rank": world.collect(peak_memory(world.device)),
    }
    if world.is_first:
        facts["flops"] = _flops(count_flops, loop.batch_like) if sampler.result else {}
    write_facts()
    if world.is_first:
        write_report(loop.out)
    return result


def peak_memory(device: torch.device) -> int:
    """Peak bytes that torch allocated on this rank's GPU; without a GPU, of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _facts(config: TrainConfig, model: nn.Module, loader: Loader, world: World) -> dict[str, Any]:
    gpu = world.device.type == "cuda"
    batch_size = int(getattr(getattr(loader, "config", None), "batch_size", 1))
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "config": config.to_dict(),
        "world_size": world.size,
        "device": torch.cuda.get_device_name(world.device) if gpu else "CPU",
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "dataset": loader.state_dict().get("snapshots"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "samples_per_step": config.accumulate * world.readers * batch_size,
        "samples_per_epoch": getattr(getattr(loader, "planner", None), "epoch_len", None),
    }  # fmt: skip


def _flops(
    count: Callable[[dict[str, Tensor]], Mapping[str, float]] | None, batch: dict[str, Tensor]
) -> dict[str, Any]:
    if count is None or not batch:
        return {}
    try:
        return dict(count(batch))
    except (RuntimeError, NotImplementedError) as error:  # an operator without a fake form
        return {"why_not": str(error).splitlines()[0]}
