"""OpenFold's model, loss and optimizer beside evofeed's: same weights, same batches, step by step.

    python benchmarks/two_trainers.py evofeed --dataset DATA --validation HELD_OUT \
        --precision bf16 --steps 200 --dropout 1 --out a.json
    python benchmarks/two_trainers.py openfold --openfold OPENFOLD ... --dropout 1 --out b.json

How far runs lie apart says `two_trainers_apart.py`.

Both start from the weights that seed 0 draws and take the batches of one loader (recycles drawn
for each batch; OpenFold's through `openfold_batch`). `evofeed` is `evofeed train`'s own loop.
`openfold` is its model, `AlphaFoldLoss`, `torch.optim.Adam`, `AlphaFoldLRScheduler`,
`ExponentialMovingAverage` and gradient clipping, in the order of its `OpenFoldWrapper`; Lightning,
which only calls them, is left out. `--dropout` seeds the dropout masks alone, -1 turns dropout
off: what two dropout seeds of one trainer differ by is the measure of what two trainers may.
Curves are written as the runs go; with `--seconds` and `--state` OpenFold's goes on another time.
With `--start` either begins at a checkpoint of evofeed's (`--keep`, `--keep-at`): what lies apart
then was not brought along. The recorded runs' data:

    evofeed synth raw/ --chains 240 --seed 7 --mean-length 200 --mean-depth 400 --mean-members 4
    evofeed featurize raw/ DATA

Validation: averaged weights, four recycles, on chains that are not trained on.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.files import write_atomic
from evofeed.loader import openfold_batch
from evofeed.store import Dataset
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.run.build import build_loader, build_model, build_plain, set_precision
from evofeed.trainer.run.checkpoint import CHECKPOINTS, Checkpoint, checkpoint_in
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.optim import learning_rate
from evofeed.trainer.run.stream import BatchStream, num_recycles
from evofeed.trainer.run.train import run
from evofeed.trainer.run.validation import Validator, held_out

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.openfold_peer import import_openfold

_WRITE_EVERY = 3.0  # seconds
NO_DROPOUT = {
    "template": {"dropout_rate": 0.0},
    "extra_msa": {"msa_dropout": 0.0, "pair_dropout": 0.0},
    "evoformer": {"msa_dropout": 0.0, "pair_dropout": 0.0},
    "structure_module": {"dropout_rate": 0.0},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("trainer", choices=("evofeed", "openfold"))
    parser.add_argument("--openfold", type=Path, help="a checkout, for `openfold`")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument(
        "--dropout", type=int, required=True, help="seed of the masks; -1: no dropout"
    )
    parser.add_argument("--validate-every", type=int, default=50)
    parser.add_argument("--validate-batches", type=int, default=8)
    parser.add_argument(
        "--checkpoint-blocks", action="store_true", help="OpenFold recomputes blocks"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="OpenFold stops after so many")
    parser.add_argument(
        "--state", type=Path, help="where OpenFold stops and goes on from next time"
    )
    parser.add_argument("--keep", type=Path, help="evofeed's run, with a checkpoint at --keep-at")
    parser.add_argument("--keep-at", type=int, default=0)
    parser.add_argument("--start", type=Path, help="begin at this checkpoint of evofeed's")
    parser.add_argument("--loader", default="{}", help="JSON of loader settings that differ")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def settings(options: argparse.Namespace) -> TrainConfig:
    """AF2's initial training as it is, but for the run's length and validations."""
    config = PRESETS["initial_training"]().train
    return config.replace(
        seed=0,
        steps=options.steps,
        precision=options.precision,
        checkpoint_every=options.keep_at,
        profile_steps=0,
        validate_every=options.validate_every,
        validate_batches=options.validate_batches,
        model=NO_DROPOUT if options.dropout < 0 else {},
        loader=json.loads(options.loader),
    )


def run_evofeed(config: TrainConfig, options: argparse.Namespace, world: World) -> dict[str, Any]:
    """`evofeed train` itself, with another seed for dropout than for weights and batches."""
    model, loss = build_model(config, world.device)
    loader = build_loader(config, options.dataset, world)
    chains = held_out(config, Dataset.open(options.validation), world)
    validate = Validator(config, model, chains, world)
    start: dict[str, float] = {}
    if not options.start:
        first = next(iter(build_loader(config, options.dataset, world)))
        start = _terms_without_dropout(config, model, loss, first)
    options.snapshots = loader.state_dict()["snapshots"]
    dropout = config.replace(seed=max(options.dropout, 0))
    with tempfile.TemporaryDirectory() as folder:
        out = options.keep or Path(folder) / "run"
        if options.start:
            _begin_at(options.start, out, dropout.seed)
        parts = {"world": world, "out": out, "validate": validate}
        with _written_meanwhile(options, world, lambda: {"start": start, "steps": _lines(out)}):
            run(dropout, model, loss, loader, resume=bool(options.start), **parts)
        return {"start": start, "steps": _lines(out)}


def _lines(run_folder: Path) -> list[dict[str, Any]]:
    """What both trainers tell of their steps, of those that evofeed has done."""
    return [
        {
            "step": line["step"],
            "terms": line["terms"],
            "norm": line["norm"],
            "recycles": line["recycles"],
            "seconds": sum(line["seconds"].values()) - line["seconds"].get("validation", 0.0),
            **({"metrics": line["metrics"]} if "metrics" in line else {}),
        }
        for line in read_steps(run_folder)
    ]


@contextmanager
def _written_meanwhile(
    options: argparse.Namespace, world: World, found: Callable[[], dict[str, Any]]
) -> Iterator[None]:
    """Write the result every few seconds, so that a run that is cut off leaves its steps."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(_WRITE_EVERY):
            if (now := found())["steps"]:
                _write(options, world, now)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def _begin_at(checkpoint: Path, out: Path, seed: int) -> None:
    """Make a run that continues at another run's checkpoint with dropout masks of its own."""
    copy = out / CHECKPOINTS / checkpoint.name
    shutil.copytree(checkpoint, copy)
    state = json.loads((copy / "state.json").read_text())
    state["state"]["seed"] = seed
    (copy / "state.json").write_text(json.dumps(state))


class OpenFold(nn.Module):
    """OpenFold's model behind evofeed's batches and outputs."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from openfold.model.model import AlphaFold

        self.model = AlphaFold(config)

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        return dict(self.model(openfold_batch(dict(batch))))


def run_openfold(config: TrainConfig, options: argparse.Namespace, world: World) -> dict[str, Any]:
    """What OpenFold's `OpenFoldWrapper` does in a step, in its order, without Lightning."""
    import_openfold(options.openfold)
    _without_extras()
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
    loss = AlphaFoldLoss(settings.loss)
    optim = config.optim
    adam = torch.optim.Adam(model.model.parameters(), lr=optim.learning_rate, eps=optim.eps)
    rate = AlphaFoldLRScheduler(adam)
    ema = ExponentialMovingAverage(model.model, decay=settings.ema.decay)
    loader = build_loader(config, options.dataset, world)
    options.snapshots = loader.state_dict()["snapshots"]
    chains = held_out(config, Dataset.open(options.validation), world)
    validate = Validator(config, model, chains, world)

    def with_breakdown(
        outputs: dict[str, Any], batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        total, terms = loss(outputs, _last(openfold_batch(batch)), _return_breakdown=True)
        return total, terms

    parts = {"model": model.model, "adam": adam, "rate": rate, "ema": ema, "loader": loader}
    if options.state and options.state.exists():
        kept = torch.load(options.state, map_location=world.device, weights_only=False)
        for name, part in parts.items():
            part.load_state_dict(kept[name])
        start, steps = kept["start"], kept["steps"]
    elif options.start:
        start, steps = {}, []
    else:
        first = next(iter(build_loader(config, options.dataset, world)))
        start, steps = _terms_without_dropout(config, model, with_breakdown, first), []
    first_step = 0
    if options.start:
        first_step = _take_over(checkpoint_in(options.start), model.model, adam, ema)
        loader.load_state_dict(checkpoint_in(options.start).state["loader"])
        for _ in range(first_step):
            rate.step()
    stream = BatchStream(loader)
    model.train()
    begin = time.perf_counter()
    for step in range(first_step + len(steps), options.steps):
        batch = next(stream)
        _synchronize(world)
        began = time.perf_counter()
        torch.manual_seed(max(options.dropout, 0) * 1_000_003 + step)
        with _autocast(config, world):
            total, terms = with_breakdown(model(batch), batch)
        total.backward()
        norm = nn.utils.clip_grad_norm_(model.model.parameters(), optim.max_norm)
        used = adam.param_groups[0]["lr"]
        if abs(used - learning_rate(step, optim)) > 1e-12:
            raise RuntimeError(f"step {step}: OpenFold's rate {used} is not evofeed's")
        adam.step()
        rate.step()
        ema.update(model.model)
        adam.zero_grad()
        line = {
            "step": step,
            "terms": {name: float(value) for name, value in terms.items()},
            "norm": float(norm),
            "recycles": num_recycles(batch),
        }
        line["seconds"] = time.perf_counter() - began  # float() above has waited for the GPU
        done = step + 1
        every = options.validate_every
        if every and (done % every == 0 or done == options.steps):
            line["metrics"] = _validate(model, ema, validate)
        steps.append(line)
        if time.perf_counter() - begin > options.seconds:
            break
        _write(options, world, {"start": start, "steps": steps})
        if step % 5 == 0:
            print(f"{step} {line['terms']['loss']:.4f} {line['seconds']:.2f} s", flush=True)
    if options.state:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "start": start, "steps": steps}, options.state)
    stream.close()
    return {"start": start, "steps": steps}


def _take_over(checkpoint: Checkpoint, model: nn.Module, adam: Any, ema: Any) -> int:
    """Put weights, their average and Adam's moments of evofeed's into OpenFold's; its step."""
    average, moments = checkpoint.tensors("ema"), checkpoint.tensors("optimizer")
    weights = checkpoint.tensors("model")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.pop(name))
            ema.params[name].copy_(average.pop(name))
            adam.state[parameter] = {
                "step": torch.tensor(float(moments["updates"])),
                **{
                    moment: moments[f"{moment}.{name}"].to(parameter.device)
                    for moment in ("exp_avg", "exp_avg_sq")
                },
            }
    if weights or average:
        raise ValueError(f"OpenFold has no parameters for {sorted(weights)[:3]}")
    return checkpoint.step


class _VerboseScheduler(torch.optim.lr_scheduler.LRScheduler):
    """Takes the argument `verbose`, which OpenFold passes on and torch no longer has."""

    def __init__(self, optimizer: Any, last_epoch: int = -1, verbose: bool = False) -> None:
        super().__init__(optimizer, last_epoch)


def _without_extras() -> None:
    """Stand-ins for what OpenFold imports: its softmax in torch, and writers that no run calls."""
    core: Any = types.ModuleType("attn_core_inplace_cuda")
    core.forward_, core.backward_ = _softmax_in_place, _softmax_gradient_in_place
    sys.modules.setdefault("attn_core_inplace_cuda", core)
    for name in (
        "modelcif", "modelcif.model", "modelcif.dumper", "modelcif.reference",
        "modelcif.protocol", "modelcif.alignment", "modelcif.qa_metric",
    ):  # fmt: skip
        sys.modules.setdefault(name, types.ModuleType(name))


def _softmax_in_place(logits: Tensor, *_: int) -> None:
    logits.copy_(logits.softmax(-1))


def _softmax_gradient_in_place(weights: Tensor, grad_out: Tensor, v: Tensor, *_: int) -> None:
    grad = grad_out @ v.transpose(-1, -2)
    weights.mul_(grad - (grad * weights).sum(-1, keepdim=True))


def _validate(model: OpenFold, ema: Any, validate: Validator) -> dict[str, float]:
    kept = {name: value.clone() for name, value in model.model.state_dict().items()}
    model.model.load_state_dict(ema.state_dict()["params"])
    model.eval()
    metrics = validate()
    model.train()
    model.model.load_state_dict(kept)
    return metrics


def _terms_without_dropout(
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


def _autocast(config: TrainConfig, world: World) -> torch.autocast:
    return torch.autocast(world.device.type, torch.bfloat16, enabled=config.precision == "bf16")


def _synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def train(options: argparse.Namespace) -> None:
    """Run one trainer and write what it did."""
    config = settings(options)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = World(rank=0, size=1, device=device)
    set_precision(config)
    with torch.device("meta"):
        options.parameters = sum(p.numel() for p in build_plain(config).parameters())
    found = {"evofeed": run_evofeed, "openfold": run_openfold}[options.trainer](
        config, options, world
    )
    _write(options, world, found)


def _write(options: argparse.Namespace, world: World, found: Mapping[str, Any]) -> None:
    """Put what was done so far where the result shall be."""
    gpu = world.device.type == "cuda"
    result = {
        "trainer": options.trainer,
        "precision": options.precision,
        "dropout": options.dropout,
        "command": " ".join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if gpu else "CPU",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "parameters": options.parameters,
        "dataset": options.snapshots,
        "first_step": found["steps"][0]["step"],
        "seconds_per_step": statistics.median(s["seconds"] for s in found["steps"]),
        "peak_memory": torch.cuda.max_memory_allocated() if gpu else None,
        **found,
    }
    write_atomic(options.out, json.dumps(result))


def main() -> None:
    train(arguments())


if __name__ == "__main__":
    main()
