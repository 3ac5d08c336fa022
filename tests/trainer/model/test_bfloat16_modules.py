"""Each module in bfloat16 against itself in float64: is any part of it off by a tenth?

Rounding hides a small error of one projection from any limit on the size of the difference, but it
does not look like one. So each part is scaled
by 1.1 in float64, and of the change this makes to outputs and gradients the bfloat16 run must
not show half: sound code shows next to nothing of it, a part that is off by 1.1 nearly all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import SMALL_PACK, golden_files, golden_root
from tests.trainer.model.golden_case import Case, Prepare, backward, grad_or_zero, unchanged
from tests.trainer.model.golden_kinds import RUNNERS
from torch import Tensor, nn

SCALE = 1.1
LIMIT = 0.5  # of the change: midway between no such error and all of it
# Of a tensor's norm. The gradient of a part's own weights grows by a tenth with its scale, unless
# what comes after undoes it, as the norm after a triangle's product does: then it is no error.
VISIBLE = 0.05
# Files of modules that run out of autocast: `test_golden.py` holds those to float32's limits.
IN_FULL_PRECISION = ("structure_module", "ipa", "torsion")
GENERIC = ("LayerNorm", "Attention")  # recorded by themselves and parts of everything else

Run = dict[str, Tensor]
"""Outputs and gradients by name, in float64."""


@cache
def _recorded(path: Path, suffix: str) -> Case:
    return Case(path, suffix)


def _runs_in_bfloat16(path: Path) -> bool:
    case = Case(path, "")
    masks = [array for name, array in case.group("in").items() if name.endswith("mask")]
    kind = case.meta["kind"]
    return kind in RUNNERS and bool(case.group("param")) and all(mask.any() for mask in masks)


CASES = [path for path in golden_files("model/*.npz") if _runs_in_bfloat16(path)]


def _run(path: Path, *, half: bool, prepare: Prepare = unchanged) -> tuple[nn.Module, Run]:
    """A case from weights, activations and output gradients that bfloat16 holds exactly."""

    def rounded(module: nn.Module) -> None:
        for parameter in module.parameters():
            parameter.data = parameter.data.bfloat16().to(parameter.dtype)
        prepare(module)

    case = replace(_recorded(path, "" if half else "64"), prepare=rounded)
    inputs = case.tensors("in")
    for name in case.meta["diff_inputs"]:
        activation = inputs[name].bfloat16()
        inputs[name] = (activation if half else activation.double()).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        module, outputs = RUNNERS[case.meta["kind"]](case, inputs)
    assert module is not None
    backward(case, outputs)
    found = {f"out.{name}": outputs[name] for name in case.group("cot")}
    for name, valid in case.group("valid").items():
        found[f"out.{name}"] = found[f"out.{name}"] * torch.from_numpy(np.array(valid))
    found |= {f"gin.{name}": grad_or_zero(inputs[name]) for name in case.meta["diff_inputs"]}
    found |= {f"gparam.{name}": grad_or_zero(p) for name, p in module.named_parameters()}
    return module, {name: value.detach().double() for name, value in found.items()}


@cache
def _exact(path: Path) -> tuple[nn.Module, Run]:
    return _run(path, half=False)


def _change(path: Path, run: Run) -> Tensor:
    """A run less the exact one, each tensor in units of its norm, end to end."""
    exact = _exact(path)[1]
    largest: dict[str, float] = {}
    for name, value in exact.items():
        group = name.split(".")[0]
        largest[group] = max(largest.get(group, 0.0), float(value.norm()))
    return torch.cat(
        [
            # Where the truth is nothing beside the others, so is the difference.
            (run[name] - value).flatten() / max(value.norm(), 1e-3 * largest[name.split(".")[0]])
            for name, value in exact.items()
        ]
    )


@cache
def _half(path: Path, prepare: Prepare) -> Tensor:
    """How the bfloat16 run differs."""
    return _change(path, _run(path, half=True, prepare=prepare)[1])


def _parts(module: nn.Module) -> Iterator[str]:
    """Names of what holds weights, leaving out modules that are recorded by themselves."""
    recorded = [
        f"{name}."
        for name, part in module.named_modules()
        if name and type(part).__name__ in RUNNERS and type(part).__name__ not in GENERIC
    ]
    for name, part in module.named_modules():
        has_weights = next(part.parameters(recurse=False), None) is not None
        if has_weights and not f"{name}.".startswith(tuple(recorded)):
            yield name


def _scaled(name: str) -> Prepare:
    def prepare(module: nn.Module) -> None:
        part = module.get_submodule(name)
        part.register_forward_hook(lambda part, args, out: SCALE * out)

    return prepare


@cache
def _effects(path: Path) -> dict[str, Tensor]:
    """What scaling a part changes in float64, for every part that shows it."""
    module, _ = _exact(path)
    if type(module).__module__.endswith(IN_FULL_PRECISION):
        return {}
    changes = {
        name: _change(path, _run(path, half=False, prepare=_scaled(name))[1])
        for name in _parts(module)
    }
    return {name: change for name, change in changes.items() if change.norm() > VISIBLE}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A second one only waits for matrices as small as these, and long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_a_part_of_a_module_looks_scaled_only_if_it_is(golden: Path, one_thread: None) -> None:
    kinds, wrong = set(), {}
    for path in CASES:
        for name, effect in _effects(path).items():
            changes = [_half(path, unchanged), _half(path, _scaled(name))]
            sound, planted = (float(effect @ change / (effect @ effect)) for change in changes)
            if not abs(sound) < LIMIT < planted:
                wrong[f"{path.stem}: {name}"] = sound, planted
            kinds.add(_recorded(path, "").meta["kind"])
    assert not wrong
    assert len(kinds) > (5 if golden_root() == SMALL_PACK else 20)
