"""Swapping the class of a module for one with a fused forward, and back.

A swapped module keeps its identity: only its class changes, to a subclass of its own
class with another `forward`.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evofeed.kernels.graphs.budget import Budget
from evofeed.kernels.graphs.recorded import denoises, run

Module = TypeVar("Module", bound=nn.Module)


class Fused:
    """Marks a module whose class was swapped; `torch_class` is what it was before.

    Attributes:
        form: the declaration of such modules (`swap.forms.Form`); None for a drop-in.
        recordable: True if a module without a form can be recorded as CUDA graphs.
        recorded: True if it is recorded.
        budget: memory that an outermost block may keep for its backward pass; None for all.
        parent_model: the model of a denoising step.
    """

    torch_class: type[nn.Module]
    mixin: type[Fused]
    form: Any = None
    recordable: bool = False
    recorded: bool = False
    budget: Budget | None = None
    parent_model: Any = None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The swapped class is made at run time: pickle and deepcopy rebuild it.
        outer = isinstance(self, _Outermost)
        key = (self.torch_class, self.mixin, self.form, self.recorded, outer)
        return _rebuild, key, self.__getstate__()


class FusedForm(Fused):
    """Forward of a module of a declared form."""

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        """Calls the fused forward, or the original one if that does not support the arguments."""
        result, form = None, self.form
        if form.run is not None:
            result = form.run(self, **form.options, **form.named(args, options))
        return super().forward(*args, **options) if result is None else result  # type: ignore[misc]


class _Outermost(Fused):
    """Forward of an outermost module that is recorded or has a budget, around the fused one."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the fused forward, from a recording or within the budget."""
        call = super().forward  # type: ignore[misc]
        if denoises(self) and _in_training(self):
            return call(*args, **kwargs)
        return run(self, call, args, kwargs, self.recorded, self.budget)


class _ModelRef:
    """Weak reference to the model of a denoising step; deepcopy of both refers to the copy."""

    def __init__(self, model: nn.Module | None) -> None:
        self._model: Any = (lambda: None) if model is None else weakref.ref(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> _ModelRef:
        return _ModelRef(memo.get(id(self._model())))

    def __reduce__(self) -> tuple[Any, ...]:
        return _ModelRef, (self._model(),)

    @property
    def training(self) -> bool:
        model = self._model()
        return model is not None and model.training


def _in_training(step: Any) -> bool:
    """True if the step or its model is in training mode, where models sample a few steps too."""
    return bool(step.training or step.parent_model.training)


_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_backward_pre_hooks",
    "_backward_hooks",
)  # fmt: skip
_classes: dict[tuple[type[nn.Module], type[Fused], Any, bool, bool], type[nn.Module]] = {}
_generated: set[type[nn.Module]] = set()


def drop_in(cls: type[Module]) -> type[Module]:
    """Class decorator for a class that replaces its `torch_class` and can be used directly."""
    _classes[cls.torch_class, cls.mixin, None, False, False] = cls  # type: ignore[attr-defined]
    return cls


def fuse(
    module: nn.Module, mixin: type[Fused], form: Any = None, recorded: bool = False,
    budget: Budget | None = None, model: nn.Module | None = None,
) -> None:  # fmt: skip
    """Gives `module` the forward of `mixin`, in place.

    Args:
        module: a plain module or a drop-in.
        mixin: the class with the fused forward.
        form: the declared form of the module, if it has one.
        recorded: record its calls as CUDA graphs.
        budget: memory that it may keep for its backward pass.
        model: the model, if the module is its denoising step.
    """
    outer = recorded or budget is not None
    if not isinstance(module, Fused) or outer:
        cls = getattr(module, "torch_class", type(module))
        fused = _fused_class(cls, mixin, form, recorded, outer)
        object.__setattr__(module, "__class__", fused)
    if budget is not None:
        vars(module)["budget"] = budget
    if model is not None:
        vars(module)["parent_model"] = _ModelRef(model)


def unfuse(module: Fused) -> None:
    """Restores the class that the module had before `fuse`."""
    for name in ("budget", "parent_model"):
        vars(module).pop(name, None)
    object.__setattr__(module, "__class__", module.torch_class)


def is_generated(module: nn.Module) -> TypeGuard[Any]:
    """True if `fuse` generated the module's class; False for drop-ins and their subclasses."""
    return isinstance(module, Fused) and type(module) in _generated


def _fused_class(
    cls: type[nn.Module], mixin: type[Fused], form: Any, recorded: bool, outer: bool
) -> type[nn.Module]:
    key = (cls, mixin, form, recorded, outer)
    if key not in _classes:
        names = {
            "torch_class": cls, "mixin": mixin, "form": form, "recorded": recorded,
            "__module__": cls.__module__,
        }  # fmt: skip
        bases = (_Outermost, mixin, cls) if outer else (mixin, cls)
        _classes[key] = type(f"Fused{cls.__name__}", bases, names)
        _generated.add(_classes[key])
    return _classes[key]


def _rebuild(cls: type[nn.Module], *key: Any) -> nn.Module:
    fused = _fused_class(cls, *key)
    return fused.__new__(fused)


def plain_forward(
    module: nn.Module, weights: dict[str, Tensor], inputs: Sequence[Tensor | None],
    training: bool = False,
) -> tuple[Any | None, list[str]]:  # fmt: skip
    """Runs the module's own forward on the CPU; the result is None if it cannot be run.

    Hooks are removed during the call, so that a wrapper (FSDP) does not mistake it for the first
    call. The module and the random generator are restored.

    Args:
        module: the module, with its weights on any device.
        weights: tensors in place of the weights, see `stub_weights`.
        inputs: positional arguments.
        training: the mode during the call.

    Returns:
        The result, and the names of attributes and weights that the forward changed.
    """
    modules = dict(module.named_modules())
    saved = {name: dict(vars(inner)) for name, inner in modules.items()}
    modes = {name: inner.training for name, inner in modules.items()}
    result, changed = None, list[str]()
    try:
        for inner in modules.values():
            inner.training = training
            inner.__dict__.update({name: OrderedDict() for name in _HOOKS})
        original = {name: dict(vars(inner)) for name, inner in modules.items()}
        versions = {name: weight._version for name, weight in weights.items()}
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
            torch.default_generator.manual_seed(0)
            result = functional_call(module, weights, tuple(inputs), tie_weights=False)
        changed = [
            f"{name}.{key}".strip(".") for name, inner in modules.items()
            for key, value in vars(inner).items() if original[name].get(key) is not value
        ]  # fmt: skip
        changed += [name for name, weight in weights.items() if weight._version > versions[name]]
    except Exception:  # third-party code may raise anything
        pass
    finally:
        for name, inner in modules.items():
            inner.__dict__.clear()
            inner.__dict__.update(saved[name])
            inner.training = modes[name]
    return result, changed


def stub_weights(
    module: nn.Module, create: Callable[[str, torch.Size], Tensor]
) -> dict[str, Tensor]:
    """Tensors from `create` in place of all weights: one for tied weights, one name per module.

    With two names for one module `functional_call` would not restore its weights.
    """
    by_id: dict[int, Tensor] = {}
    by_name: dict[str, Tensor] = {}
    for path, inner in module.named_modules():
        for key, tensor in (*inner._parameters.items(), *inner._buffers.items()):
            if tensor is not None:
                name = f"{path}.{key}" if path else key
                if id(tensor) not in by_id:
                    by_id[id(tensor)] = create(name, tensor.shape)
                by_name[name] = by_id[id(tensor)]
    return by_name
