"""Functions of tensors without their Python: what a call did is repeated as straight-line code.

An operator's forward or backward pass is a few launches and products, and ten times as much Python
that decides on tiles, strides and types. All of that depends on the shapes, types and constants of
the call alone. So the call of a kind behind its first `OFTEN` is traced (`tracing.py`), and from
then on a function whose source is generated from the trace and executed (`written.py`) takes its
place: the same calls of PyTorch, the same launches, the same arguments and bits. Tensors
that only kernels see are parts of one piece of memory, each as long as it is needed, and in a
launch no more than an address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.runtime import launching, one_pass
from evofeed.kernels.runtime.backend import autocast_type
from evofeed.kernels.runtime.private_apis import tf32_allowed
from evofeed.kernels.runtime.tracing import traced
from evofeed.kernels.runtime.written import Parts, written

OFTEN = 8  # calls of a kind before one is traced, which takes what a dozen calls save
MOST = 512  # kinds of calls kept for a function: sizes are part of them

Results = Sequence["Tensor | None"]
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


class Prepared:
    """`compute(tensors, *constants)`, which must depend on nothing else, and what was traced of it.

    Args:
        compute: gives tensors or None; draws no numbers, and enters no context but those that
            change nothing for PyTorch.
        joins: whether results but the first may be parts of one more, the last.
    """

    def __init__(self, compute: Callable[..., Results], joins: bool = False) -> None:
        self._compute, self._joins = compute, joins
        self._found: dict[Any, Any] = {}  # a written function with its parts, or how often seen
        _known.append(self._found)

    def __call__(
        self, kind: Any, tensors: Sequence[Tensor | None], *constants: Any
    ) -> tuple[Results, Parts]:
        """The results, and what is part of the last of them.

        Args:
            kind: what `kind_of` says of the call.
            tensors, constants: as `compute` takes them.
        """
        found = self._found.get(kind, 0)
        if type(found) is tuple:
            made = found[0](*tensors)
            if made is not None:
                return made, found[1]
        elif kind is None or found < 0:
            pass
        elif found < OFTEN:
            if len(self._found) >= MOST:
                self._found.clear()
            self._found[kind] = found + 1
        elif _traceable(tensors):
            given = _different(tensors)
            with traced(given) as trace:
                made = self._compute(given, *constants)
            if kind in self._found:  # else `forget` was called meanwhile
                self._found[kind] = written(trace, made, self._joins)
            return made, ()
        return self._compute(tensors, *constants), ()


def _traceable(tensors: Sequence[Tensor | None]) -> bool:
    """Whether this call is the one to trace.

    Kernels are compiled for addresses that are multiples of 16 bytes, which others of its kind may
    have; and while a CUDA graph is recorded nothing may be launched for the first time.
    """
    if any(t.data_ptr() & 15 for t in tensors if t is not None):
        return False
    first = tensors[0]
    assert first is not None
    return not (first.is_cuda and torch.cuda.is_current_stream_capturing())


_known: list[dict[Any, Any]] = []


def forget() -> None:
    """Forgets all that was traced: what calls depend on besides their arguments has changed."""
    for found in _known:
        found.clear()


def kind_of(tensors: Sequence[Tensor | None], *constants: Any) -> Any:
    """All that a call's Python depends on; None where it must be run."""
    if launching.elsewhere or launching.watched.by or torch.is_grad_enabled():
        return None
    first = tensors[0]
    assert first is not None
    device = first.get_device()
    if device >= 0 and device != torch.cuda.current_device():
        return None
    parts: list[Any] = [
        constants, device, autocast_type(first.device.type), tf32_allowed(), one_pass.under_way(),
    ]  # fmt: skip
    for t in tensors:
        if t is None:
            parts.append(None)
        elif type(t) in _PLAIN:
            parts += type(t), t.shape, t.stride(), t.dtype
        else:
            return None
    return tuple(parts)


def restored(saved: Sequence[Tensor | None], parts: Parts) -> Results:
    """Results that were saved, with those that are parts of the last."""
    if not parts:
        return saved
    *tensors, room = saved
    assert room is not None
    for part in parts:
        memory = room[part.offset :].view(part.dtype)
        tensors[part.place] = memory.as_strided(part.shape, part.stride)
    return tensors


def _different(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tensors, another of the same memory for one that was there before."""
    before: set[int] = set()
    given: list[Tensor | None] = []
    for t in tensors:
        given.append(t.detach() if t is not None and id(t) in before else t)
        before.add(id(t))
    return given
