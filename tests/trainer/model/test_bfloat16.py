"""What bfloat16 costs the whole model, against what its rounding must cost.

Each recorded model gives its own bound. It runs in float64 with every weight, every module's
output and every gradient on its way back rounded to bfloat16, several times, each time from
weights moved by less than such a rounding: that is how far rounding alone leads. The model
under autocast may be off from float64 (which `test_golden.py` holds to the recorded values) by
a small multiple of it, and no more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import golden_files
from tests.trainer.model.golden_case import Case, Prepare
from tests.trainer.model.golden_kinds import whole_model
from torch import Tensor, nn

DRAWS = 4
# Twice the worst of some forty random models. The gradient is thousands of numbers and its error
# hardly varies; a loss is a single one.
LIMITS = {"gradient": 5.0, "loss": 12.0}
# One step of bfloat16 is always allowed to a loss: targets that are bins (pLDDT's) jump, and no
# draw may have met that jump.
STEP = 2**-7
IN_FULL_PRECISION = "structure_module"  # and the losses, which are no modules


def _is_whole_model(path: Path) -> bool:
    with np.load(path) as file:
        return bool(json.loads(str(file["meta"]))["kind"] == "AlphaFold")


MODELS = [path for path in golden_files("model/*.npz") if _is_whole_model(path)]
every_model = pytest.mark.parametrize("path", MODELS, ids=lambda path: str(path.stem))


@dataclass(frozen=True)
class Run:
    """One training pass: loss terms by name, all gradients end to end."""

    losses: dict[str, float]
    gradient: Tensor

    @classmethod
    def of(cls, path: Path, prepare: Prepare, *, half: bool = False) -> Run:
        case = Case(path, "" if half else "64", prepare)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            module, _, loss, terms = whole_model(case, case.tensors("in"))
        loss.backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
        gradient = torch.cat([grad.flatten().double() for grad in grads])
        return cls({name: float(value.detach()) for name, value in terms.items()}, gradient)

    def distance(self, other: Run) -> dict[str, float]:
        """How far each loss and the gradient are from another run's."""
        losses = {f"loss.{k}": abs(v - other.losses[k]) for k, v in self.losses.items()}
        return {"gradient": float((self.gradient - other.gradient).norm()), **losses}


class _Rounded(torch.autograd.Function):
    """Rounds to bfloat16 what goes forward and what comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].bfloat16().to(grads[0].dtype)


def _rounding(seed: int) -> Prepare:
    """Makes a module compute as bfloat16 would, in whatever precision it has."""

    def round_output(module: nn.Module, args: Any, out: Any) -> Any:
        if isinstance(out, tuple):
            return tuple(_Rounded.apply(part) for part in out)
        return _Rounded.apply(out)

    def prepare(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            if not name.startswith(IN_FULL_PRECISION):
                # At most 2^-9, bfloat16's own error.
                off = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
                parameter.data = (parameter.data * (1 + off * 2**-8)).bfloat16().to(parameter.dtype)
        for name, module in model.named_modules():
            if name and not name.startswith((IN_FULL_PRECISION, "aux_heads")):
                module.register_forward_hook(round_output)
        for head in model.get_submodule("aux_heads").children():
            head.register_forward_hook(round_output)

    return prepare


def _fresh_weights(seed: int | None) -> Prepare:
    """Shuffles the values within every parameter: another random model of the same scales."""

    def prepare(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(seed or 0)
        for parameter in model.parameters() if seed is not None else ():
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.data = parameter.data.flatten()[order].view(parameter.shape)

    return prepare


def _both(first: Prepare, second: Prepare) -> Prepare:
    def prepare(model: nn.Module) -> None:
        first(model)
        second(model)

    return prepare


@cache
def _exact_and_noise(path: Path, seed: int | None) -> tuple[Run, dict[str, float]]:
    """The float64 run, and how far rounding to bfloat16 leads from it (root mean square)."""
    weights = _fresh_weights(seed)
    exact = Run.of(path, weights)
    draws = [Run.of(path, _both(weights, _rounding(i))).distance(exact) for i in range(DRAWS)]
    return exact, {k: float(np.sqrt(np.mean([draw[k] ** 2 for draw in draws]))) for k in draws[0]}


def excess(path: Path, seed: int | None = None, defect: Prepare | None = None) -> dict[str, float]:
    """Errors in bfloat16 as multiples of what rounding costs; only those above the limits.

    Args:
        path: a recorded whole model.
        seed: of other weights than the recorded ones.
        defect: done to the model that runs in bfloat16.
    """
    exact, noise = _exact_and_noise(path, seed)
    weights = _fresh_weights(seed)
    run = Run.of(path, _both(weights, defect) if defect else weights, half=True)
    found = {
        name: error / noise[name]
        for name, error in run.distance(exact).items()
        if error > STEP * abs(exact.losses.get(name.removeprefix("loss."), 0.0))
    }
    return {name: ratio for name, ratio in found.items() if ratio > LIMITS[name.split(".")[0]]}


@every_model
def test_the_recorded_model_loses_no_more_than_rounding_costs(path: Path) -> None:
    assert not excess(path)


@every_model
def test_a_fresh_model_loses_no_more_than_rounding_costs(path: Path) -> None:
    assert not excess(path, seed=1)


@every_model
@pytest.mark.parametrize("name", ["input_embedder", "evoformer.linear", "aux_heads.distogram"])
def test_a_wrong_scale_in_one_module_is_found(path: Path, name: str) -> None:
    def scale(module: nn.Module, args: Any, out: Any) -> Any:
        return tuple(2 * part for part in out) if isinstance(out, tuple) else 2 * out

    def defect(model: nn.Module) -> None:
        model.get_submodule(name).register_forward_hook(scale)

    assert excess(path, defect=defect)
