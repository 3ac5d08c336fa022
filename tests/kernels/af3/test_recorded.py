"""Modules of Boltz, OpenFold3 and Protenix: our plain ones, and what `to_fused` makes of them.

The plain ones are checked against what the projects' own classes gave; the swapped ones against
both. Whatever a case holds, a swap may not change it. Attention in windows of atoms is not among
them: nothing of it is fused.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.kernels.af3 import maths
from tests.kernels.af3.recorded import Recorded, load, paths, quick, whole
from torch import nn

from evofeed.kernels import to_fused
from evofeed.kernels.fused_module import Fused

PATHS = [path for path in paths() if whole(path)]
NAMES = [f"{path.parent.name} {path.stem}" for path in PATHS]
EXACT = 1e-6  # large arrays are recorded in float32
FLOAT32 = 5e-6
BFLOAT16 = 2e-4
FEW_NUMBERS = 64
"""Below it chance decides how far a result is off: a norm's weight in bfloat16."""
OURS = re.compile(
    r"Triangle(Attention|Multiplication)|Transition$|OuterProductMean|PairBlock|PairFormerBlock|"
    r"PairformerBlock|PairformerLayer|PairformerNoSeqLayer|PairWeightedAveraging|AttentionPairBias$|"
    r"MSAModuleBlock|MSALayer|AdaLN|AdaptiveLayerNorm|ConditionedTransitionBlock|"
    r"DiffusionTransformer(Block|Layer)"
)
"""Classes of which every module is to be fused."""


def _smallest() -> set[Path]:
    """A case of each class: the others are of the same kernels, and for GPUs."""
    least: dict[str, Path] = {}
    for path in PATHS:
        kind = f"{path.parent.name} {path.stem.split('.')[0]}"
        if kind not in least or path.stat().st_size < least[kind].stat().st_size:
            least[kind] = path
    return set(least.values())


FEW = _smallest()
SOME = [
    pytest.param(path, id=name)
    for path, name in zip(PATHS, NAMES, strict=True)
    # interpreted, whole blocks are those of `test_own_classes.py`
    if torch.cuda.is_available()
    or (path in FEW and quick(path) and not path.stem.startswith("pair_block"))
]


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """As on a machine without a GPU: no interpreter."""
    from evofeed.kernels.runtime import backend

    before, backend.interpreted.depth = backend.interpreted.depth, 0
    yield
    backend.interpreted.depth = before


def _results(case: Recorded) -> list[str]:
    """Names of the results that a relative error says something about."""
    vanishing = {f"grad.param.{n}" for n in case.meta["vanishing_grads"]}
    vanishing |= {f"grad.{n}" for n in case.meta["vanishing_grads"]}
    vanishing |= set(case.meta["vanishing_grads"])
    found = [n for n in case.arrays if n.startswith(("out.", "grad.")) and n not in vanishing]
    assert found
    return found


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_our_plain_module_gives_what_the_projects_own_gave(path: Path) -> None:
    case = load(path, torch.float64)
    found = case.run()
    errors = {name: case.error(name, found[name]) for name in _results(case)}
    assert max(errors.values()) < EXACT, errors


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("path", sorted(FEW), ids=lambda path: f"{path.parent.name} {path.stem}")
def test_without_a_gpu_a_swapped_module_runs_its_own_forward(path: Path) -> None:
    case = load(path, torch.float64)
    expected = case.run()
    fused = to_fused(copy.deepcopy(case.module))
    assert list(fused.state_dict()) == list(case.module.state_dict())
    found = case.run(fused)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("path", SOME)
def test_a_swapped_module_gives_the_recorded_results(path: Path, device: str) -> None:
    _compare(load(path, torch.float32, device), FLOAT32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the interpreter has no bfloat16")
@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_in_16_bits_it_is_as_exact_as_pytorch(path: Path, device: str) -> None:
    case = load(path, torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        _compare(case, BFLOAT16, case.meta["rel_error"]["bfloat16_autocast"])


def _compare(case: Recorded, floor: float, recorded: dict[str, float] | None = None) -> None:
    """Every result's error is at most 1.5 times PyTorch's own, here or where it was recorded."""
    drawn, wrong = any(name.startswith("drop.") for name in case.arrays), {}
    if drawn and torch.cuda.is_available() and "boltz" not in case.meta["cls"]:
        pytest.skip("nn.Dropout draws other masks on a GPU; Boltz draws by torch.rand")
    fused = to_fused(copy.deepcopy(case.module))
    if OURS.search(type(case.module).__name__):
        assert isinstance(fused, Fused)
    with contextlib.ExitStack() as stack:
        if drawn:
            _draw_both_ways(case, stack)
        plain, ours = case.run(), case.run(fused)
    for name in _results(case):
        if drawn:
            scale = plain[name].norm().clamp_min(1e-30)
            theirs, error = 0.0, float((ours[name] - plain[name]).norm() / scale)
            allowed = floor if recorded is None else 3 * recorded.get(name, 0.0) + floor
        else:
            theirs, error = case.error(name, plain[name]), case.error(name, ours[name])
            theirs = max(theirs, (recorded or {}).get(name, 0.0))
            factor = 1.5 if ours[name].numel() >= FEW_NUMBERS else 2.5
            allowed = max(floor, 1.5 * theirs) if recorded is None else factor * theirs + floor
        if not error < allowed:
            wrong[name] = f"{error:.1e}, PyTorch {theirs:.1e}"
    assert not wrong, wrong


def _draw_both_ways(case: Recorded, stack: contextlib.ExitStack) -> None:
    """Both forwards draw their masks, from one seed: the recorded ones fit only the original's."""
    drops = {n: case.arrays.pop(n) for n in list(case.arrays) if n.startswith("drop.")}
    run = case.run

    def seeded(module: nn.Module | None = None) -> dict[str, torch.Tensor]:
        torch.manual_seed(5)
        return run(module)

    case.run = seeded  # type: ignore[method-assign]
    stack.callback(case.arrays.update, drops)
    maths.Drawn.masks = None
