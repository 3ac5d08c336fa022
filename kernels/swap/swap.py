"""`to_fused` and `to_torch`: swap a model's modules for fused ones and back, in place.

A swapped module keeps its identity: only its class changes, to a subclass of
its own class with another `forward`. So parameters, hooks, tied modules,
optimizers, DDP wrappers and state_dict keys do not change, and `isinstance`
still holds. For unsupported arguments (a CPU tensor, an unusual dtype, an
unknown option) a fused forward calls the original forward.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from evofeed.kernels.drop_ins import layer_norm, lstm, multihead_attention
from evofeed.kernels.fused_module import Fused, FusedForm, fuse, is_generated, unfuse
from evofeed.kernels.graphs.budget import Budget
from evofeed.kernels.runtime.private_apis import no_modes
from evofeed.kernels.swap import blocks, trial  # noqa: F401  # blocks: declares all forms
from evofeed.kernels.swap.coverage import swapped_share
from evofeed.kernels.swap.forms import Form, candidates

Model = TypeVar("Model", bound=nn.Module)

Rule = Callable[[nn.Module], "type[Fused] | str | None"]
"""Returns the fused class of a module, a reason to keep the module, or None."""

RULES: list[Rule] = [lstm.rule, multihead_attention.rule, layer_norm.rule]
"""Applied in this order to modules without a declared form; the first result counts."""


class SwapReport:
    """The modules that `to_fused` swapped and kept.

    Attributes:
        swapped: qualified names of the fused modules.
        kept: names of modules that resemble a fusable one but differ, with the reason.
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
        reasons = f"{len(self.kept)} kept: {self.kept}" if self.kept else "none kept"
        return f"SwapReport({len(self.swapped)} swapped{share}, {reasons})"


def _walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [  # the forward of a script is already compiled
        (name, module) for name, module in model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]  # fmt: skip


def to_fused(
    model: Model, report: SwapReport | None = None, *, cuda_graphs: bool = False,
    keep: float | Literal["all", "blocks"] | None = None,
) -> Model:  # fmt: skip
    """Swaps every module of `model` that has a fused form, in place, and returns it.

    Idempotent; includes modules inside DDP or other wrappers, and shared modules once. state_dict
    keys do not change.

    Args:
        model: any module.
        report: filled with the swapped and the kept modules, if given.
        cuda_graphs: record each outermost fused module at its first call with inputs of a
            shape (in evaluation mode, without gradients, at the ninth in a row), and replay it
            from then on (see `graphs/recorded.py`): for loops that call the model eagerly. Calls
            that cannot be recorded run eagerly, with one warning that gives the reason.
        keep: the part of a forward pass kept for its backward pass, in place of the checkpointing
            of the model's stacks of blocks: "all", only the inputs of "blocks", or a number of GB
            beyond which blocks keep only their inputs. None leaves this to the model.
    """
    report = SwapReport() if report is None else report
    budget = None if keep is None else Budget(_bytes(keep))
    outer: list[str] = []  # prefixes of the modules that are recorded, or have a budget
    for _, module in _walk(model):
        _restore_checkpoints(module)
        if is_generated(module):  # submodules may have changed since: checked again
            unfuse(module)
    wrapped = [
        (module, vars(module).pop("forward")) for _, module in _walk(model) if _is_wrapped(module)
    ]
    for name, module in _walk(model):
        with _default_settings():
            answer = module.mixin if isinstance(module, Fused) else _form_or_reason(module)
        if isinstance(answer, str):
            report.kept[name] = answer
        elif isinstance(answer, Form) and answer.denoises:
            if cuda_graphs:
                fuse(module, FusedForm, answer, recorded=True, model=model)
        elif answer is not None:
            form, mixin = (answer, FusedForm) if isinstance(answer, Form) else (None, answer)
            inside = any(name.startswith(prefix) for prefix in outer)
            record = cuda_graphs and (form or mixin).recordable and not inside
            limit = budget if form is not None and form.is_block and not inside else None
            if record or limit is not None:
                outer.append(f"{name}." if name else "")
            fuse(module, mixin, form, record, limit)
            report.swapped.append(name)
    for module, forward in wrapped:
        if getattr(module, "budget", None) is None:
            vars(module)["forward"] = _rewrap(module, forward)
        else:
            vars(module)["_checkpointed"] = {"forward": forward}
    if budget is not None:
        for _, module in _walk(model):
            _stop_checkpoints(module)
    return model


def _bytes(keep: float | str) -> float:
    if isinstance(keep, str) or keep < 0:
        if keep not in ("all", "blocks"):
            raise ValueError(f"keep is {keep!r}, not 'all', 'blocks' or a number of GB")
        return math.inf if keep == "all" else 0.0
    return 1e9 * keep


CHECKPOINTED = {"blocks_per_ckpt": None, "activation_checkpointing": False}
"""Checkpointing attributes of OpenFold, OpenFold3, Protenix and Boltz-2, and their off values."""


def _stop_checkpoints(stack: nn.Module) -> None:
    """Switches the checkpointing of a stack off if all its blocks have a budget."""
    lists = [inner for inner in stack.children() if isinstance(inner, nn.ModuleList)]
    inside = [block for children in lists for block in children]
    if inside and all(isinstance(b, Fused) and b.budget is not None for b in inside):
        names = CHECKPOINTED.keys() & vars(stack).keys()
        settings = {name: vars(stack)[name] for name in names}
        vars(stack).update({name: CHECKPOINTED[name] for name in names}, _checkpointed=settings)


def _is_wrapped(block: nn.Module) -> bool:
    """True for a block in an activation checkpoint of fairscale, as in Boltz-1."""
    forward = vars(block).get("forward")
    return isinstance(forward, functools.partial) and "fairscale" in forward.func.__module__


def _rewrap(block: nn.Module, forward: functools.partial[Any]) -> functools.partial[Any]:
    """The checkpoint around the block's current forward."""
    return functools.partial(forward.func, type(block).forward, *forward.args[1:])


def _restore_checkpoints(stack: nn.Module) -> None:
    vars(stack).update(vars(stack).pop("_checkpointed", {}))


@contextlib.contextmanager
def _default_settings() -> Iterator[None]:
    """Makes new tensors float32 on the CPU, whatever the program's defaults are."""
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        with no_modes(), torch.device("cpu"), torch.inference_mode(False):
            yield
    finally:
        torch.set_default_dtype(dtype)


def _form_or_reason(module: nn.Module) -> Form | type[Fused] | str | None:
    mismatches, differences = list[str](), list[str]()
    for form in candidates(module):
        try:
            mismatch = form.mismatch(module)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            mismatch = f"has a part that no fused op supports: {error}"  # a part unlike any form
        if mismatch is not None:
            mismatches.append(mismatch)
        elif (mismatch := trial.mismatch(module, form)) is None:
            return form
        else:
            differences.append(mismatch)
    if mismatches or differences:
        return "; ".join(dict.fromkeys(differences or mismatches))
    result = next((result for rule in RULES if (result := rule(module)) is not None), None)
    return trial.unreadable_weight(module) or result if isinstance(result, type) else result


def to_torch(model: Model) -> Model:
    """Undoes `to_fused`, in place, and returns the model."""
    for _, module in _walk(model):
        _restore_checkpoints(module)
        if isinstance(module, Fused):
            unfuse(module)
        if _is_wrapped(module):
            vars(module)["forward"] = _rewrap(module, vars(module)["forward"])
    return model
