"""Functions of tensors without their Python: what a call did is repeated as straight-line code.

An operator's forward or backward pass is a few launches and products, and ten times as much Python
that decides on tiles, strides and types. All of that depends on the shapes, types and constants of
the call alone. So the second call of a kind is traced, and from then on a function that makes the
same calls of PyTorch and launches takes its place: same kernels, same arguments, same bits. Tensors
that only kernels see are parts of one piece of memory, each as long as it is needed, and in a
launch no more than an address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.runtime import launching, one_pass
from evofeed.kernels.runtime.private_apis import launch_text, stream_of
from evofeed.kernels.runtime.tracing import Seen, Step, Trace, traced

MOST = 4096  # kinds of calls kept for a function: sizes are part of them
ALIGNED = 512  # bytes, as PyTorch's allocator

Results = Sequence["Tensor | None"]
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


class Prepared:
    """`compute(tensors, *constants)`, which must depend on nothing else, and what was traced of it.

    Args:
        compute: gives tensors or None; reads no numbers out of tensors and draws none.
    """

    def __init__(self, compute: Callable[..., Results]) -> None:
        self._compute = compute
        self._found: dict[Any, Callable[..., Results] | bool] = {}  # True: seen once, False: never
        _known.append(self._found)

    def __call__(self, tensors: Sequence[Tensor | None], *constants: Any) -> Results:
        """The result."""
        key = _kind(tensors, constants)
        if key is None:
            return self._compute(tensors, *constants)
        found = self._found.get(key)
        if callable(found):
            return found(*tensors)
        if found is None:  # nobody knows yet whether it will come again
            if len(self._found) >= MOST:
                self._found.clear()
            self._found[key] = True
        elif found:
            given = _different(tensors)
            with traced(given) as trace:
                made = self._compute(given, *constants)
            self._found[key] = written(trace, made)
            return made
        return self._compute(tensors, *constants)


_known: list[dict[Any, Any]] = []


def forget() -> None:
    """Forgets all that was traced: what calls depend on besides their arguments has changed."""
    for found in _known:
        found.clear()


def _different(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tensors, another of the same memory for one that was there before."""
    before: set[int] = set()
    given: list[Tensor | None] = []
    for t in tensors:
        given.append(t.detach() if t is not None and id(t) in before else t)
        before.add(id(t))
    return given


def _kind(tensors: Sequence[Tensor | None], constants: tuple[Any, ...]) -> Any:
    """All that a call's Python depends on; None where it must be run."""
    if one_pass.under_way() or launching.elsewhere or torch.is_grad_enabled():
        return None
    first = tensors[0]
    device = first.get_device()
    if device >= 0 and device != torch.cuda.current_device():
        return None
    parts: list[Any] = [
        constants, device, torch.is_autocast_enabled(first.device.type),
        torch.backends.cuda.matmul.allow_tf32,
    ]  # fmt: skip
    for t in tensors:
        if t is None:
            parts.append(None)
        elif type(t) in _PLAIN:
            parts += (
                t.shape, t.stride(), t.dtype, t.data_ptr() & 15, t.storage_offset() & 7,
            )  # fmt: skip
        else:
            return None
    return tuple(parts)


# --- the written function -------------------------------------------------------------------------


def written(trace: Trace, results: Results) -> Callable[..., Results] | bool:
    """A function of the trace's inputs that does what was traced; False if there can be none."""
    numbers = [None if t is None else trace.seen(t).number for t in results]
    if trace.failed:
        return False
    source = _Source(trace, numbers)
    names = source.names
    exec(compile(source.text(), "<prepared>", "exec"), names)
    function: Callable[..., Results] = names["prepared"]
    return function


def places(parts: Mapping[int, tuple[int, int, int]]) -> tuple[dict[int, int], int]:
    """Offsets in one piece of memory, and its size, for parts with a size, a first and a last use.

    Parts that are used at the same time do not overlap; the largest are placed first, as low as
    they fit.
    """
    placed: list[tuple[int, int, int, int]] = []  # begin, end, first, last
    found: dict[int, int] = {}
    for number, (size, first, last) in sorted(parts.items(), key=lambda part: -part[1][0]):
        size = -(-size // ALIGNED) * ALIGNED
        at = 0
        for begin, end, since, until in sorted(placed):
            if since <= last and first <= until and begin < at + size:
                at = max(at, end)
        placed.append((at, at + size, first, last))
        found[number] = at
    return found, max((end for _, end, _, _ in placed), default=0)


class _Source:
    """Source of a function that does what was traced, and what it names."""

    def __init__(self, trace: Trace, results: list[int | None]) -> None:
        self._trace, self._results = trace, results
        self.names: dict[str, Any] = {"empty": torch.empty, "empty_strided": torch.empty_strided}
        self._bound: dict[int, str] = {}
        self._choose()
        first, self._last = self._uses()
        parts = {
            number: (new.nbytes, first[number], self._last[number])
            for number, new in trace.new.items()
            if number in self._addresses and number not in self._tensors
        }
        self._places, self._room = places(parts)

    def _choose(self) -> None:
        """Which steps are needed, which tensors as such, and of which only the address."""
        self._tensors = {number for number in self._results if number is not None}
        self._addresses: set[int] = set()
        steps: list[Step] = []
        for step in reversed(self._trace.steps):
            if step.kind == "view" and self._tensors.isdisjoint(step.makes):
                continue
            if step.kind == "new":
                if not {*step.makes} & (self._tensors | self._addresses):
                    continue
            elif step.kind == "launch" and step.grid:
                self._addresses.update(seen.root for seen in step.reads)
            else:
                self._tensors.update(seen.number for seen in step.reads)
            steps.append(step)
        self._steps = steps[::-1]

    def _uses(self) -> tuple[dict[int, int], dict[int, int]]:
        """The first and the last step that needs a tensor or its memory."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for at, step in enumerate(self._steps):
            read = [number for seen in step.reads for number in (seen.number, seen.root)]
            for number in (*step.makes, *read):
                first.setdefault(number, at)
                last[number] = at
        return first, last

    def text(self) -> str:
        """The source."""
        inputs = self._trace.inputs
        lines = [f"def prepared({', '.join(f't{n}' for n in range(inputs))}):"]
        if any(step.grid for step in self._steps):
            self.names["stream_of"] = stream_of
            lines.append(f"    stream = stream_of({self._trace.device.index or 0})")
        if self._places:
            self.names.update(uint8=torch.uint8, device=self._trace.device)
            lines += [
                f"    room = empty({self._room}, dtype=uint8, device=device)",
                "    at = room.data_ptr()",
            ]
        lines += [f"    p{n} = t{n}.data_ptr()" for n in range(inputs) if n in self._addresses]
        for at, step in enumerate(self._steps):
            lines += [f"    {line}" for line in self._lines(step)]
            gone = [n for n, last in self._last.items() if last == at and self._is_let_go(n)]
            if gone:
                lines.append(f"    del {', '.join(f't{n}' for n in gone)}")
        given = ["None" if n is None else f"t{n}" for n in self._results]
        return "\n".join([*lines, f"    return [{', '.join(given)}]", ""])

    def _is_let_go(self, number: int) -> bool:
        made_here = number >= self._trace.inputs and number in self._tensors
        return made_here and number not in self._results

    def _lines(self, step: Step) -> list[str]:
        if step.kind == "launch" and step.grid:
            run, function, metadata = map(self._constant, step.function)
            values = ", ".join(map(self._address, step.args))
            grid = ", ".join(map(str, step.grid))
            return [launch_text(run, grid, function, metadata, values)]
        if step.kind == "new":
            return self._reserve(*step.makes)
        given = [self._value(value) for value in step.args]
        given += [f"{name}={self._value(value)}" for name, value in step.kwargs.items()]
        call = f"{self._constant(step.function)}({', '.join(given)})"
        if not step.makes:
            return [call]
        made = ", ".join(f"t{n}" for n in step.makes)
        return [f"{made}{',' if step.several else ''} = {call}", *self._addresses_of(step.makes)]

    def _reserve(self, number: int) -> list[str]:
        if number in self._places:
            return []
        new = self._trace.new[number]
        device = self._constant(self._trace.device)
        how = f"dtype={self._constant(new.dtype)}, device={device}"
        text = f"t{number} = empty_strided({new.shape}, {new.stride}, {how})"
        return [text, *self._addresses_of([number])]

    def _addresses_of(self, numbers: list[int]) -> list[str]:
        return [f"p{n} = t{n}.data_ptr()" for n in numbers if n in self._addresses]

    def _address(self, value: Any) -> str:
        if not isinstance(value, Seen):
            return self._value(value)
        if value.root in self._places:
            return f"at + {self._places[value.root] + value.offset}"
        return f"p{value.root} + {value.offset}" if value.offset else f"p{value.root}"

    def _value(self, value: Any) -> str:
        if isinstance(value, Seen):
            return f"t{value.number}"
        if type(value) in (list, tuple) and any(isinstance(part, Seen) for part in value):
            return f"[{', '.join(map(self._value, value))}]"
        return repr(value) if type(value) in (int, bool, type(None)) else self._constant(value)

    def _constant(self, value: Any) -> str:
        """A name for a value."""
        name = self._bound.get(id(value))
        if name is None:
            name = self._bound[id(value)] = f"c{len(self._bound)}"
            self.names[name] = value
        return name
