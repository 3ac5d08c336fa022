"""`to_fused` and `to_torch`: swap a model's modules for fused ones and back, in place.

A swapped module keeps its identity: only its class changes, to a subclass of
its own class with another `forward`. So parameters, hooks, tied modules,
optimizers, DDP wrappers and state_dict keys stay as they were, and
`isinstance` still holds. What a fused forward cannot take (a CPU tensor, an
odd dtype, an argument it does not know) it hands to the original forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from evofeed.kernels.graphs.recorded import run

__all__ = ["Fused", "Recordable", "SwapReport", "drop_in", "register", "to_fused", "to_torch"]

Model = TypeVar("Model", bound=nn.Module)
Module = TypeVar("Module", bound=nn.Module)


class Fused:
    """Marks a module whose class was swapped; `torch_class` is what it was before."""

    torch_class: type[nn.Module]
    mixin: type[Fused]
    recorded: bool = False

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The swapped class is made at run time: pickle and deepcopy rebuild it.
        return _rebuild, (self.torch_class, self.mixin, self.recorded), self.__getstate__()


class Recordable(Fused):
    """A fused module whose calls are tensors and constants: CUDA graphs of it can be recorded."""


class _Recorded(Fused):
    """Forward of a module with recordings: stands before the fused one."""

    recorded = True

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the original's."""
        return run(self, super().forward, args, kwargs)  # type: ignore[misc]


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
        from evofeed.kernels.swap.coverage import swapped_share

        self.gpu_share = swapped_share(model, step)
        return self.gpu_share

    def __repr__(self) -> str:
        share = "" if self.gpu_share is None else f", {self.gpu_share:.1%} of the GPU time"
        kept = f"{len(self.kept)} kept: {self.kept}" if self.kept else "none kept"
        return f"SwapReport({len(self.swapped)} swapped{share}, {kept})"


# Each rule looks at a module and answers with a mixin, a reason to keep it, or None.
Rule = Callable[[nn.Module], "type[Fused] | str | None"]
_rules: list[Rule] = []
_classes: dict[tuple[type[nn.Module], type[Fused], bool], type[nn.Module]] = {}


def register(rule: Rule) -> Rule:
    """Adds a rule; rules are asked in order and the first answer counts."""
    _rules.append(rule)
    return rule


def drop_in(cls: type[Module]) -> type[Module]:
    """Class decorator: `cls` is what its `torch_class` is swapped to, and can be used as it is."""
    _classes[cls.torch_class, cls.mixin, False] = cls  # type: ignore[attr-defined]
    return cls


def _fused_class(cls: type[nn.Module], mixin: type[Fused], recorded: bool) -> type[nn.Module]:
    key = (cls, mixin, recorded)
    if key not in _classes:
        names = {"torch_class": cls, "mixin": mixin, "__module__": cls.__module__}
        bases = (_Recorded, mixin, cls) if recorded else (mixin, cls)
        _classes[key] = type(f"Fused{cls.__name__}", bases, names)
    return _classes[key]


def _rebuild(cls: type[nn.Module], mixin: type[Fused], recorded: bool) -> nn.Module:
    fused = _fused_class(cls, mixin, recorded)
    return fused.__new__(fused)


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
    # Here and not above: they register their rules, and need this module for it.
    from evofeed.kernels.drop_ins import layer_norm, lstm, multihead_attention
    from evofeed.kernels.swap import blocks, modules, pair_stacks

    assert blocks and layer_norm and lstm and modules and multihead_attention and pair_stacks
    report = SwapReport() if report is None else report
    outer: list[str] = []  # prefixes of the modules that are recorded
    for name, module in _walk(model):
        answer = module.mixin if isinstance(module, Fused) else _answer(module)
        if isinstance(answer, str):
            report.kept[name] = answer
        elif answer is not None:
            record = cuda_graphs and issubclass(answer, Recordable)
            record = record and not any(name.startswith(prefix) for prefix in outer)
            if record:
                outer.append(f"{name}." if name else "")
            if not isinstance(module, Fused) or module.recorded != record:
                cls = getattr(module, "torch_class", type(module))
                object.__setattr__(module, "__class__", _fused_class(cls, answer, record))
            report.swapped.append(name)
    return model


def _answer(module: nn.Module) -> type[Fused] | str | None:
    answers = (rule(module) for rule in _rules)
    return next((found for found in answers if found is not None), None)


def to_torch(model: Model) -> Model:
    """Undoes `to_fused`, in place, and returns the model."""
    for _, module in _walk(model):
        if isinstance(module, Fused):
            object.__setattr__(module, "__class__", module.torch_class)
    return model
