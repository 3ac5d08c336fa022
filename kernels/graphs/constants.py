"""What a function asks of the host while it is recorded: numbers that are always the same.

A count of atoms decides on a shape, a tensor of zeros comes from the host: nothing of that can be
in a CUDA graph. Where it follows from tensors that stay as they are, and from them alone, the
answer of the first run holds for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.runtime.private_apis import DispatchMode

_READ = torch.ops.aten._local_scalar_dense.default
_REPEAT = torch.ops.aten.repeat_interleave.Tensor
_MOVED, _COPIED = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default


class ChangedInPlace(RuntimeError):
    """A function writes to a tensor that should stay; nothing was written yet."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__("it changes its arguments in place")
        self.tensor = tensor


class Constants(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode for runs of one function: what the host was told in the first is told in all.

    Numbers are known while everything they were made from is: `fixed` tensors, and constants made
    on the host. What was never initialised, and so may be filled by a kernel that no mode sees, is
    not, nor are random numbers.

    Attributes:
        answers: what the host was told; its tensors are read by whatever was recorded in a run.

    Raises:
        ChangedInPlace: the function writes to one of `fixed`.
        RuntimeError: the host is told, or waits for, a number that may be another next time.
    """

    def __init__(self, fixed: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fixed = {_memory(t): t for t in fixed}
        self.answers = list[Any]()
        self._first = True

    def run(self, function: Callable[[], Any]) -> Any:
        """What it returns."""
        self._known = set(self._fixed)
        self._left = iter(self.answers)
        with self:
            made = function()
        self._first = False
        return made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """One operator."""
        kwargs = kwargs or {}
        tensors = list(_tensors((*args, *kwargs.values())))
        known = all(_memory(t) in self._known for t in tensors)
        written = [
            t for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for t in _tensors([value])
        ]  # fmt: skip
        for t in written:
            if _memory(t) in self._fixed:
                raise ChangedInPlace(self._fixed[_memory(t)])
        asked = self._asked(func, args, kwargs)
        made = func(*args, **kwargs) if asked is None else self._told(*asked)
        self._note(func, tensors, written, known, made)
        return made

    def _asked(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, Callable[[], Any], Callable[[Any], Any]] | None:
        """Of an operator that one device waits for another in: of which tensor it wants to know
        something, how that is found out, and what comes of it."""
        if func is _READ:
            return args[0], lambda: args[0].item(), lambda number: number
        if func is _REPEAT and kwargs.get("output_size") is None:
            return (
                args[0],
                lambda: int(args[0].sum()),
                lambda size: func(args[0], **{**kwargs, "output_size": size}),
            )
        if func is _MOVED and kwargs.get("device", args[0].device).type != args[0].device.type:
            return args[0], lambda: func(*args, **kwargs), Tensor.clone
        if func is _COPIED and args[0].device.type != args[1].device.type:
            return (
                args[1], lambda: args[1].to(args[0].device), lambda value: func(args[0], value)
            )  # fmt: skip
        return None

    def _told(self, of: Tensor, find: Callable[[], Any], use: Callable[[Any], Any]) -> Any:
        if _memory(of) not in self._known:
            raise RuntimeError("the host waits for a number that differs from call to call")
        if self._first:
            self.answers.append(find())
            return use(self.answers[-1])
        return use(next(self._left))

    def _note(
        self, func: Any, tensors: list[Tensor], written: list[Tensor], known: bool, made: Any
    ) -> None:
        """Whether the numbers of results are known."""
        before = {_memory(t) for t in tensors}
        if not known:
            self._known -= {_memory(t) for t in written}
        random = torch.Tag.nondeterministic_seeded in func.tags
        for t in _tensors([made]):
            if _memory(t) in before:  # a view, or an argument
                continue
            if random or "empty" in func.__name__ or not known or not (tensors or t.is_cpu):
                self._known.discard(_memory(t))
            else:
                self._known.add(_memory(t))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _memory(t: Tensor) -> int:
    """What tensors that share numbers have in common; 0 if there are none."""
    return t.untyped_storage().data_ptr()
