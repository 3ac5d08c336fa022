"""What a function makes of things that stay: made once, while it is recorded.

A step of sampling gets the pairs of the trunk and its batch again at every call, and makes the
same of them: what it normalises, what it projects for each block, how many atoms there are. Where
numbers follow from what stays, and from that alone, those of the first runs serve all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.runtime.private_apis import MOVED, READ, DispatchMode
from evofeed.kernels.runtime.torch_library import as_operators

_REPEAT = torch.ops.aten.repeat_interleave.Tensor
_DETACHED, _COPIED = torch.ops.aten.detach.default, torch.ops.aten.copy_.default


class ChangedInPlace(RuntimeError):
    """A function writes to the tensor of this number among those that stay; nothing was written."""

    def __init__(self, number: int) -> None:
        super().__init__("it changes its arguments in place")
        self.number = number


class Constants(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode for runs of one function, of which the first finds out what is constant.

    The second keeps the constants that others read, and later runs take those: they are what is
    recorded. What the host is told in the first run is told in all. Constants are made by
    operators from tensors that stay and from constants. Memory that was never written by an
    operator is none, nor are random numbers: kernels that no mode sees may fill it.

    Args:
        fixed: arguments that stay; the function must not write to them.
        weights: parameters and buffers, likewise.

    Attributes:
        used: numbers of the fixed tensors that were read.
        answers: what the host was told. What was recorded reads its tensors, and those of `kept`.
        kept: the constants by the number of the operator that makes them.

    Raises:
        ChangedInPlace: the function writes to one of `fixed`.
        RuntimeError: the host is told, or waits for, a number that may be another next time, or a
            run does something else than the first.
    """

    def __init__(self, fixed: Sequence[Tensor], weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fixed = {m: number for number, t in enumerate(fixed) for m in _memory([t])}
        self._known = {*self._fixed, *_memory(weights)}
        self._weights = frozenset(self._known - self._fixed.keys())
        self._zeros = set[int]()  # written by nobody yet, or by a kernel that no mode sees
        self._made, self._seen = dict[int, int](), set[int]()  # by whom; whose results were read
        self._calls = list[_Call]()
        self._constant, self._needed = set[int](), set[int]()
        self._run = 0
        self.used = set[int]()
        self.answers, self.kept = list[Any](), dict[int, Any]()

    def __enter__(self) -> Constants:
        self._number, self._left = -1, iter(self.answers)
        self._operators = as_operators()
        self._operators.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._operators.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """One operator."""
        kwargs = kwargs or {}
        if func is _DETACHED:
            return func(*args, **kwargs)  # PyTorch does so with results that others hold too
        self._number += 1
        asked = self._asked(func, args, kwargs)
        if self._run == 0:
            return self._first(func, args, kwargs, asked)
        if self._number >= len(self._calls) or self._calls[self._number].func is not func:
            raise RuntimeError("it does not do the same every time")
        if asked is not None:
            return asked.use(next(self._left))
        if self._number not in self._constant:
            return func(*args, **kwargs)
        written = _written(func, args)
        if self._run > 1:
            return written[0] if written else _placed(self.kept[self._number])
        made = func(*args, **kwargs)
        if not written:
            self.kept[self._number] = made if self._number in self._needed else _Shapes.of(made)
        return made

    def _first(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], asked: _Asked | None
    ) -> Any:
        """An operator of the first run."""
        if asked is not None:
            if not _memory([asked.of]) <= self._known:
                raise RuntimeError("the host waits for a number that differs from call to call")
            self.answers.append(asked.find())
        written, tensors = _written(func, args), list(_tensors((*args, *kwargs.values())))
        changed = _memory(written)
        for memory in changed:
            if memory in self._fixed:
                raise ChangedInPlace(self._fixed[memory])
            if memory in self._weights:
                raise RuntimeError("it changes its parameters or buffers")
        read = _memory(t for t in tensors if not any(t is w for w in written))
        self.used |= {self._fixed[m] for m in read & self._fixed.keys()}
        known = read <= self._known and torch.Tag.nondeterministic_seeded not in func.tags
        call = _Call(func, {self._made[m] for m in read if m in self._made})
        self._calls.append(call)
        made = func(*args, **kwargs) if asked is None else asked.use(self.answers[-1])
        new = _memory([made]) - _memory(tensors)
        call.views = asked is None and not (new or written)
        if not call.views:
            self._seen |= call.reads
        if written:
            self._write(call, known and asked is None, changed)
        self._known -= new
        self._zeros -= new
        for memory in new & self._made.keys():
            del self._made[memory]
        if new and known and not written and "empty" not in func.__name__:
            zeros = "zeros" in func.__name__ and not next(_tensors([made])).is_cpu
            (self._zeros if zeros else self._known).update(new)
            if asked is None:
                self._constant.add(self._number)
                self._made.update(dict.fromkeys(new, self._number))
        return made

    def _write(self, call: _Call, known: bool, memory: set[int]) -> None:
        """An operator that writes to tensors of the function's own: constant if they still are."""
        makers = {self._made[m] for m in memory if m in self._made}
        call.reads |= makers
        call.writes = makers
        same = memory <= self._known | self._zeros and not makers & self._seen
        self._zeros -= memory
        if known and same and len(memory) == len(makers) == 1:
            self._constant.add(self._number)
            self._known |= memory
        else:
            self._known -= memory

    def settle(self, results: Iterable[Any]) -> None:
        """Ends a run, which had these results: of the first, which constants others read."""
        self._run += 1
        if self._run > 1:
            return
        while self._banned():
            pass
        for number, call in enumerate(self._calls):
            if number not in self._constant and not call.views:
                self._needed |= call.reads
        self._needed |= {self._made[m] for m in _memory(results) if m in self._made}

    def _banned(self) -> bool:
        """Whether an operator was taken for constant that reads, or is written to by, one that is
        not."""
        before = len(self._constant)
        for number, call in enumerate(self._calls):
            if not call.reads <= self._constant:
                self._constant.discard(number)
            if number not in self._constant:
                self._constant -= call.writes
        return len(self._constant) < before

    @staticmethod
    def _asked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Asked | None:
        """Of an operator that one device waits for another in."""
        if func is READ:
            return _Asked(args[0], lambda: args[0].item(), lambda number: number)
        if func is _REPEAT and kwargs.get("output_size") is None:
            return _Asked(
                args[0], lambda: int(args[0].sum()),
                lambda size: func(args[0], **{**kwargs, "output_size": size}),
            )  # fmt: skip
        if func is MOVED and kwargs.get("device", args[0].device).type != args[0].device.type:
            return _Asked(args[0], lambda: func(*args, **kwargs), Tensor.clone)
        if func is _COPIED and args[0].device.type != args[1].device.type:
            return _Asked(
                args[1], lambda: args[1].to(args[0].device), lambda value: func(args[0], value)
            )
        return None


class _Asked(NamedTuple):
    """Of which tensor somebody wants to know something, how it is found out, what comes of it."""

    of: Tensor
    find: Callable[[], Any]
    use: Callable[[Any], Any]


@dataclass(slots=True)
class _Call:
    """An operator of the first run.

    Attributes:
        reads: numbers of the operators that made, as constants, what it reads.
        writes: of those that made what it writes to.
        views: whether it makes no numbers.
    """

    func: Any
    reads: set[int]
    writes: set[int] = field(default_factory=set)
    views: bool = False


class _Shapes(NamedTuple):
    """Stands for results that nobody reads."""

    tensors: list[tuple[Any, ...]]
    kind: type

    @classmethod
    def of(cls, made: Any) -> _Shapes:
        """Those of an operator."""
        shapes = [(t.shape, t.stride(), t.dtype, t.device) for t in _tensors([made])]
        return cls(shapes, type(made))


def _placed(kept: Any) -> Any:
    """What was kept, or memory without numbers of its shapes."""
    if not isinstance(kept, _Shapes):
        return kept
    made = [
        torch.empty_strided(shape, stride, dtype=dtype, device=device)
        for shape, stride, dtype, device in kept.tensors
    ]
    return kept.kind(made) if kept.kind in (list, tuple) else made[0]


def _written(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """The arguments that an operator writes to."""
    return [
        t for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
        for t in _tensors([value])
    ]  # fmt: skip


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _memory(values: Iterable[Any]) -> set[int]:
    """What tensors that share numbers have in common."""
    return {t.untyped_storage().data_ptr() for t in _tensors(values)} - {0}
