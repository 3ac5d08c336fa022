"""Whether a module computes what its fused form does, tried on small random numbers on the CPU.

A form is known by names, shapes and arguments. What a forward does with them is seen only where
it runs: a sub-class may override it, a layer inside may be more than linear. Results and gradients
are compared, in evaluation and in training mode, with the same state of the random generator. A
forward that cannot be run here, as it wants a GPU or its own compiled code, is taken at its names.

Letters: N residues, S sequences, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import FusedForm, called, fuse, stand_ins
from evofeed.kernels.runtime.backend import plain_versions
from evofeed.kernels.runtime.private_apis import is_wrapper_subclass
from evofeed.kernels.swap.forms import Form, plain_class

N, S = 3, 2
NEAR = 2e-3
"""Relative error that rounding may make of float32, in a block of a dozen layers."""

Inputs = tuple[Tensor | None, ...]


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _mask(*shape: int) -> Tensor:
    """Ones, but for the last column: no row is without a valid key."""
    mask = torch.ones(shape)
    mask[..., -1] = 0.0
    mask[..., -1, :] = 1.0 if len(shape) > 2 else mask[..., -1, :]
    return mask


def inputs_of(module: nn.Module, form: Form) -> Inputs:
    """What the forward of a form is tried with, by position."""
    sizes: Any = form.sizes(module)
    sizes = {**sizes, "N": N, "S": S}
    made: list[Tensor | None] = []
    for axes in form.inputs or ():
        filled = _mask if axes.isupper() else _random
        made.append(filled(1, *(sizes[axis] for axis in axes)) if axes else None)
    return tuple(made)


_known: dict[Hashable, str | None] = {}


def trouble(module: nn.Module, form: Form) -> str | None:
    """What speaks against the fused form of a module that has its names and shapes, or None."""
    wrapped = unreadable(module)
    if wrapped or form.inputs is None:  # whose own forward calls its fused parts
        return wrapped
    if "forward" in vars(module):
        return "its forward is patched on this module alone"
    hooked = [name for name, inner in module.named_modules() if name and _has_hooks(inner)]
    if hooked:
        return f"{hooked[0]} has hooks or a patched forward, which a fused forward would not call"
    odd = next((n for n, p in module.named_parameters() if not p.is_floating_point()), None)
    if odd:
        return f"{odd} is of type {str(module.get_parameter(odd).dtype)[6:]}"
    key = (form, *_configuration(module))
    if key not in _known:
        _known[key] = _disagreement(module, form)
    return _known[key]


def unreadable(module: nn.Module) -> str | None:
    """Why no kernel could read a weight of a module, or None."""
    odd = next((n for n, p in module.named_parameters() if _wraps(p)), None)
    if odd is None:
        return None
    return f"{odd} is a {type(module.get_parameter(odd)).__name__}, which kernels cannot read"


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        "forward" in vars(module)
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _wraps(parameter: nn.Parameter) -> bool:
    """Whether its numbers are in other tensors; FSDP's are together when a module is called."""
    kind = type(parameter).__name__
    return kind != "DTensor" and is_wrapper_subclass(parameter)


def _configuration(module: nn.Module) -> Iterable[Hashable]:
    """Classes, plain attributes and shapes of a module and of all inside it."""
    for name, inner in module.named_modules():
        plain = tuple(
            (key, value) for key, value in vars(inner).items()
            if key != "training" and isinstance(value, bool | int | float | str | None)
        )  # fmt: skip
        shapes = tuple((key, tuple(p.shape)) for key, p in inner.named_parameters(recurse=False))
        yield name, plain_class(inner), plain, shapes


def _disagreement(module: nn.Module, form: Form) -> str | None:
    """What its own forward does that the fused one does not, if that is seen on the CPU."""
    inputs = inputs_of(module, form)
    cls = type(module)
    for training in (False, True):
        try:
            object.__setattr__(module, "__class__", plain_class(module))
            theirs, changed = _results(module, inputs, training)
            if theirs is None:
                wrapped = None if training else _wrapped(module)
                if wrapped:
                    return f"{wrapped} is more than one layer, and its forward cannot be tried"
                if not training and (untried := form.untried(module)):
                    return untried
                continue
            fuse(module, FusedForm, form)
            with plain_versions():
                ours, _ = _results(module, inputs, training)
        finally:
            object.__setattr__(module, "__class__", cls)
        if ours is None or not _alike(ours, theirs):
            what = "does something else in training" if training else "computes something else"
            return f"its forward {what} than the fused one"
        if changed:
            return f"its forward sets {changed[0]}, which the fused one would not"
    return None


def _wrapped(module: nn.Module) -> str | None:
    """A module inside that shows a weight but has modules of its own, as adapters do."""
    for name, inner in module.named_modules():
        if name and isinstance(getattr(inner, "weight", None), Tensor) and [*inner.children()]:
            return str(name)
    return None


def _results(
    module: nn.Module, inputs: Inputs, training: bool
) -> tuple[list[Tensor] | None, list[str]]:
    """What it computes of copies of these, and gradients if it has some; None if it cannot be run.

    Also what it set in itself.
    """
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        weights, parameters = stand_ins(module, _weight), dict(module.named_parameters())
        of_weights = [t.requires_grad_() for name, t in weights.items() if name in parameters]
        given = [None if t is None else t.clone().requires_grad_(_varies(t)) for t in inputs]
        copies = [None if t is None else t.clone() for t in given]
        found, changed = called(module, weights, copies, training)
        several: list[Any] = [*found] if isinstance(found, tuple | list) else [found]
        made = [t.float() for t in several if isinstance(t, Tensor)]
        if not made:
            return None, changed
        leaves = [t for t in (*given, *of_weights) if t is not None and t.requires_grad]
        ends = [t for t in made if t.requires_grad]
        slopes = [torch.linspace(0.5, 1.5, t.numel()).view(t.shape) for t in ends]
        try:
            grads = torch.autograd.grad(ends, leaves, slopes, allow_unused=True) if ends else ()
        except Exception:  # another's code again
            return [t.detach() for t in made], changed
    missing = [None] * (len(leaves) - len(grads))
    return [t.detach() for t in made] + [
        torch.zeros_like(leaf) if g is None else g
        for g, leaf in zip((*grads, *missing), leaves, strict=True)
    ], changed


def _varies(t: Tensor) -> bool:
    """Whether it is no mask."""
    return not bool(((t == 0.0) | (t == 1.0)).all())


def _alike(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Whether all of theirs are near ours; a gradient that is only rounding counts as zero."""
    least = 1e-4 * max(float(t.norm()) for t in theirs)
    return len(ours) >= len(theirs) and all(
        a.shape == b.shape and float((a - b).norm()) <= NEAR * max(float(b.norm()), least)
        for a, b in zip(ours, theirs, strict=False)
    )


def _weight(name: str, shape: torch.Size) -> Tensor:
    drawn = torch.Generator().manual_seed(len(name) + sum(shape))
    if len(shape) < 2:
        return torch.randn(shape, generator=drawn) * 0.3 + (0.0 if "bias" in name else 1.0)
    return torch.randn(shape, generator=drawn) / math.sqrt(shape[-1])
