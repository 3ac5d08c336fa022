"""Every case of the golden packs of models, found by walking their folders, in both precisions.

float64 must agree to 1e-9; float32 by the pack's own rule (see `golden_case`). Of complexes the
data functions among them are the loader's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import golden_files
from tests.trainer.model.golden_case import Case, grad_or_zero, wrong_parts
from tests.trainer.model.golden_kinds import RUNNERS, Runner, whole_model
from tests.trainer.model.golden_multimer import MULTIMER_RUNNERS, whole_multimer

CASES, COMPLEXES = golden_files("model/*.npz"), golden_files("multimer/model/*.npz")
OPTIMISER_KINDS = {"adam_ema_lr", "lr_schedule", "grad_clip"}  # replayed in loop/test_optim.py
OF_THE_LOADER = "nearest_neighbor_clusters"
# The pack's in float32, or ten times what the recording itself lost there.
WHOLE_MODEL_TOLERANCE = {"out": 1e-4, "loss": 1e-5, "gparam": 1e-3}


@cache
def _kind(path: Path) -> str:
    return str(Case(path, "").meta["kind"])


def _runners(path: Path) -> dict[str, Runner]:
    return MULTIMER_RUNNERS if path in COMPLEXES else RUNNERS


def _is_target(case: Case) -> bool:
    """False for a case kept only to document wrong behaviour."""
    return "not a target" not in str(case.meta.get("note"))


def _of_kind(kind: str, cases: Sequence[Path]) -> Any:
    paths = [path for path in cases if _kind(path) == kind]
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.stem))


@pytest.mark.parametrize("folder", ["model", "multimer/model"])
def test_every_case_of_a_pack_is_of_a_kind_that_is_tested(golden: Path, folder: str) -> None:
    manifest = json.loads((golden / folder / "manifest.json").read_text())
    cases = CASES if folder == "model" else COMPLEXES
    assert len(manifest.get("cases", manifest)) == len(cases) > 0
    for path in cases:
        kinds = {"AlphaFold", "AlphaFold(multimer)"} | OPTIMISER_KINDS | set(_runners(path))
        assert _kind(path) in kinds or _kind(path).startswith(OF_THE_LOADER)


@pytest.mark.parametrize(
    "path",
    [p for p in (*CASES, *COMPLEXES) if _kind(p) in _runners(p)],
    ids=lambda path: str(path.stem),
)
def test_outputs_and_gradients_equal_the_recorded_ones(path: Path) -> None:
    compared = 0
    for suffix in ("64", ""):
        case = Case(path, suffix)
        stored = suffix or case.meta.get("f32_arrays_stored", True)
        if case.has_reference and stored and _is_target(case):
            assert not wrong_parts(case, _runners(path)[_kind(path)]), case.dtype
            compared += 1
    assert compared or not _is_target(Case(path, ""))


MIXED = [path for path in CASES if not _is_target(Case(path, "64"))]


@pytest.mark.parametrize("path", MIXED, ids=lambda path: str(path.stem))
def test_a_batch_counts_its_samples_one_by_one_where_the_recording_mixes_them(path: Path) -> None:
    case = Case(path, "64")
    inputs = case.tensors("in")
    run = RUNNERS[case.meta["kind"]]
    losses = run(case, inputs)[1]["out"]
    for i, loss in enumerate(losses):
        # Layers come first in what the structure module makes, the batch elsewhere.
        by_layer = {name for name in inputs if "angles" in name and "chi" not in name}
        sample = {k: v[:, i] if k in by_layer else v[i] for k, v in inputs.items()}
        assert torch.allclose(run(case, sample)[1]["out"], loss, rtol=1e-12)


@_of_kind("AlphaFold", CASES)
@pytest.mark.parametrize("suffix", ["64", ""])
def test_the_whole_model_its_losses_and_all_gradients_equal_the_recorded_ones(
    path: Path, suffix: str
) -> None:
    case = Case(path, suffix)
    module, outputs, loss, breakdown = whole_model(case, case.tensors("in"))
    exact = bool(suffix)
    limit = {
        k: 1e-9 if exact else max(v, 10 * case.recorded(k))
        for k, v in WHOLE_MODEL_TOLERANCE.items()
    }
    true = case.meta["loss_breakdown_f64"]
    off = case.compare_outputs(outputs, limit["out"])
    recorded = case.meta["loss_breakdown_f64" if exact else "loss_breakdown"]
    assert set(recorded) == set(breakdown)
    for name, expected in recorded.items():
        error = abs(float(breakdown[name]) - expected) / max(abs(expected), 1e-300)
        rounding = 10 * abs(expected - true[name]) / max(abs(expected), 1e-300)
        if error > max(limit["loss"], rounding) and expected != float(breakdown[name]):
            off[f"loss.{name}"] = error
    loss.backward()
    grads = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    assert set(grads) == {name for name, _ in module.named_parameters()}
    off |= _wrong_gradients(case, grads, limit["gparam"])
    assert not off


def _wrong_gradients(case: Case, grads: dict[str, np.ndarray], limit: float) -> dict[str, float]:
    """Gradients off by more than `limit` of their norm; the norms alone, if only they are kept."""
    stored = case.group("gparam" + case.suffix)
    true = case.group("gparam64") or stored
    norms = case.meta["grad_norms_f64" if case.suffix else "grad_norms"]
    largest = max(norms.values())
    off = {}
    for name, ours in grads.items():
        if name.endswith(_analytic_zeros()):
            error = 0.0 if np.abs(ours).max() <= 1e-5 * largest else float("inf")
        elif stored:
            error = float(np.linalg.norm(ours - stored[name]))
        else:
            error = abs(float(np.linalg.norm(ours)) - norms[name])
        # A gradient far below the others' is their rounding, not a number of its own.
        scale = max(norms[name], 1e-6 * largest)
        rounding = float(np.linalg.norm(stored[name] - true[name])) if stored else 0.0
        if error > max(limit * scale, 10 * rounding):
            off[f"gradient.{name}"] = error / scale
    return off


@cache
def _analytic_zeros() -> tuple[str, ...]:
    """Parameters of stacks whose true gradient is 0, so that a stored one is rounding."""
    names = {n for p in CASES for n in Case(p, "").meta.get("analytic_zero_grads", ())}
    return tuple(f".{name}" for name in names if name.count(".") >= 2 and "blocks" not in name)


@_of_kind("AlphaFold(multimer)", COMPLEXES)
def test_so_do_those_of_the_whole_model_of_complexes(path: Path) -> None:
    case = Case(path, "64")
    module, outputs, loss, breakdown = whole_multimer(case, case.tensors("in"))
    results = outputs | {"loss": loss[None]} | {f"breakdown.{k}": v for k, v in breakdown.items()}
    assert not case.compare_outputs(results)
    loss.backward()
    largest = max(float(abs(expected).max()) for expected in case.group("gparam64").values())
    assert largest > 0
    for name, parameter in module.named_parameters():
        expected = torch.from_numpy(case.group("gparam64")[name])
        if name not in case.meta["analytic_zero_grads"]:
            difference = (grad_or_zero(parameter) - expected).abs().max()
            assert difference <= 1e-9 * max(float(expected.abs().max()), 1e-3 * largest), name
