"""The projects' own classes, swapped and equal to themselves.

`make projects` installs them, as CI does: in a folder of their own, because one of them has a
package called `tests`.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch
from benchmarks import af3_trunk_models as trunks
from tests.conftest import own_packages
from torch import Tensor, nn

from evofeed.kernels import SwapReport, to_fused
from evofeed.kernels.fused_module import Fused
from evofeed.kernels.swap.forms import form_of

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
N = 5
NEAR = 2e-5  # in float32: some of their classes take no float64


@pytest.fixture(autouse=True)
def projects(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found while these tests run, and SciPy, which takes seconds, draws no weights."""
    own_packages(monkeypatch, "scipy.stats")
    stats = importlib.import_module("scipy.stats")
    monkeypatch.setattr(stats.truncnorm, "rvs", lambda size, **_: np.zeros(size))


def _compare(
    module: nn.Module, run: Callable[[nn.Module], list[Tensor]], device: str
) -> SwapReport:
    """Results and gradients of the swapped module are the module's own; what was swapped."""
    report = SwapReport()
    theirs = run(copy.deepcopy(module).to(device))
    ours = run(to_fused(module, report).to(device))
    largest = max(float(t.norm()) for t in theirs)
    errors = [
        float((a - b).norm()) / max(float(b.norm()), 1e-3 * largest)  # some vanish: a row's shift
        for a, b in zip(ours, theirs, strict=True)
    ]
    assert 0.0 < max(errors) < NEAR
    return report


def _results(out: tuple[Tensor, ...], leaves: list[Tensor]) -> list[Tensor]:
    loss = sum(((t.sin() * (k + 1)).sum() for k, t in enumerate(out)), torch.zeros(()).to(out[0]))
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [t.detach() for t in (*out, *(g for g in grads if g is not None))]


@pytest.mark.parametrize("project", sorted(trunks.BLOCKS))
@pytest.mark.slow
def test_a_trunk(project: str, device: str) -> None:
    """With the project's own dropout: fused it draws the same masks, and none besides."""
    pytest.importorskip(project.rstrip("2"), reason="make projects")
    module = trunks.build(project, blocks=1, msa_blocks=1, dropout=True).train()

    def run(module: nn.Module) -> list[Tensor]:
        x = trunks.make_inputs(project, N, 4, device)
        leaves = [x.s.requires_grad_(), x.z.requires_grad_()]
        torch.manual_seed(5)
        out = module(x)
        drawn = torch.rand(4, device=device)  # the next numbers of the generator
        return [*_results(out, [*leaves, *module.parameters()]), drawn]

    assert not _compare(module, run, device).kept


@pytest.mark.parametrize("copies", [True, False])
def test_openfold3s_diffusion_transformer(copies: bool, device: str) -> None:
    pytest.importorskip("openfold3", reason="make projects")
    layers = importlib.import_module("openfold3.core.model.layers.diffusion_transformer")
    module = layers.DiffusionTransformer(
        c_a=32, c_s=40, c_z=16, c_hidden=16, no_heads=2, no_blocks=2, n_transition=2,
        n_query=None, n_key=None, inf=1e9,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    lead = (1, 3) if copies else (1,)
    a, s = torch.randn(*lead, N, 32), torch.randn(*lead, N, 40)
    z = torch.randn(*([1] * len(lead)), N, N, 16)
    mask = torch.ones([1] * len(lead) + [N])
    mask[..., -2:] = 0.0

    def run(module: nn.Module) -> list[Tensor]:
        leaves = [t.detach().to(device).requires_grad_() for t in (a, s, z)]
        out = module(*leaves, mask=mask.to(device))
        return _results((out,), [*leaves, *module.parameters()])

    report = _compare(module, run, device)
    assert not report.kept and all(isinstance(block, Fused) for block in module.blocks)


@pytest.mark.parametrize("name", ["diffusion", "diffusionv2"])
def test_boltzs_module_of_a_denoising_step_is_recorded_whole(name: str) -> None:
    """Of Boltz-1, which no recorded tree is of, and of Boltz-2."""
    sizes = {"token_s": 16, "token_z": 8, "atom_s": 16, "atom_z": 8, "atom_feature_dim": 389}
    sizes |= {"atoms_per_window_queries": 32, "atoms_per_window_keys": 128}
    module = pytest.importorskip(f"boltz.model.modules.{name}", reason="make projects")
    kinds = inspect.signature(module.DiffusionModule.__init__).parameters
    with torch.device("meta"):
        made = module.DiffusionModule(**{k: v for k, v in sizes.items() if k in kinds})
    form = form_of(made)
    assert form is not None and form.denoises
