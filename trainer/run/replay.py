"""`evofeed replay`: a step without a finite gradient once more, with an eye on every module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from evofeed.trainer.run.build import build_model, set_precision
from evofeed.trainer.run.nonfinite import read_step
from evofeed.trainer.run.precision import autocast
from evofeed.trainer.run.settings import from_dict


def replay_step(
    folder: Path, device: torch.device, precision: str | None = None, kernels: str | None = None
) -> dict[str, Any]:
    """Repeat a kept step: same batches, dropout masks and weights.

    The weights are those of the time it was noticed, one update after the step: a training
    step is read while the next one runs. Dropout draws the same masks on the same kind of device.

    Args:
        folder: `nonfinite/step_<number>.rank<rank>` of a run.
        precision: instead of the run's: `bf16`, `fp16`, `tf32` or `fp32`.
        kernels: instead of the run's: `fused` or `torch`.

    Returns:
        JSON-ready: for each pass the loss terms, the first module whose output is not finite
        (None if all are), and the parameters whose gradient is not.

    Raises:
        CheckpointError: there is no such step, or its weights are of another model.
    """
    kept, weights, entry = read_step(folder)
    changes = {"precision": precision, "kernels": kernels}
    config = from_dict({**entry["config"], **{k: v for k, v in changes.items() if v}})
    set_precision(config)
    model, loss = build_model(config, device)
    model.load_state_dict(weights, strict=False)  # buffers are constants
    model.train()
    passes: list[dict[str, Any]] = []
    for one in kept:
        batch = {name: value.to(device) for name, value in one.batch.items()}
        model.zero_grad(set_to_none=True)
        torch.manual_seed(one.seed)
        with first_nonfinite(model) as found:
            with autocast(config.precision, device.type):
                outputs = model(batch)
            value, terms = loss(outputs, batch)
        torch.autograd.backward(value)
        bad = [
            name
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
        ]
        passes.append(
            {
                "loss": _number(value),
                "terms": {name: _number(term) for name, term in sorted(terms.items())},
                "first_module": found[0] if found else None,
                "gradients": bad,
            }
        )
    return {
        "step": entry["step"],
        "samples": entry["samples"],
        "device": str(device),
        "precision": config.precision,
        "kernels": config.kernels,
        "passes": passes,
        "finite": all(
            x["first_module"] is None and not x["gradients"] and math.isfinite(float(x["loss"]))
            for x in passes
        ),
    }


@contextmanager
def first_nonfinite(model: nn.Module) -> Iterator[list[str]]:
    """Names of modules in the order in which their outputs stop being finite; innermost first."""
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            floats = (x for x in tree_leaves(output) if isinstance(x, Tensor))
            if not all(bool(x.isfinite().all()) for x in floats):
                found.append(name)

        return hook

    hooks = [part.register_forward_hook(look(name)) for name, part in model.named_modules() if name]
    try:
        yield found
    finally:
        for one in hooks:
            one.remove()


def _number(value: Tensor) -> float | str:
    number = float(value.detach())
    return number if math.isfinite(number) else str(number)
