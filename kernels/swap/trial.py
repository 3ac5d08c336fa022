"""Trial of a module on small random inputs on the CPU: does it compute what its fused form does?

A form is recognised by names, shapes and arguments, which do not tell what a forward computes: a
subclass may override it, a layer inside may be more than linear. Results and gradients are
compared, in evaluation and in training mode, with the same state of the random generator. A
forward that cannot be run, because it needs a GPU or compiled code, is accepted by its names.

Letters: N residues, S sequences, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import FusedForm, fuse, plain_forward, stub_weights
from evofeed.kernels.runtime.backend import plain_versions
from evofeed.kernels.runtime.private_apis import is_wrapper_subclass
from evofeed.kernels.swap.forms import Form, plain_class

N, S = 3, 2
NEAR = 2e-3
"""Largest relative error from rounding in float32, in a block of a dozen layers."""

Inputs = tuple[Tensor | None, ...]


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _mask(*shape: int) -> Tensor:
    """Ones except in the last column, such that every row has a valid key."""
    mask = torch.ones(shape)
    mask[..., -1] = 0.0
    mask[..., -1, :] = 1.0 if len(shape) > 2 else mask[..., -1, :]
    return mask


def inputs_of(module: nn.Module, form: Form) -> Inputs:
    """Positional inputs for the trial of a form."""
    sizes: Any = form.sizes(module)
    sizes = {**sizes, "N": N, "S": S}
    inputs: list[Tensor | None] = []
    for axes in form.inputs or ():
        create = _mask if axes.isupper() else _random
        inputs.append(create(1, *(sizes[axis] for axis in axes)) if axes else None)
    return tuple(inputs)


_verdicts: dict[Hashable, str | None] = {}


def mismatch(module: nn.Module, form: Form) -> str | None:
    """The reason not to swap a module that has the names and shapes of a form, or None."""
    unreadable = unreadable_weight(module)
    if unreadable or form.inputs is None:  # its own forward calls its fused parts
        return unreadable
    if "forward" in vars(module):
        return "its forward is patched on this module alone"
    if hooked := [name for name, inner in module.named_modules() if name and _has_hooks(inner)]:
        return f"{hooked[0]} has hooks or a patched forward, which a fused forward would not call"
    name = next((n for n, p in module.named_parameters() if not p.is_floating_point()), None)
    if name:
        return f"{name} is of type {str(module.get_parameter(name).dtype)[6:]}"
    key = (form, *_configuration(module))
    if key not in _verdicts:
        _verdicts[key] = _disagreement(module, form)
    return _verdicts[key]


def unreadable_weight(module: nn.Module) -> str | None:
    """The reason why kernels cannot read a weight of the module, or None."""
    name = next((n for n, p in module.named_parameters() if _wraps(p)), None)
    if name is None:
        return None
    return f"{name} is a {type(module.get_parameter(name)).__name__}, which kernels cannot read"


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        "forward" in vars(module)
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _wraps(parameter: nn.Parameter) -> bool:
    """True if other tensors hold its values; FSDP gathers its shards before a call."""
    kind = type(parameter).__name__
    return kind != "DTensor" and is_wrapper_subclass(parameter)


def _configuration(module: nn.Module) -> Iterable[Hashable]:
    """Classes, plain attributes and shapes of a module and of its submodules."""
    for name, inner in module.named_modules():
        plain = tuple(
            (key, value) for key, value in vars(inner).items()
            if key != "training" and isinstance(value, bool | int | float | str | None)
        )  # fmt: skip
        shapes = tuple((key, tuple(p.shape)) for key, p in inner.named_parameters(recurse=False))
        yield name, plain_class(inner), plain, shapes


def _disagreement(module: nn.Module, form: Form) -> str | None:
    """The difference between the module's own forward and the fused one on the CPU, or None."""
    inputs = inputs_of(module, form)
    cls = type(module)
    for training in (False, True):
        try:
            object.__setattr__(module, "__class__", plain_class(module))
            expected, changed = _results(module, inputs, training)
            if expected is None:
                adapted = None if training else _adapted_layer(module)
                if adapted:
                    return f"{adapted} is more than one layer, and its forward cannot be tried"
                if not training and (untried := form.untried(module)):
                    return untried
                continue
            fuse(module, FusedForm, form)
            with plain_versions():
                fused, _ = _results(module, inputs, training)
        finally:
            object.__setattr__(module, "__class__", cls)
        if fused is None or not _close(fused, expected):
            verb = "does something else in training" if training else "computes something else"
            return f"its forward {verb} than the fused one"
        if changed:
            return f"its forward sets {changed[0]}, which the fused one would not"
    return None


def _adapted_layer(module: nn.Module) -> str | None:
    """Name of a submodule with a weight and with children, such as an adapter, or None."""
    for name, inner in module.named_modules():
        if name and isinstance(getattr(inner, "weight", None), Tensor) and [*inner.children()]:
            return str(name)
    return None


def _results(
    module: nn.Module, inputs: Inputs, training: bool
) -> tuple[list[Tensor] | None, list[str]]:
    """Results of the module for copies of the inputs, with gradients; None if it cannot be run.

    Also the names of what it changed in itself.
    """
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        weights, names = stub_weights(module, _weight), dict(module.named_parameters())
        parameters = [t.requires_grad_() for name, t in weights.items() if name in names]
        copies = [t if t is None else t.clone().requires_grad_(_is_not_mask(t)) for t in inputs]
        arguments = [None if t is None else t.clone() for t in copies]
        returned, changed = plain_forward(module, weights, arguments, training)
        values: list[Any] = [*returned] if isinstance(returned, tuple | list) else [returned]
        results = [t.float() for t in values if isinstance(t, Tensor)]
        if not results:
            return None, changed
        leaves = [t for t in (*copies, *parameters) if t is not None and t.requires_grad]
        roots = [t for t in results if t.requires_grad]
        slopes = [torch.linspace(0.5, 1.5, t.numel()).view(t.shape) for t in roots]
        try:
            grads = torch.autograd.grad(roots, leaves, slopes, allow_unused=True) if roots else ()
        except Exception:  # third-party code
            return [t.detach() for t in results], changed
    missing = [None] * (len(leaves) - len(grads))
    return [t.detach() for t in results] + [
        torch.zeros_like(leaf) if g is None else g
        for g, leaf in zip((*grads, *missing), leaves, strict=True)
    ], changed


def _is_not_mask(t: Tensor) -> bool:
    """True unless all values are 0 or 1."""
    return not bool(((t == 0.0) | (t == 1.0)).all())


def _close(fused: list[Tensor], expected: list[Tensor]) -> bool:
    """True if all tensors agree; a gradient of mere rounding error counts as zero."""
    floor = 1e-4 * max(float(t.norm()) for t in expected)
    return len(fused) >= len(expected) and all(
        a.shape == b.shape and float((a - b).norm()) <= NEAR * max(float(b.norm()), floor)
        for a, b in zip(fused, expected, strict=False)
    )


def _weight(name: str, shape: torch.Size) -> Tensor:
    generator = torch.Generator().manual_seed(len(name) + sum(shape))
    if len(shape) < 2:
        return torch.randn(shape, generator=generator) * 0.3 + (0.0 if "bias" in name else 1.0)
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
