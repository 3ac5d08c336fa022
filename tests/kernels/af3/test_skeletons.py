"""`to_fused` on the module trees of whole models: what it takes, and that it takes all of that."""

from __future__ import annotations

import collections
import gzip
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kernels.af3.recorded import FOLDER
from torch import nn

from evofeed.kernels import SwapReport, to_fused, to_torch
from evofeed.kernels.fused_module import Fused
from evofeed.kernels.swap.forms import form_of

TREES = sorted((FOLDER / "trees").glob("*.json.gz"))
TAKEN = {
    "TriangleAttention", "TriangleAttentionEndingNode", "TriangleMultiplicationOutgoing",
    "TriangleMultiplicationIncoming", "OuterProductMean", "Transition", "SwiGLUTransition",
    "PairformerLayer", "PairformerNoSeqLayer", "PairBlock", "TemplatePairBlock", "PairformerBlock",
    "PairWeightedAveraging", "MSAPairWeightedAveraging", "PairFormerBlock", "MSAModuleBlock",
    "MSALayer", "AdaLN", "AdaptiveLayerNorm", "ConditionedTransitionBlock",
    "DiffusionTransformerLayer",
}  # fmt: skip
"""Classes of the three projects that have a fused form."""
SOME = {"LayerNorm", "AttentionPairBias", "DiffusionTransformerBlock", "DiffusionTransformer"}
"""Those of which some have: norms with weight and bias, attention that is not in windows, blocks
and stacks of OpenFold3."""

PLAIN: dict[str, type[nn.Module]] = {
    "torch.nn.modules.container.Sequential": nn.Sequential,
    "torch.nn.modules.linear.Identity": nn.Identity,
}


def _skeleton(tree: dict[str, Any]) -> nn.Module:
    """The model without weights: an empty class for each, with its attributes and arguments."""
    classes: dict[str, type[nn.Module]] = {}

    def make(entry: dict[str, Any]) -> nn.Module:
        path, attributes = entry["cls"], entry.get("attrs") or {}
        shapes = entry.get("params") or {}
        name = path.rpartition(".")[2]
        if path == "torch.nn.modules.normalization.LayerNorm":
            made: nn.Module = nn.LayerNorm(
                shapes["weight"] if shapes.get("weight") else 1, device="meta",
                bias=shapes.get("bias") is not None,
                elementwise_affine=shapes.get("weight") is not None,
            )  # fmt: skip
            return made
        if path in PLAIN:
            return PLAIN[path]()
        if path not in classes:

            def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
                raise NotImplementedError

            taken = tree["classes"].get(path, {}).get("forward", ["self"])
            forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
                [
                    inspect.Parameter(
                        n.lstrip("*"),
                        inspect.Parameter.VAR_KEYWORD
                        if n.startswith("**") else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    )
                    for n in taken
                ]
            )  # fmt: skip
            classes[path] = type(name, (nn.Module,), {"forward": forward})
        made = classes[path]()
        for key, value in attributes.items():
            setattr(made, key, value)
        for key in entry.get("none") or []:
            setattr(made, key, None)
        for key, shape in shapes.items():
            parameter = None if shape is None else nn.Parameter(torch.empty(shape, device="meta"))
            made.register_parameter(key, parameter)
        return made

    entries = sorted(
        tree["modules"], key=lambda entry: entry["name"].count(".") + bool(entry["name"])
    )
    modules = {"": make(entries[0])}
    for entry in entries[1:]:
        above, _, name = entry["name"].rpartition(".")
        modules[entry["name"]] = make(entry)
        modules[above].add_module(name, modules[entry["name"]])
    for name, same in tree["tied"].items():  # a module in two places is listed once
        (name, _, last), (same, _, _) = name.rpartition("."), same.rpartition(".")
        above, _, own = name.rpartition(".")
        if name not in modules and same in modules and above in modules and last == "weight":
            modules[above].add_module(own, modules[same])
    return modules[""]


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.name.split(".")[0])
def test_every_module_of_a_known_form_is_fused(path: Path) -> None:
    tree = json.loads(gzip.decompress(path.read_bytes()))
    model = _skeleton(tree)
    kinds = {name: type(module) for name, module in model.named_modules()}
    forms = [form_of(module) for module in model.modules()]
    assert sum(form is not None and form.denoises for form in forms) == 1  # of a step of sampling
    expected = {n: kind for n, kind in kinds.items() if kind.__name__ in TAKEN}
    report = SwapReport()
    to_fused(model, report)
    swapped = {n for n, module in model.named_modules() if isinstance(module, Fused)}
    assert set(report.swapped) == swapped
    left = collections.Counter(kind.__name__ for n, kind in expected.items() if n not in swapped)
    assert not left, {n: report.kept.get(n) for n in expected if n not in swapped}
    assert len(expected) > 300
    more = {kinds[n].__name__ for n in swapped} - TAKEN
    assert more <= SOME
    assert "AttentionPairBias" in more
    whole = {"DiffusionTransformerBlock", "DiffusionTransformerLayer"}
    assert any(kinds[n].__name__ in whole for n in swapped)
    assert {type(m) for m in to_torch(model).modules()} == set(kinds.values())
