"""A module whose class was swapped for one with a fused forward, and back.

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

from evofeed.kernels.graphs.keeping import Budget
from evofeed.kernels.graphs.recorded import denoises, run

Module = TypeVar("Module", bound=nn.Module)


class Fused:
    """Marks a module whose class was swapped; `torch_class` is what it was before.

    Attributes:
        form: what was declared of such modules (`swap.forms.Form`); a drop-in has none.
        recordable: whether CUDA graphs of one without a form can be recorded.
        recorded: whether they are.
        budget: what an outermost block keeps for its backward pass; None is all of it.
        of_model: that a step of sampling is of.
    """

    torch_class: type[nn.Module]
    mixin: type[Fused]
    form: Any = None
    recordable: bool = False
    recorded: bool = False
    budget: Budget | None = None
    of_model: Any = None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The swapped class is made at run time: pickle and deepcopy rebuild it.
        made = (self.torch_class, self.mixin, self.form, self.recorded, isinstance(self, _Outer))
        return _rebuild, made, self.__getstate__()


class FusedForm(Fused):
    """Forward of a module of a declared form."""

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        """As the original's, which is called where the fused one does not take the arguments."""
        made, form = None, self.form
        if form.run is not None:
            made = form.run(self, **form.options, **form.named(args, options))
        return super().forward(*args, **options) if made is None else made  # type: ignore[misc]


class _Outer(Fused):
    """Forward of an outermost module that is recorded or has a budget: called before the fused."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the original's."""
        call = super().forward  # type: ignore[misc]
        if denoises(self) and _trains(self):
            return call(*args, **kwargs)
        return run(self, call, args, kwargs, self.recorded, self.budget)


class _Model:
    """The model that a step of sampling is of; in a copy of both, the copy."""

    def __init__(self, model: nn.Module | None) -> None:
        self._model: Any = (lambda: None) if model is None else weakref.ref(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Model:
        return _Model(memo.get(id(self._model())))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Model, (self._model(),)

    @property
    def training(self) -> bool:
        model = self._model()
        return model is not None and model.training


def _trains(step: Any) -> bool:
    """Whether it, or the model it is of, is in training mode: that may sample a few steps too."""
    return bool(step.training or step.of_model.training)


_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_backward_pre_hooks",
    "_backward_hooks",
)  # fmt: skip
_classes: dict[tuple[type[nn.Module], type[Fused], Any, bool, bool], type[nn.Module]] = {}
_made: set[type[nn.Module]] = set()


def drop_in(cls: type[Module]) -> type[Module]:
    """Class decorator: `cls` is what its `torch_class` is swapped to, and can be used as it is."""
    _classes[cls.torch_class, cls.mixin, None, False, False] = cls  # type: ignore[attr-defined]
    return cls


def fuse(
    module: nn.Module, mixin: type[Fused], form: Any = None, recorded: bool = False,
    budget: Budget | None = None, model: nn.Module | None = None,
) -> None:  # fmt: skip
    """Gives `module` the forward of `mixin`, in place.

    Args:
        module: as it is, or a drop-in.
        mixin: has the fused forward.
        form: of a module of a declared form.
        recorded: whether its calls are recorded as CUDA graphs.
        budget: what it may keep for its backward pass.
        model: that it is a step of sampling of.
    """
    outer = recorded or budget is not None
    if not isinstance(module, Fused) or outer:
        cls = getattr(module, "torch_class", type(module))
        made = _fused_class(cls, mixin, form, recorded, outer)
        object.__setattr__(module, "__class__", made)
    if budget is not None:
        vars(module)["budget"] = budget
    if model is not None:
        vars(module)["of_model"] = _Model(model)


def unfuse(module: Fused) -> None:
    """Gives it the class that it had."""
    for name in ("budget", "of_model"):
        vars(module).pop(name, None)
    object.__setattr__(module, "__class__", module.torch_class)


def swapped_here(module: nn.Module) -> TypeGuard[Any]:
    """Whether its class is one that `fuse` made: no drop-in, nor a sub-class of one."""
    return isinstance(module, Fused) and type(module) in _made


def _fused_class(
    cls: type[nn.Module], mixin: type[Fused], form: Any, recorded: bool, outer: bool
) -> type[nn.Module]:
    key = (cls, mixin, form, recorded, outer)
    if key not in _classes:
        names = {
            "torch_class": cls, "mixin": mixin, "form": form, "recorded": recorded,
            "__module__": cls.__module__,
        }  # fmt: skip
        bases = (_Outer, mixin, cls) if outer else (mixin, cls)
        _classes[key] = type(f"Fused{cls.__name__}", bases, names)
        _made.add(_classes[key])
    return _classes[key]


def _rebuild(cls: type[nn.Module], *how: Any) -> nn.Module:
    fused = _fused_class(cls, *how)
    return fused.__new__(fused)


def called(
    module: nn.Module, weights: dict[str, Tensor], inputs: Sequence[Tensor | None],
    training: bool = False,
) -> tuple[Any | None, list[str]]:  # fmt: skip
    """The module's own forward of `inputs` on the CPU, or None if it cannot be run.

    It is without its hooks meanwhile, so that what wraps it (FSDP) does not take this for its first
    call; neither the module nor the random generator changes.

    Args:
        module: as it is, wherever its weights are.
        weights: what stands in for them, see `stand_ins`.
        inputs: by position.
        training: the mode that it is in meanwhile.

    Returns:
        The result, and the names of what it set or changed.
    """
    modules = dict(module.named_modules())
    before = {name: dict(vars(inner)) for name, inner in modules.items()}
    modes = {name: inner.training for name, inner in modules.items()}
    result, changed = None, list[str]()
    try:
        for inner in modules.values():
            inner.training = training
            inner.__dict__.update({name: OrderedDict() for name in _HOOKS})
        during = {name: dict(vars(inner)) for name, inner in modules.items()}
        versions = {name: weight._version for name, weight in weights.items()}
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
            torch.default_generator.manual_seed(0)
            result = functional_call(module, weights, tuple(inputs), tie_weights=False)
        changed = [
            f"{name}.{key}".strip(".") for name, inner in modules.items()
            for key, value in vars(inner).items() if during[name].get(key) is not value
        ]  # fmt: skip
        changed += [name for name, weight in weights.items() if weight._version > versions[name]]
    except Exception:  # another's code, which may need more than a forward does
        pass
    finally:
        for name, inner in modules.items():
            inner.__dict__.clear()
            inner.__dict__.update(before[name])
            inner.training = modes[name]
    return result, changed


def stand_ins(module: nn.Module, filled: Callable[[str, torch.Size], Tensor]) -> dict[str, Tensor]:
    """What `filled` gives for the weights: one tensor for those that are tied, one name a module.

    By two names of one module `functional_call` would put back what stood in.
    """
    made: dict[int, Tensor] = {}
    found: dict[str, Tensor] = {}
    for path, inner in module.named_modules():
        for last, tensor in (*inner._parameters.items(), *inner._buffers.items()):
            if tensor is not None:
                name = f"{path}.{last}" if path else last
                if id(tensor) not in made:
                    made[id(tensor)] = filled(name, tensor.shape)
                found[name] = made[id(tensor)]
    return found
