"""OpenFold3's attention in windows of atoms is recorded, whatever number of atoms a crop has."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from tests.conftest import own_packages
from torch import Tensor, nn

from evofeed.kernels import to_fused
from evofeed.kernels.graphs import recorded
from evofeed.kernels.runtime.backend import plain_versions
from evofeed.kernels.swap import tokens

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
QUERIES, KEYS, C, Z = 32, 128, 16, 8


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """Two blocks of its atom transformer."""
    monkeypatch.setattr(tokens, "ATOMS", 128)
    own_packages(monkeypatch, "openfold3")
    layers = importlib.import_module("openfold3.core.model.layers.diffusion_transformer")
    made: nn.Module = layers.DiffusionTransformer(
        c_a=C, c_s=C, c_z=Z, c_hidden=8, no_heads=2, no_blocks=2, n_transition=2,
        n_query=QUERIES, n_key=KEYS, inf=1e9, use_reentrant=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return made.train()


def run(module: nn.Module, atoms: int, present: int, device: str) -> list[Tensor]:
    """Result and gradients of three copies of so many atoms, those `present` not masked."""
    draw = torch.Generator().manual_seed(atoms)
    shapes = (1, 3, atoms, C), (1, 1, atoms, C), (1, 1, -(-atoms // QUERIES), QUERIES, KEYS, Z)
    leaves = [torch.randn(*s, generator=draw).to(device).requires_grad_() for s in shapes]
    mask = (torch.arange(atoms, device=device) < present).float()[None, None]
    out = module(leaves[0], s=leaves[1], z=leaves[2], mask=mask) * mask[..., None]
    grads = torch.autograd.grad(out.float().sin().sum(), [*leaves, *module.parameters()])
    return [out.detach(), *grads]


def recordings(module: nn.Module) -> list[int]:
    """Number of recordings of each block."""
    by_block = [recorded._states[block][True]._recordings for block in module.blocks]
    return [sum(map(len, recordings.values())) for recordings in by_block]


@pytest.mark.parametrize("keep", [None, "blocks"])
def test_crops_of_other_atoms_share_a_recording(
    module: nn.Module, keep: str | None, graphs: list[int]
) -> None:
    plain = copy.deepcopy(module)
    fused = to_fused(module, cuda_graphs=True, keep=keep)
    for atoms, present, count in ((100, 100, 1), (128, 90, 1), (77, 77, 1), (130, 129, 2)):
        with plain_versions():
            ours, theirs = (run(m, atoms, present, "cpu") for m in (fused, plain))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert recordings(fused) == [count, count]
    assert graphs


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("keep", ["blocks", "all"])
def test_recorded_they_are_the_same_bits_as_called(module: nn.Module, keep: str) -> None:
    """Gradients are of sums over windows, which the project's gather makes in any order."""
    module.cuda()
    called = to_fused(copy.deepcopy(module), keep=keep)
    fused = to_fused(module, cuda_graphs=True, keep=keep)
    for atoms in (1024, 896, 1024):  # multiples: padded, matrices would have other shapes
        with torch.autocast("cuda", torch.bfloat16):
            ours, theirs = (run(m, atoms, atoms - 50, "cuda") for m in (fused, called))
        assert torch.equal(ours[0], theirs[0])
        for a, b in zip(ours[1:], theirs[1:], strict=True):
            assert (a - b).norm() <= 1e-2 * b.norm()
    assert recordings(fused) == [2, 2]
