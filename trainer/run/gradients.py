"""Diagnosis of gradients: parameters without one, and the first output that is not finite.

Bucketed data parallel training hangs, or silently trains nothing, if a loss term
is switched off and some parameters have no gradient (as High-Flyer reported).
Here gradients are averaged in one buffer, so nothing can hang; parameters that
never get a gradient are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class Untouched(NamedTuple):
    """A parameter without a gradient, and the loss terms that depend on it: with a weight above 0
    they would train it."""

    name: str
    terms: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.terms:
            return f"{self.name}: only {', '.join(self.terms)} would train it, at a weight above 0"
        return f"{self.name}: no loss term depends on it"


@contextmanager
def watch_gradients(model: nn.Module) -> Iterator[set[str]]:
    """Names of trainable parameters that have had no gradient yet; shrinks while it is open.

    A gradient of exactly zero counts: the loss depends on the parameter.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    untouched = set(trained)

    def note(name: str) -> Callable[[Tensor | None], None]:
        return lambda grad: None if grad is None else untouched.discard(name)

    hooks = [p.register_hook(note(name)) for name, p in trained.items()]  # type: ignore[no-untyped-call]
    try:
        yield untouched
    finally:
        for hook in hooks:
            hook.remove()


def find_untouched(
    model: nn.Module,
    batch: dict[str, Tensor],
    terms: Callable[[Mapping[str, Any], dict[str, Tensor]], Mapping[str, Tensor]],
    counted: Mapping[str, float],
) -> list[Untouched]:
    """Parameters that get no gradient from the counted terms, each with the terms that give one.

    Args:
        model: any model; its gradients are not changed.
        terms: loss terms, not detached, from outputs and batch.
        counted: weight of each term in the loss; terms of weight 0 or absent do not count.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    reached: dict[str, set[str]] = {}
    for term, value in terms(model(batch), batch).items():
        grads: Sequence[Tensor | None] = (None,) * len(parameters)
        if value.requires_grad:
            grads = torch.autograd.grad(
                value.sum(), list(parameters.values()), retain_graph=True, allow_unused=True
            )
        pairs = zip(parameters, grads, strict=True)
        reached[term] = {name for name, grad in pairs if grad is not None}
    trained = set().union(*(names for term, names in reached.items() if counted.get(term, 0.0)))
    return [
        Untouched(name, tuple(term for term, names in reached.items() if name in names))
        for name in parameters
        if name not in trained
    ]


@contextmanager
def first_nonfinite(model: nn.Module) -> Iterator[list[str]]:
    """Names of modules in the order in which their outputs stop being finite; innermost first."""
    nonfinite: list[str] = []

    def check(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            tensors = (x for x in tree_leaves(output) if isinstance(x, Tensor))
            if not all(bool(x.isfinite().all()) for x in tensors):
                nonfinite.append(name)

        return hook

    hooks = [m.register_forward_hook(check(name)) for name, m in model.named_modules() if name]
    try:
        yield nonfinite
    finally:
        for hook in hooks:
            hook.remove()
