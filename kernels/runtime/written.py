"""A Python function that does what a trace says, as straight-line source.

Tensors that only kernels see become parts of one piece of memory. A launch gets addresses, each a
piece's own and an offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.runtime.launching import tiles_at
from evofeed.kernels.runtime.private_apis import launch_text, stream_of
from evofeed.kernels.runtime.tracing import Seen, SeenTiles, Step, Trace

ALIGNED = 512  # bytes, as PyTorch's allocator


class Part(NamedTuple):
    """A tensor in memory shared with others, `offset` bytes behind its beginning.

    Attributes:
        place: of the tensor among the results, from their end.
    """

    place: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


Parts = tuple[Part, ...]


def written(trace: Trace, results: Sequence[Tensor | None], joins: bool) -> Any:
    """A function of the trace's inputs that does what was traced, and the parts of its last result.

    -1 if there can be none. The function gives None, before it does anything, for tensors that do
    not begin at multiples of 16 bytes: kernels were compiled for those.
    """
    numbers = [None if t is None else trace.seen(t).number for t in results]
    if trace.failed:
        return -1
    source = _Source(trace, numbers, joins)
    exec(compile(source.text(), "<prepared>", "exec"), source.names)
    return source.names["prepared"], source.parts


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

    def __init__(self, trace: Trace, results: list[int | None], joins: bool) -> None:
        self._trace, self._results = trace, results
        self.names: dict[str, Any] = {"empty": torch.empty, "empty_strided": torch.empty_strided}
        self._bound: dict[int, str] = {}
        self._choose(joins)
        first, self._last = self._uses()
        alone = [n for n in trace.new if n in self._addresses and n not in self._tensors]
        uses = {n: (trace.new[n].nbytes, first[n], self._last[n]) for n in alone}
        kept, end = {n: uses.pop(n) for n in self._joined}, len(self._steps)
        self._places, self._room = places(uses)
        self._kept, self._kept_room = places({n: (kept[n][0], 0, end) for n in kept})
        self.parts = tuple(
            Part(at - len(results), self._kept[n], new.shape, new.stride, new.dtype)
            for at, n in enumerate(results)
            if n in self._kept
            for new in (trace.new[n],)
        )

    def _choose(self, joins: bool) -> None:
        """Which steps are needed, which tensors as such, and of which only the address."""
        results = {n for n in self._results if n is not None}
        new = self._trace.new
        once = {n for n in self._results[1:] if n in new and self._results.count(n) == 1}
        parts = {n for n in once if new[n].nbytes} if joins else set()  # unless needed as such
        self._tensors, self._addresses = results - parts, set(parts)
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
        self._joined = parts - self._tensors

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
        given = [n for n in range(inputs) if n in self._addresses]
        lines += [f"    p{n} = t{n}.data_ptr()" for n in given]
        if given:
            lines.append(f"    if ({' | '.join(f'p{n}' for n in given)}) & 15: return None")
        self.names.update(uint8=torch.uint8, device=self._trace.device)
        for name, size, used in (
            ("room", self._room, self._places), ("kept", self._kept_room, self._kept),
        ):  # fmt: skip
            if used:
                lines.append(f"    {name} = empty({size}, dtype=uint8, device=device)")
                lines.append(f"    {name}_at = {name}.data_ptr()")
        for at, step in enumerate(self._steps):
            lines += [f"    {line}" for line in self._lines(step)]
            gone = [n for n, last in self._last.items() if last == at and self._is_let_go(n)]
            if gone:
                lines.append(f"    del {', '.join(f't{n}' for n in gone)}")
        made = ["None" if n is None or n in self._kept else f"t{n}" for n in self._results]
        made += ["kept"] if self._kept else []
        return "\n".join([*lines, f"    return [{', '.join(made)}]", ""])

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
        if number in self._places or number in self._kept:
            return []
        new = self._trace.new[number]
        device = self._constant(self._trace.device)
        how = f"dtype={self._constant(new.dtype)}, device={device}"
        text = f"t{number} = empty_strided({new.shape}, {new.stride}, {how})"
        return [text, *self._addresses_of([number])]

    def _addresses_of(self, numbers: list[int]) -> list[str]:
        return [f"p{n} = t{n}.data_ptr()" for n in numbers if n in self._addresses]

    def _address(self, value: Any) -> str:
        if isinstance(value, SeenTiles):
            self.names["tiles_at"] = tiles_at
            return f"tiles_at({self._address(value.base)}, {self._constant(value.like)})"
        if not isinstance(value, Seen):
            return self._value(value)
        for name, used in (("room", self._places), ("kept", self._kept)):
            if value.root in used:
                return f"{name}_at + {used[value.root] + value.offset}"
        return f"p{value.root} + {value.offset}" if value.offset else f"p{value.root}"

    def _value(self, value: Any) -> str:
        if isinstance(value, Seen):
            return f"t{value.number}"
        if type(value) in (list, tuple):
            parts = "".join(f"{self._value(part)}, " for part in value)
            return f"[{parts}]" if type(value) is list else f"({parts})"
        return repr(value) if type(value) in (int, bool, type(None)) else self._constant(value)

    def _constant(self, value: Any) -> str:
        """A name for a value that is no tensor."""
        assert not isinstance(value, Tensor)
        name = self._bound.get(id(value))
        if name is None:
            name = self._bound[id(value)] = f"c{len(self._bound)}"
            self.names[name] = value
        return name
