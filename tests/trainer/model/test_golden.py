"""Every case of the golden model pack, found by walking its folder, in float64 and float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_case import Case, backward, grad_or_zero
from golden_kinds import RUNNERS

from tests.conftest import golden_files

CASES = golden_files("model/*.npz")
OPTIMISER_KINDS = {"adam_ema_lr", "lr_schedule", "grad_clip"}  # replayed in loop/test_optim.py


def _ids(path: Path) -> str:
    return path.stem


def _kind(path: Path) -> str:
    return str(Case.read(path, "").meta["kind"])


def _check(case: Case) -> list[str]:
    inputs = case.inputs()
    module, outputs = RUNNERS[case.meta["kind"]](case, inputs)
    off = {f"out.{k}": v for k, v in case.compare_outputs(outputs).items()}
    backward(case, outputs)
    gin = {name: grad_or_zero(inputs[name]) for name in case.meta["diff_inputs"]}
    off |= {f"gin.{k}": v for k, v in case.compare_gradients("gin", gin).items()}
    if module is not None:
        gparam = {name: grad_or_zero(p) for name, p in module.named_parameters()}
        off |= {f"gparam.{k}": v for k, v in case.compare_gradients("gparam", gparam).items()}
    return [f"{case.name} {case.dtype}: {name} off by {error:.1e}" for name, error in off.items()]


@pytest.mark.parametrize("path", CASES, ids=_ids)
def test_case(path: Path) -> None:
    for suffix in ("64", ""):
        case = Case.read(path, suffix)
        if case.has_reference and case.meta["kind"] in RUNNERS:
            print(_check(case))
            assert not _check(case)
