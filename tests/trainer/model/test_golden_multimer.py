"""Every case of the golden pack of complexes, found by walking its folder, in float64 and float32.

float64 must agree to 1e-9; float32 by the pack's own rule (see `golden_case`). The data functions
among them are the loader's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.conftest import golden_files
from tests.trainer.model.golden_case import Case, grad_or_zero, wrong_parts
from tests.trainer.model.golden_multimer import MULTIMER_RUNNERS, whole_multimer

CASES = golden_files("multimer/model/*.npz")
WHOLE = "AlphaFold(multimer)"
OF_THE_LOADER = "nearest_neighbor_clusters"


def _kinds() -> dict[Path, str]:
    return {path: str(Case(path, "64").meta["kind"]) for path in CASES}


KINDS = _kinds()


def test_every_case_is_of_a_kind_that_is_tested(golden: Path) -> None:
    manifest = json.loads((golden / "multimer" / "model" / "manifest.json").read_text())
    assert len(manifest.get("cases", manifest)) == len(CASES) > 0
    known = set(MULTIMER_RUNNERS) | {WHOLE}
    assert all(kind in known or kind.startswith(OF_THE_LOADER) for kind in KINDS.values())


@pytest.mark.parametrize(
    "path", [p for p in CASES if KINDS[p] in MULTIMER_RUNNERS], ids=lambda path: str(path.stem)
)
def test_outputs_and_gradients_equal_the_recorded_ones(path: Path) -> None:
    compared = 0
    for suffix in ("64", ""):
        case = Case(path, suffix)
        if case.has_reference and (suffix or case.meta.get("f32_arrays_stored", True)):
            assert not wrong_parts(case, MULTIMER_RUNNERS[case.meta["kind"]]), case.dtype
            compared += 1
    assert compared


@pytest.mark.parametrize(
    "path", [p for p in CASES if KINDS[p] == WHOLE], ids=lambda path: str(path.stem)
)
def test_the_whole_model_its_losses_and_all_gradients_equal_the_recorded_ones(path: Path) -> None:
    case = Case(path, "64")
    module, outputs, loss, breakdown = whole_multimer(case, case.tensors("in"))
    found = outputs | {"loss": loss[None]} | {f"breakdown.{k}": v for k, v in breakdown.items()}
    assert not case.compare_outputs(found)
    loss.backward()
    largest = max(float(abs(want).max()) for want in case.group("gparam64").values())
    assert largest > 0
    for name, parameter in module.named_parameters():
        want = torch.from_numpy(case.group("gparam64")[name])
        if name not in case.meta["analytic_zero_grads"]:
            difference = (grad_or_zero(parameter) - want).abs().max()
            assert difference <= 1e-9 * max(float(want.abs().max()), 1e-3 * largest), name
