"""Every op gives the plain version's result where no kernel runs: same contract for all."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.kernels.ops.gated_attention.op import gated_attention
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights

OPS = Path(__file__).resolve().parents[3] / "kernels/ops"
NAMES = sorted(
    path.parent.name
    for path in OPS.glob("*/op.py")
    if path.parent.name not in ("optimizer", "layer_norm")  # PyTorch's own norm is its plain one
)


@pytest.mark.parametrize("op", NAMES)
def test_what_falls_back_is_passed_on_whole(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No option is lost on the way to the plain version: each parameter's very object arrives."""
    module = importlib.import_module(f"evofeed.kernels.ops.{op}.op")
    plain = importlib.import_module(f"evofeed.kernels.ops.{op}.reference")
    (name,) = (each for each in plain.__all__ if not inspect.isclass(getattr(plain, each)))
    signature = inspect.signature(getattr(plain, name))
    got: dict[str, Any] = {}

    def note(*args: Any, **options: Any) -> Tensor:
        got.update(signature.bind(*args, **options).arguments)
        return torch.zeros(1)

    monkeypatch.setattr(module.reference, name, note)
    for check in ("check_type", "check_shape", "check_one_device"):
        monkeypatch.setattr(module, check, lambda *_: None)
    monkeypatch.setattr(module, "launchable", lambda *_: False)
    if hasattr(module, "in_type_of"):
        monkeypatch.setattr(module, "in_type_of", lambda x, weights: weights)
    given = _arguments(getattr(module, name), op)
    getattr(module, name)(**given)
    assert set(got) == set(signature.parameters)
    for parameter, value in got.items():
        assert value is given[parameter] or torch.equal(value, given[parameter]), parameter


def _arguments(function: Any, op: str) -> dict[str, Any]:
    """A value for every parameter that is not its default."""
    ranks = dict.fromkeys(["x", "z", "m", "a", "s", "bias", "shares"], 4)
    ranks |= dict.fromkeys("qkv", 5) | dict.fromkeys(["mask", "drop_mask"], 3)
    ranks |= {"weight": 2, "norm_weight": 1, "norm_bias": 1} | ({"x": 5} if op == "softmax" else {})
    values: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "weights":
            kind = {
                "gated_attention": "AttentionWeights", "global_attention": "AttentionWeights",
                "transition": "TransitionWeights", "outer_product_mean": "OuterWeights",
                "triangle_multiplication": "TriangleWeights", "swiglu": "SwigluWeights",
                "weighted_average": "AverageWeights", "adaptive_norm": "AdaptiveWeights",
                "conditioned_transition": "ConditionedWeights",
                "conditioned_attention": "ConditionedAttentionWeights",
            }[op]  # fmt: skip
            cls: Any = getattr(importlib.import_module(f"evofeed.kernels.ops.{op}.op"), kind)
            values["weights"] = cls(**{name: torch.ones(2, 2) for name in cls.__slots__})
        elif parameter.name in ranks:
            values[parameter.name] = torch.ones((2,) * ranks[parameter.name])
        elif isinstance(parameter.default, bool):
            values[parameter.name] = not parameter.default
        else:
            values[parameter.name] = True if parameter.name == "outgoing" else 2
    return values


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_of_another_type_are_cast_and_the_result_has_the_inputs(
    dtype: torch.dtype,
) -> None:
    C, K = 24, 12  # no power of two: no kernel takes them
    torch.manual_seed(0)
    q = [torch.randn(K, C) for _ in range(4)]
    weights = AttentionWeights(
        torch.ones(C), torch.zeros(C), *q, torch.zeros(K), torch.randn(C, K), torch.zeros(C)
    )
    x = torch.randn(1, 2, 3, C, dtype=dtype)
    out = gated_attention(x, weights, 2)
    assert out.dtype is dtype and torch.isfinite(out).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert gated_attention(x.float(), weights, 2).dtype is torch.float32
