"""`to_fused` and `to_torch`: swap a model's modules for fused ones and back, in place.

A swapped module keeps its identity: only its class changes, to a subclass of
its own class with another `forward`. So parameters, hooks, tied modules,
optimizers, DDP wrappers and state_dict keys stay as they were, and
`isinstance` still holds. What a fused forward cannot take (a CPU tensor, an
odd dtype, an argument it does not know) it hands to the original forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn

from evofeed.kernels.drop_ins import layer_norm, lstm, multihead_attention
from evofeed.kernels.fused_module import Fused, Recordable, fuse, swapped_here
from evofeed.kernels.runtime.private_apis import no_modes
from evofeed.kernels.swap import (
    af3_attention,
    af3_averages,
    af3_blocks,
    af3_conditioned,
    af3_diffusion,
    af3_modules,
    af3_stacks,
    blocks,
    modules,
    pair_stacks,
    templates,
    trial,
)
from evofeed.kernels.swap.coverage import swapped_share

Model = TypeVar("Model", bound=nn.Module)

Rule = Callable[[nn.Module], "type[Fused] | str | None"]
"""Looks at a module and answers with its fused form, a reason to keep it, or None."""

RULES: list[Rule] = [
    modules.rule,
    af3_modules.rule,
    af3_averages.rule,
    af3_attention.rule,
    af3_conditioned.rule,
    af3_diffusion.rule,
    af3_blocks.rule,
    af3_stacks.rule,
    pair_stacks.rule,
    blocks.rule,
    templates.rule,
    lstm.rule,
    multihead_attention.rule,
    layer_norm.rule,
]
"""In this order; the first answer counts."""


class SwapReport:
    """What one walk changed.

    Attributes:
        swapped: qualified names of the modules that are fused now.
        kept: names of modules that look fusable but override `forward` or have
            an odd shape, with the reason.
        gpu_share: share of a step's GPU time in swapped modules, once measured.
    """

    def __init__(self) -> None:
        self.swapped: list[str] = []
        self.kept: dict[str, str] = {}
        self.gpu_share: float | None = None

    def measure(self, model: nn.Module, step: Callable[[], Any]) -> float:
        """Measures `gpu_share` on a step of the swapped model, see `coverage.swapped_share`."""
        self.gpu_share = swapped_share(model, step)
        return self.gpu_share

    def __repr__(self) -> str:
        share = "" if self.gpu_share is None else f", {self.gpu_share:.1%} of the GPU time"
        kept = f"{len(self.kept)} kept: {self.kept}" if self.kept else "none kept"
        return f"SwapReport({len(self.swapped)} swapped{share}, {kept})"


def _walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if not _frozen(module)]


def _frozen(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)  # its forward is compiled already


def to_fused(model: Model, report: SwapReport | None = None, *, cuda_graphs: bool = False) -> Model:
    """Swaps every module of `model` that has a fused form, in place, and returns it.

    Idempotent; reaches modules inside DDP or other wrappers, and a module that
    is used in several places once. state_dict keys do not change.

    Args:
        model: any module.
        report: filled with what was swapped and what was kept, if given.
        cuda_graphs: record each outermost fused module of AF2 at its first call with
            inputs of a shape, and replay it from then on (see `graphs/recorded.py`): for loops
            that call the model eagerly. Calls that cannot be recorded run as they would
            without, and one warning says why.
    """
    report = SwapReport() if report is None else report
    outer: list[str] = []  # prefixes of the modules that are recorded
    for _, module in _walk(model):
        if swapped_here(module):  # what is inside may have changed since: all is looked at anew
            object.__setattr__(module, "__class__", module.torch_class)
    for name, module in _walk(model):
        with _usual_defaults():
            answer = module.mixin if isinstance(module, Fused) else _answer(module)
        if isinstance(answer, str):
            report.kept[name] = answer
        elif answer is not None:
            record = cuda_graphs and issubclass(answer, Recordable)
            record = record and not any(name.startswith(prefix) for prefix in outer)
            if record:
                outer.append(f"{name}." if name else "")
            fuse(module, answer, record)
            report.swapped.append(name)
    return model


@contextlib.contextmanager
def _usual_defaults() -> Iterator[None]:
    """New tensors are float32 on the CPU, whatever the program around makes them."""
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        with no_modes(), torch.device("cpu"), torch.inference_mode(False):
            yield
    finally:
        torch.set_default_dtype(dtype)


def _answer(module: nn.Module) -> type[Fused] | str | None:
    try:
        answers = (rule(module) for rule in RULES)
        found = next((found for found in answers if found is not None), None)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        return f"has a part that no fused op knows: {error}"  # a form beyond what the rules expect
    if isinstance(found, type):
        return trial.trouble(module, found) or found
    return found


def to_torch(model: Model) -> Model:
    """Undoes `to_fused`, in place, and returns the model."""
    for _, module in _walk(model):
        if isinstance(module, Fused):
            object.__setattr__(module, "__class__", module.torch_class)
    return model
