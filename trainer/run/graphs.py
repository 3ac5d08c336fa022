"""CUDA graphs of forward and backward, recorded once per shape of a sample and replayed.

The full model launches tens of thousands of kernels a step, most of them shorter
than the CPU needs to launch one; a replay launches all of them at once. Shapes are
fixed by the crop; the number of recycles is not. So there are three recordings: one
pass without gradient, replayed as often as a batch asks for, then the last pass and
its backward. A model without separate passes is recorded as one graph, once for
every number of recycles.

Random numbers stay right: a replay takes seed and offset from the generator, which
is seeded before every sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from evofeed.kernels import compiled_ahead, record_graph

_MOST_RECORDINGS = 8  # whole chains have any length: those run eagerly from here on
_LOG = logging.getLogger(__name__)

State = tuple[Tensor, ...]
"""Recycled tensors, from one pass to the next."""
Forward = Callable[[dict[str, Tensor], "State | None"], tuple[Tensor, Tensor]]
"""Loss and reported numbers of a batch and the state of earlier passes."""
Pass = Callable[[dict[str, Tensor], "State | None"], State]
"""One pass without gradient over the first recycle of a batch."""
Backward = Callable[[Tensor], None]
"""Adds a loss's gradients to the parameters' `.grad`."""


@runtime_checkable
class Recycling(Protocol):
    """A model whose passes can be run one by one."""

    per_recycle: frozenset[str]
    """Batch entries with a leading axis of recycles."""

    def recycle(
        self, batch: Mapping[str, Tensor], previous: Any | None, cycle: int = 0
    ) -> tuple[Tensor, ...]:
        """One pass without gradient; None and zeros for `previous` mean the same."""


class Replay:
    """Runs forward and backward of batches, through graphs from the second time on.

    The first batch of each kind runs eagerly, so that kernels get compiled and
    tuned; the second is recorded. All recordings share one memory pool: they run
    one after the other, and nothing but loss and numbers outlives a replay. Where
    recording fails, everything runs eagerly from then on and the log says why.

    Args:
        forward: see `Forward`; must not wait for the device.
        one_pass: see `Pass`; None records whole batches.
        per_recycle: batch entries with a leading axis of recycles.
        backward: see `Backward`.
    """

    def __init__(
        self,
        forward: Forward,
        one_pass: Pass | None = None,
        per_recycle: frozenset[str] = frozenset(),
        backward: Backward = torch.autograd.backward,
    ) -> None:
        self.forward, self.one_pass, self.backward = forward, one_pass, backward
        self.per_recycle = per_recycle if one_pass else frozenset()
        self._seen: set[tuple[torch.Size, ...]] = set()
        self._recorded: dict[tuple[torch.Size, ...], _Recording] = {}
        self._pool: Any = None
        self.why_not = ""
        """The reason if nothing is recorded any more."""

    def compile_ahead(self, batch: dict[str, Tensor], device: torch.device) -> None:
        """Compiles all kernels of a step at once, in threads; leaves meaningless gradients."""
        with compiled_ahead(device):
            try:
                if self.one_pass:
                    self.one_pass(batch, None)
                loss, _ = self.forward(batch, None)
                self.backward(loss)
            except RuntimeError as error:  # what was not computed can be refused by what follows
                _LOG.info("not all kernels were compiled ahead: %s", str(error).splitlines()[0])

    def __call__(self, batch: dict[str, Tensor], between: Callable[[], None]) -> Tensor:
        """Adds the batch's gradients to `.grad`; `between` is called before the backward pass."""
        kind = tuple(
            value.shape[1:] if name in self.per_recycle else value.shape
            for name, value in batch.items()
        )
        if kind in self._seen and kind not in self._recorded:
            self._record(kind, batch)
        self._seen.add(kind)
        if kind in self._recorded:
            return self._recorded[kind](batch, between)
        loss, numbers = self.forward(batch, None)
        between()
        self.backward(loss)
        return numbers

    def _record(self, kind: tuple[torch.Size, ...], batch: dict[str, Tensor]) -> None:
        if self.why_not or len(self._recorded) >= _MOST_RECORDINGS:
            return
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            self._recorded[kind] = _Recording(self, batch, self._pool)
        except RuntimeError as error:  # an operator that waits or allocates, or memory is short
            self.why_not = str(error).splitlines()[0]
            self._recorded.clear()
            _LOG.warning("no CUDA graphs, steps run eagerly: %s", self.why_not)


class _Recording:
    """Recorded passes of a step, with a static copy of a batch of one recycle."""

    def __init__(self, step: Replay, batch: Mapping[str, Tensor], pool: Any) -> None:
        self._per_recycle = step.per_recycle
        self._batch = {
            name: (value[:1] if name in step.per_recycle else value).clone()
            for name, value in batch.items()
        }
        self._state: State = ()
        device = torch.device("cuda", torch.cuda.current_device())
        if one_pass := step.one_pass:
            # Run once: to see what it gives, and to compile what only passes without gradient use.
            with torch.random.fork_rng([device.index]):
                self._state = tuple(map(torch.zeros_like, one_pass(self._batch, None)))

            def pass_on() -> None:
                new_state = one_pass(self._batch, self._state)
                for static, new in zip(self._state, new_state, strict=True):
                    static.copy_(new)

            _, self._replay_pass = record_graph(device, pool, pass_on)
        outputs, self._replay_forward = record_graph(
            device, pool, lambda: step.forward(self._batch, self._state or None)
        )
        self._numbers: Tensor
        loss, self._numbers = outputs
        _, self._replay_backward = record_graph(device, pool, lambda: step.backward(loss))

    def __call__(self, batch: dict[str, Tensor], between: Callable[[], None]) -> Tensor:
        constant = self._batch.keys() - self._per_recycle
        _copy_all([(self._batch[name], batch[name]) for name in sorted(constant)])
        for value in self._state:
            value.zero_()
        last = self._load_recycle(batch, 0)
        for cycle in range(last):
            self._replay_pass()
            self._load_recycle(batch, cycle + 1)
        self._replay_forward()
        between()
        self._replay_backward()
        return self._numbers.clone()

    def _load_recycle(self, batch: Mapping[str, Tensor], cycle: int) -> int:
        """Copies the features of one recycle; returns the number of the last recycle."""
        names = sorted(self._per_recycle & batch.keys())
        _copy_all([(self._batch[name][0], batch[name][cycle]) for name in names])
        return batch[names[0]].shape[0] - 1 if names else 0


def _copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copies each second tensor into its first: one launch for many of one dtype."""
    by_type: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for to, source in pairs:
        by_type.setdefault(to.dtype, []).append((to, source))
    for group in by_type.values():
        torch._foreach_copy_([to for to, _ in group], [source for _, source in group], True)
