"""Which parameters a loss does not reach, which terms would, and where a pass stops being finite.

Bucketed data parallel training hangs, or silently trains nothing, when a loss
term is switched off and takes parameters with it (High-Flyer met exactly this).
Here gradients are averaged in one buffer, so nothing can hang; what is left is to
say so when a parameter never gets a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class Untouched(NamedTuple):
    """A parameter without a gradient, and the loss terms whose graph does lead to it, so that a
    weight above 0 would train it."""

    name: str
    terms: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.terms:
            return f"{self.name}: only {', '.join(self.terms)} would train it, and does not count"
        return f"{self.name}: no loss term leads to it"


@contextmanager
def watch_gradients(model: nn.Module) -> Iterator[set[str]]:
    """Names of trainable parameters that have had no gradient yet; shrinks while it is open.

    A gradient of exactly zero counts as one: the path is there.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    waiting = set(trained)

    def note(name: str) -> Callable[[Tensor | None], None]:
        return lambda grad: None if grad is None else waiting.discard(name)

    hooks = [p.register_hook(note(name)) for name, p in trained.items()]  # type: ignore[no-untyped-call]
    try:
        yield waiting
    finally:
        for hook in hooks:
            hook.remove()


def find_untouched(
    model: nn.Module,
    batch: dict[str, Tensor],
    terms: Callable[[Mapping[str, Any], dict[str, Tensor]], Mapping[str, Tensor]],
    counted: Mapping[str, float],
) -> list[Untouched]:
    """Parameters that no counted term reaches on this batch, each with the terms that would.

    Args:
        model: any model; its gradients are left alone.
        terms: live (undetached) loss terms from outputs and batch.
        counted: weight of each term in the loss; 0 or absent does not count.
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
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            floats = (x for x in tree_leaves(output) if isinstance(x, Tensor))
            if not all(bool(x.isfinite().all()) for x in floats):
                found.append(name)

        return hook

    hooks = [part.register_forward_hook(look(name)) for name, part in model.named_modules() if name]
    try:
        yield found
    finally:
        for one in hooks:
            one.remove()
