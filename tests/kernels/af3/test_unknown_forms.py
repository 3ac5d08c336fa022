"""A module that differs from a known form in one thing stays as it is, and the report says why."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.kernels.af3 import boltz, openfold3, protenix
from torch import Tensor, nn

from evofeed.kernels import SwapReport, to_fused
from evofeed.kernels.fused_module import Fused

C = 16


class Gated(protenix.TriangleMultiplicationOutgoing):
    """Its forward takes one argument more."""

    def forward(self, z: Tensor, mask: Tensor | None = None, temperature: float = 1.0) -> Tensor:  # type: ignore[override]
        return super().forward(z, mask) * temperature


def _with(module: nn.Module, name: str, value: Any) -> nn.Module:
    """The module with one attribute, maybe of a module inside, put in or replaced."""
    above, _, last = name.rpartition(".")
    setattr(module.get_submodule(above), last, value)
    return module


def _pair_block() -> nn.Module:
    return openfold3.PairBlock(C, C, 8, 2, "swiglu", 2, 0.0, False, 1e9)


CASES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a bias of q": (
        lambda: _with(boltz.TriangleAttention(C, 8, 2), "mha.linear_q", nn.Linear(C, 16)),
        "linear_q has a bias",
    ),
    "a layer more": (
        lambda: _with(openfold3.TriangleAttention(C, 8, 2), "linear_more", nn.Linear(C, C)),
        "has linear_more",
    ),
    "a layer fewer": (
        lambda: _with(boltz.TriangleMultiplicationIncoming(C), "g_out", None), "",
    ),
    "another width": (
        lambda: _with(
            protenix.Transition(C, 4), "linear_no_bias_b", nn.Linear(C, 48, bias=False)
        ),
        r"value's layer's weight is \[48, 16\]",
    ),
    "a norm without offset": (
        lambda: _with(boltz.Transition(C, 32), "norm", nn.LayerNorm(C, bias=False)),
        "norm has no weight or bias",
    ),
    "an argument more": (lambda: Gated(C, C), "temperature"),
    "an order of its own": (
        lambda: _with(_pair_block(), "tri_mul_first", False), "in which order",
    ),
    "another ending node": (
        lambda: _with(_pair_block(), "tri_att_end", openfold3.TriangleAttentionEndingNode(C, 8, 2)),
        "around the nodes",
    ),
    "biases of a half": (
        lambda: _with(
            openfold3.FusedTriangleMultiplicationOutgoing(C, C), "linear_ab_g",
            nn.Linear(C, 2 * C, bias=False),
        ),
        "linear_ab_g has no bias",
    ),
    "a last gate without bias": (
        lambda: _with(
            openfold3.ConditionedTransitionBlock(C, C, 2), "linear_g", nn.Linear(C, C, bias=False)
        ),
        "last gate's layer has no bias",
    ),
    "a narrower factor": (
        lambda: _with(
            boltz.ConditionedTransitionBlock(C, C), "a_to_b", nn.Linear(C, C, bias=False)
        ),
        "not all",
    ),
    "an adaptive norm with a bias": (
        lambda: _with(
            protenix.AttentionPairBias(True, False, 2, C, C, C), "layernorm_a.layernorm_s",
            nn.LayerNorm(C),
        ),
        "its norm has norms with other parameters",
    ),
    "dropped paths": (
        lambda: _with(
            protenix.DiffusionTransformerBlock(C, C, C, 2), "drop_path", nn.Dropout(0.1)
        ),
        "drops paths",
    ),
    "a gate of its own": (
        lambda: _with(
            boltz.DiffusionTransformerLayer(2, C, C), "output_projection",
            nn.Sequential(nn.Linear(C, C), nn.Sigmoid()),
        ),
        "gates its attention",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_a_module_of_an_unknown_form_stays_as_it_is(name: str) -> None:
    make, reason = CASES[name]
    module, report = make(), SwapReport()
    forward = type(module).forward
    to_fused(module, report)
    assert not isinstance(module, Fused) and type(module).forward is forward
    if reason:
        assert re.search(reason, report.kept[""]), report.kept


def test_a_module_beside_an_unknown_one_is_fused() -> None:
    block = to_fused(_with(_pair_block(), "tri_mul_first", False))
    inside = {n for n, m in block.named_children() if isinstance(m, Fused)}
    wanted = {"tri_mul_out", "tri_mul_in", "tri_att_start", "tri_att_end", "pair_transition"}
    assert inside == wanted
    z = torch.randn(1, 5, 5, C)
    assert block(z, torch.ones(1, 5, 5)).shape == z.shape


class Turned(boltz.TriangleMultiplicationOutgoing):
    """Comes in, whatever its name says."""

    def forward(self, x: Tensor, mask: Tensor, use_kernels: bool = False) -> Tensor:
        return self._run(x, mask, False)


class Both(boltz.TriangleMultiplicationOutgoing):
    """Goes out and comes in."""

    def forward(self, x: Tensor, mask: Tensor, use_kernels: bool = False) -> Tensor:
        return self._run(x, mask, True) + self._run(x, mask, False)


class Still(boltz.TriangleMultiplicationIncoming):
    """Does neither."""

    def forward(self, x: Tensor, mask: Tensor, use_kernels: bool = False) -> Tensor:
        return x


class Broken(boltz.TriangleMultiplicationIncoming):
    """Wants more than a forward gives."""

    def forward(self, x: Tensor, mask: Tensor, use_kernels: bool = False) -> Tensor:
        raise RuntimeError("no GPU")


@pytest.mark.parametrize(
    "kind, outgoing",
    [
        (boltz.TriangleMultiplicationOutgoing, True),
        (boltz.TriangleMultiplicationIncoming, False),
        (Turned, False),
        (Both, None),
        (Still, None),
        (Broken, None),
    ],
)
def test_boltz_direction_is_what_its_forward_does_not_its_name(
    kind: type[nn.Module], outgoing: bool | None
) -> None:
    module, report, state = kind(C), SwapReport(), torch.get_rng_state()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    fused: Any = to_fused(module, report)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    if outgoing is None:
        assert not isinstance(fused, Fused) and "direction" in report.kept[""]
    else:
        assert fused.outgoing is outgoing and "" in report.swapped


def test_a_conditioned_transition_is_known_by_its_modules_not_its_name() -> None:
    renamed = type("Transition", (openfold3.ConditionedTransitionBlock,), {})
    expected: Any = to_fused(openfold3.ConditionedTransitionBlock(C, C, 2))
    module: Any = to_fused(renamed(C, C, 2))
    assert module.mixin is expected.mixin
