"""OpenFold's side of `two_trainers.py`: what its `OpenFoldWrapper` does in a step, in its order."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.openfold_peer import import_openfold, without_extras
from torch import Tensor, nn

from evofeed.loader import FeatureLoader, openfold_batch
from evofeed.store import Dataset
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.run.build import build_loader, build_model
from evofeed.trainer.run.checkpoint import Checkpoint, checkpoint_in
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.optim import learning_rate
from evofeed.trainer.run.stream import BatchStream, num_recycles
from evofeed.trainer.run.validation import Validator, held_out

Found = dict[str, Any]
"""Loss terms before the first step, and a line for each step."""


class OpenFold(nn.Module):
    """OpenFold's model behind evofeed's batches and outputs."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from openfold.model.model import AlphaFold

        self.model = AlphaFold(config)

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        return dict(self.model(openfold_batch(dict(batch))))


@dataclass(frozen=True)
class Parts:
    """What a run of OpenFold's consists of."""

    model: OpenFold
    loss: Callable[..., Any]
    adam: torch.optim.Adam
    rate: Any
    ema: Any
    loader: FeatureLoader

    def kept(self) -> dict[str, Any]:
        """What a run that goes on another time needs, by name."""
        return {
            "model": self.model.model, "adam": self.adam, "rate": self.rate, "ema": self.ema,
            "loader": self.loader,
        }  # fmt: skip

    def with_breakdown(
        self, outputs: dict[str, Any], batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its terms."""
        total, terms = self.loss(outputs, _last(openfold_batch(batch)), _return_breakdown=True)
        return total, terms


def run_openfold(
    config: TrainConfig, options: argparse.Namespace, world: World, write: Callable[[Found], None]
) -> Found:
    """A run without Lightning; `write` gets what was done after each step."""
    parts = _parts(config, options, world)
    options.snapshots = parts.loader.state_dict()["snapshots"]
    chains = held_out(config, Dataset.open(options.validation), world)
    validate = Validator(config, parts.model, chains, world)
    found, first_step = _begun(parts, config, options, world)
    steps = found["steps"]
    stream = BatchStream(parts.loader)
    parts.model.train()
    begin = time.perf_counter()
    for step in range(first_step + len(steps), options.steps):
        line = _step(step, next(stream), parts, config, options.dropout, world)
        done, every = step + 1, options.validate_every
        if every and (done % every == 0 or done == options.steps):
            line["metrics"] = _validate(parts.model, parts.ema, validate)
        steps.append(line)
        if time.perf_counter() - begin > options.seconds:
            break
        write(found)
        if step % 5 == 0:
            print(f"{step} {line['terms']['loss']:.4f} {line['seconds']:.2f} s", flush=True)
    if options.state:
        state = {name: part.state_dict() for name, part in parts.kept().items()}
        torch.save({**state, **found}, options.state)
    stream.close()
    return found


def _parts(config: TrainConfig, options: argparse.Namespace, world: World) -> Parts:
    """OpenFold's parts with evofeed's first weights and batches."""
    import_openfold(options.openfold)
    without_extras()
    torch.optim.lr_scheduler._LRScheduler = _VerboseScheduler
    from openfold.config import model_config
    from openfold.utils.exponential_moving_average import ExponentialMovingAverage
    from openfold.utils.loss import AlphaFoldLoss
    from openfold.utils.lr_schedulers import AlphaFoldLRScheduler

    settings = model_config("initial_training", train=True, low_prec=config.precision == "bf16")
    if not options.checkpoint_blocks:
        settings.globals.blocks_per_ckpt = None
    if options.dropout < 0:
        _without_dropout(settings.model)
    weights, _ = build_model(config.replace(kernels="torch"), world.device)
    model = OpenFold(settings).to(world.device)
    model.model.load_state_dict(weights.state_dict(), strict=True)
    del weights
    optim = config.optim
    adam = torch.optim.Adam(model.model.parameters(), lr=optim.learning_rate, eps=optim.eps)
    return Parts(
        model=model,
        loss=AlphaFoldLoss(settings.loss),
        adam=adam,
        rate=AlphaFoldLRScheduler(adam),
        ema=ExponentialMovingAverage(model.model, decay=settings.ema.decay),
        loader=build_loader(config, options.dataset, world),
    )


def _begun(
    parts: Parts, config: TrainConfig, options: argparse.Namespace, world: World
) -> tuple[Found, int]:
    """What is found so far, and the first step: 0, or that of the checkpoint to begin at."""
    first_step = checkpoint_in(options.start).step if options.start else 0
    if options.state and options.state.exists():
        kept = torch.load(options.state, map_location=world.device, weights_only=False)
        for name, part in parts.kept().items():
            part.load_state_dict(kept[name])
        return {"start": kept["start"], "steps": kept["steps"]}, first_step
    if options.start:
        _take_over(checkpoint_in(options.start), parts)
        return {"start": {}, "steps": []}, first_step
    first = next(iter(build_loader(config, options.dataset, world)))
    terms = terms_without_dropout(config, parts.model, parts.with_breakdown, first)
    return {"start": terms, "steps": []}, 0


def _step(
    step: int,
    batch: dict[str, Tensor],
    parts: Parts,
    config: TrainConfig,
    dropout: int,
    world: World,
) -> dict[str, Any]:
    """One step, and what is told of it."""
    _synchronize(world)
    began = time.perf_counter()
    torch.manual_seed(max(dropout, 0) * 1_000_003 + step)
    with torch.autocast(world.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        total, terms = parts.with_breakdown(parts.model(batch), batch)
    total.backward()
    norm = nn.utils.clip_grad_norm_(parts.model.model.parameters(), config.optim.max_norm)
    used = parts.adam.param_groups[0]["lr"]
    if abs(used - learning_rate(step, config.optim)) > 1e-12:
        raise RuntimeError(f"step {step}: OpenFold's rate {used} is not evofeed's")
    parts.adam.step()
    parts.rate.step()
    parts.ema.update(parts.model.model)
    parts.adam.zero_grad()
    line = {
        "step": step,
        "terms": {name: float(value) for name, value in terms.items()},
        "norm": float(norm),
        "recycles": num_recycles(batch),
    }
    line["seconds"] = time.perf_counter() - began  # float() above has waited for the GPU
    return line


def _take_over(checkpoint: Checkpoint, parts: Parts) -> None:
    """Go on where a run of evofeed's was: weights, their average, Adam's moments, rate, loader."""
    average, moments = checkpoint.tensors("ema"), checkpoint.tensors("optimizer")
    weights = checkpoint.tensors("model")
    with torch.no_grad():
        for name, parameter in parts.model.model.named_parameters():
            parameter.copy_(weights.pop(name))
            parts.ema.params[name].copy_(average.pop(name))
            parts.adam.state[parameter] = {
                "step": torch.tensor(float(moments["updates"])),
                **{
                    moment: moments[f"{moment}.{name}"].to(parameter.device)
                    for moment in ("exp_avg", "exp_avg_sq")
                },
            }
    if weights or average:
        raise ValueError(f"OpenFold has no parameters for {sorted(weights)[:3]}")
    parts.loader.load_state_dict(checkpoint.state["loader"])
    for _ in range(checkpoint.step):
        parts.rate.step()


class _VerboseScheduler(torch.optim.lr_scheduler.LRScheduler):
    """Takes the argument `verbose`, which OpenFold passes on and torch no longer has."""

    def __init__(self, optimizer: Any, last_epoch: int = -1, verbose: bool = False) -> None:
        super().__init__(optimizer, last_epoch)


def _validate(model: OpenFold, ema: Any, validate: Validator) -> dict[str, float]:
    kept = {name: value.clone() for name, value in model.model.state_dict().items()}
    model.model.load_state_dict(ema.state_dict()["params"])
    model.eval()
    metrics = validate()
    model.train()
    model.model.load_state_dict(kept)
    return metrics


def terms_without_dropout(
    config: TrainConfig, model: nn.Module, loss: Any, batch: dict[str, Tensor]
) -> dict[str, float]:
    """Loss terms of the first batch at the first weights, in evaluation mode."""
    model.eval()
    device = batch["aatype"].device.type
    half = config.precision == "bf16"
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=half):
        _, terms = loss(model(batch), batch)
    model.train()
    return {name: float(value) for name, value in terms.items()}


def _last(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value[..., -1] for name, value in batch.items()}


def _without_dropout(model: Any) -> None:
    model.template.template_pair_stack.dropout_rate = 0.0
    for stack in (model.extra_msa.extra_msa_stack, model.evoformer_stack):
        stack.msa_dropout = stack.pair_dropout = 0.0
    model.structure_module.dropout_rate = 0.0


def _synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()
