"""Constants of a recorded function: results of unchanging tensors, computed once.

A denoising step gets the trunk's pairs and the same batch at every call, and computes the same
results from them: normalised pairs, the projections of each block, the number of atoms. Results
that depend on unchanging tensors alone are computed in the first runs and reused.
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
    """A function is about to write to the unchanging tensor of this number."""

    def __init__(self, number: int) -> None:
        super().__init__("it changes its arguments in place")
        self.number = number


class Constants(DispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode for runs of one function, of which the first finds the constants.

    The second run saves the constants that other operators read; later runs, which are recorded,
    use those. Values that the host reads in the first run are used in all. Constants are results
    of operators on unchanging tensors and constants. Random numbers are not constants, nor is
    memory that no operator wrote: kernels outside the dispatcher may fill it.

    Args:
        fixed: unchanging arguments; the function must not write to them.
        weights: parameters and buffers, also unchanging.

    Attributes:
        used: numbers of the fixed tensors that were read.
        host_values: values read by the host. A recording reads its tensors, and those of `saved`.
        saved: the constants by the number of the operator that computes them.

    Raises:
        ChangedInPlace: the function writes to one of `fixed`.
        RuntimeError: the host reads a value that is not constant, or a run differs from the first.
    """

    def __init__(self, fixed: Sequence[Tensor], weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fixed = {m: number for number, t in enumerate(fixed) for m in _storages([t])}
        self._unchanging = {*self._fixed, *_storages(weights)}
        self._weights = frozenset(self._unchanging - self._fixed.keys())
        self._unwritten = set[int]()  # zeros, until an operator or an unseen kernel writes there
        self._maker, self._read = dict[int, int](), set[int]()  # by storage; results read so far
        self._calls = list[_Call]()
        self._constant_ops, self._needed = set[int](), set[int]()
        self._run = 0
        self.used = set[int]()
        self.host_values, self.saved = list[Any](), dict[int, Any]()

    def __enter__(self) -> Constants:
        self._number, self._remaining = -1, iter(self.host_values)
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
        """Runs one operator, or returns its constant."""
        kwargs = kwargs or {}
        if func is _DETACHED:
            return func(*args, **kwargs)  # PyTorch detaches results that are used elsewhere too
        self._number += 1
        host_read = self._host_read(func, args, kwargs)
        if self._run == 0:
            return self._observe(func, args, kwargs, host_read)
        if self._number >= len(self._calls) or self._calls[self._number].func is not func:
            raise RuntimeError("it does not run the same operators every time")
        if host_read is not None:
            return host_read.result(next(self._remaining))
        if self._number not in self._constant_ops:
            return func(*args, **kwargs)
        written = _written(func, args)
        if self._run > 1:
            return written[0] if written else _restored(self.saved[self._number])
        result = func(*args, **kwargs)
        if not written:
            needed = self._number in self._needed
            self.saved[self._number] = result if needed else _Layout.of(result)
        return result

    def _observe(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], host_read: _HostRead | None
    ) -> Any:
        """Runs an operator of the first run, and finds whether its result is constant."""
        if host_read is not None:
            if not _storages([host_read.source]) <= self._unchanging:
                raise RuntimeError("the host waits for a number that differs from call to call")
            self.host_values.append(host_read.read())
        written, tensors = _written(func, args), list(_tensors((*args, *kwargs.values())))
        written_storages = _storages(written)
        for memory in written_storages:
            if memory in self._fixed:
                raise ChangedInPlace(self._fixed[memory])
            if memory in self._weights:
                raise RuntimeError("it changes its parameters or buffers")
        read = _storages(t for t in tensors if not any(t is w for w in written))
        self.used |= {self._fixed[m] for m in read & self._fixed.keys()}
        constant = read <= self._unchanging and torch.Tag.nondeterministic_seeded not in func.tags
        call = _Call(func, {self._maker[m] for m in read if m in self._maker})
        self._calls.append(call)
        result = host_read.result(self.host_values[-1]) if host_read else func(*args, **kwargs)
        new = _storages([result]) - _storages(tensors)
        call.views = host_read is None and not (new or written)
        if not call.views:
            self._read |= call.reads
        if written:
            self._observe_write(call, constant and host_read is None, written_storages)
        self._unchanging -= new
        self._unwritten -= new
        for memory in new & self._maker.keys():
            del self._maker[memory]
        if new and constant and not written and "empty" not in func.__name__:
            zeros = "zeros" in func.__name__ and not next(_tensors([result])).is_cpu
            (self._unwritten if zeros else self._unchanging).update(new)
            if host_read is None:
                self._constant_ops.add(self._number)
                self._maker.update(dict.fromkeys(new, self._number))
        return result

    def _observe_write(self, call: _Call, constant: bool, storages: set[int]) -> None:
        """Observes an operator that writes to private tensors, which may be constant after it."""
        makers = {self._maker[m] for m in storages if m in self._maker}
        call.reads |= makers
        call.writes = makers
        unread = storages <= self._unchanging | self._unwritten and not makers & self._read
        self._unwritten -= storages
        if constant and unread and len(storages) == len(makers) == 1:
            self._constant_ops.add(self._number)
            self._unchanging |= storages
        else:
            self._unchanging -= storages

    def end_run(self, results: Iterable[Any]) -> None:
        """Ends a run with these results; after the first, finds the constants that are read."""
        self._run += 1
        if self._run > 1:
            return
        while self._drop_dependents():
            pass
        for number, call in enumerate(self._calls):
            if number not in self._constant_ops and not call.views:
                self._needed |= call.reads
        self._needed |= {self._maker[m] for m in _storages(results) if m in self._maker}

    def _drop_dependents(self) -> bool:
        """Drops constants made from other results; True if any was dropped."""
        before = len(self._constant_ops)
        for number, call in enumerate(self._calls):
            if not call.reads <= self._constant_ops:
                self._constant_ops.discard(number)
            if number not in self._constant_ops:
                self._constant_ops -= call.writes
        return len(self._constant_ops) < before

    @staticmethod
    def _host_read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _HostRead | None:
        """The host read of an operator in which one device waits for another, or None."""
        if func is READ:
            return _HostRead(args[0], lambda: args[0].item(), lambda number: number)
        if func is _REPEAT and kwargs.get("output_size") is None:
            return _HostRead(
                args[0], lambda: int(args[0].sum()),
                lambda size: func(args[0], **{**kwargs, "output_size": size}),
            )  # fmt: skip
        if func is MOVED and kwargs.get("device", args[0].device).type != args[0].device.type:
            return _HostRead(args[0], lambda: func(*args, **kwargs), Tensor.clone)
        if func is _COPIED and args[0].device.type != args[1].device.type:
            return _HostRead(
                args[1], lambda: args[1].to(args[0].device), lambda value: func(args[0], value)
            )
        return None


class _HostRead(NamedTuple):
    """A value that the host reads from a tensor, and the operator's result for that value."""

    source: Tensor
    read: Callable[[], Any]
    result: Callable[[Any], Any]


@dataclass(slots=True)
class _Call:
    """An operator of the first run.

    Attributes:
        reads: numbers of the operators whose constant results it reads.
        writes: numbers of the operators whose results it writes to.
        views: True if its results are views.
    """

    func: Any
    reads: set[int]
    writes: set[int] = field(default_factory=set)
    views: bool = False


class _Layout(NamedTuple):
    """Layout of a result that is never read."""

    tensors: list[tuple[Any, ...]]
    kind: type

    @classmethod
    def of(cls, result: Any) -> _Layout:
        """The layout of an operator's result."""
        shapes = [(t.shape, t.stride(), t.dtype, t.device) for t in _tensors([result])]
        return cls(shapes, type(result))


def _restored(saved: Any) -> Any:
    """The saved result, or uninitialised memory of its layout."""
    if not isinstance(saved, _Layout):
        return saved
    tensors = [
        torch.empty_strided(shape, stride, dtype=dtype, device=device)
        for shape, stride, dtype, device in saved.tensors
    ]
    return saved.kind(tensors) if saved.kind in (list, tuple) else tensors[0]


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


def _storages(values: Iterable[Any]) -> set[int]:
    """Addresses of the tensors' storages, shared by views."""
    return {t.untyped_storage().data_ptr() for t in _tensors(values)} - {0}
