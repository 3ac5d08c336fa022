# mypy: disable-error-code="no-untyped-call"
"""Functions of tensors without their Python: what a call did is repeated as straight-line code.

An operator's forward or backward pass is a few launches and products, and ten times as much Python
that decides on tiles, strides and types. All of that depends on the shapes, types and constants of
the call alone. So the call of a kind behind its first `OFTEN` is traced, and from then on a
function whose source is generated from the trace and executed takes its place: the same calls of
PyTorch, the same launches, the same arguments and bits. Tensors that only kernels see are
parts of one piece of memory, each as long as it is needed, and in a launch no more than an address.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from evofeed.kernels.runtime import launching, one_pass
from evofeed.kernels.runtime.backend import TensorDescriptor, autocast_type
from evofeed.kernels.runtime.launching import tiles_at
from evofeed.kernels.runtime.private_apis import launch_text, stream_of, tf32_allowed

OFTEN = 8  # calls of a kind before one is traced, which takes what a dozen calls save
MOST = 512  # kinds of calls kept for a function: sizes are part of them
ALIGNED = 512  # bytes, as PyTorch's allocator

Results = Sequence["Tensor | None"]
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


class Prepared:
    """`compute(tensors, *constants)`, which must depend on nothing else, and what was traced of it.

    Args:
        compute: gives tensors or None; draws no numbers, and enters no context but those that
            change nothing for PyTorch.
    """

    def __init__(self, compute: Callable[..., Results]) -> None:
        self._compute = compute
        self._found: dict[Any, Any] = {}  # a written function, or how often a kind was seen
        _known.append(self._found)

    def __call__(self, kind: Any, tensors: Sequence[Tensor | None], *constants: Any) -> Results:
        """The results; `kind` is what `kind_of` says of the call."""
        found = self._found.get(kind, 0)
        if type(found) is not int:
            made: Results | None = found(*tensors)
            if made is not None:
                return made
        elif kind is None or found < 0:
            pass
        elif found < OFTEN:
            if len(self._found) >= MOST:
                self._found.clear()
            self._found[kind] = found + 1
        elif _traceable(tensors):
            given = _different(tensors)
            with _Trace(given) as trace:
                made = self._compute(given, *constants)
            if kind in self._found:  # else `forget` was called meanwhile
                self._found[kind] = _written(trace, made)
            return made
        return self._compute(tensors, *constants)


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


def _different(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tensors, another of the same memory for one that was there before."""
    before: set[int] = set()
    given: list[Tensor | None] = []
    for t in tensors:
        given.append(t.detach() if t is not None and id(t) in before else t)
        before.add(id(t))
    return given


# --- the trace ------------------------------------------------------------------------------------

_ALLOCATIONS = frozenset({torch.empty, torch.empty_like, Tensor.new_empty, torch.empty_strided})
_QUESTIONS = frozenset({  # whose answers all calls of a kind share; addresses, a launch asks for
    "__get__", "__len__", "data_ptr", "dim", "element_size", "get_device", "is_complex",
    "is_contiguous", "is_floating_point", "is_inference", "nelement", "numel", "size",
    "storage_offset", "stride",
})  # fmt: skip
_OPERATORS = "add and div floordiv lshift matmul mod mul or pow rshift sub truediv xor"
_IN_PLACE = frozenset({"__set__", "__setitem__", *(f"__i{name}__" for name in _OPERATORS.split())})


class _Seen(NamedTuple):
    """A tensor of a trace: its number, that of the tensor in whose memory it begins (its own if the
    memory is new), and how many bytes behind that one's address."""

    number: int
    root: int
    offset: int


class _SeenTiles(NamedTuple):
    """Tiles of a tensor, as `launching.tiles_in` gives them, and they with no memory."""

    base: _Seen
    like: Any


@dataclass(slots=True)
class _Step:
    """One call or launch.

    Attributes:
        function: what is called; of a launch what Triton's launcher takes again.
        args, kwargs: of the call, `_Seen` in place of tensors; of a launch its values.
        reads: the tensors among them.
        makes: numbers of the results; tensors known before are not among them.
        kind: `call`; `view`, which only makes views; `new`, which only reserves memory; `launch`.
        several: whether the results come in a tuple or list.
        grid: of a launch.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: list[_Seen]
    makes: list[int]
    kind: str
    several: bool = False
    grid: tuple[int, ...] = ()


class _Trace(TorchFunctionMode):
    """What is done with tensors inside, in order.

    Args:
        inputs: all different; numbers count them, None too.

    Attributes:
        steps: the calls and launches.
        new: what the steps that only reserve memory reserve, without memory, by number.
        failed: why it cannot be repeated; empty if it can.
    """

    def __init__(self, inputs: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.steps: list[_Step] = []
        self.new: dict[int, Tensor] = {}
        self.failed = ""
        self.inputs = self._count = len(inputs)
        self._tensors: dict[int, tuple[weakref.ref[Tensor], _Seen]] = {}  # still there, by `id`
        for number, tensor in enumerate(inputs):
            if tensor is not None:
                self.device = tensor.device
                self._remember(tensor, _Seen(number, number, 0))
        self._autocast = autocast_type(self.device.type)

    def __enter__(self) -> _Trace:
        launching.watched.by = self._launch
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        launching.watched.by = None
        super().__exit__(kind, error, trace)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs the call, and writes it down; launches inside are its own."""
        launching.watched.by = None
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            launching.watched.by = self._launch
        self._call(func, args, kwargs or {}, result)
        return result

    def seen(self, tensor: Tensor) -> _Seen:
        """What is known of a tensor."""
        found = self._tensors.get(id(tensor))
        if found is None:
            self.failed = f"it reads a tensor {list(tensor.shape)} that is no input"
            return _Seen(-1, -1, 0)
        return found[1]

    def _remember(self, tensor: Tensor, seen: _Seen) -> None:
        gone = partial(self._tensors.pop, id(tensor))  # another may get its id
        self._tensors[id(tensor)] = weakref.ref(tensor, gone), seen

    def _call(self, function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        given, results = list(_tensors((args, kwargs))), list(_tensors(result))
        name, several = getattr(function, "__name__", ""), isinstance(result, list | tuple)
        writes = "out" in kwargs or name in _IN_PLACE or (name[-1:] == "_" != name[-2:-1])
        fresh = [t for t in results if id(t) not in self._tensors]
        if not fresh and not writes:  # one of its arguments as it was, or a question
            if not results and result is not None and name not in _QUESTIONS:
                self.failed = f"what {name} answers may depend on the numbers in a tensor"
            return
        if fresh and len(fresh) < (len(result) if several else 1):
            self.failed = f"{name} gives more than new tensors"
        if autocast_type(self.device.type) is not self._autocast:
            self.failed = f"{name} is called with autocast set otherwise"
        if name == "split" and len(args) == 2:  # three calls of Python
            function, axis = Tensor.split_with_sizes, kwargs.get("dim", 0)
            args, kwargs = (args[0], tuple(t.shape[axis] for t in results), axis), {}
        makes = [self._add(t, given) for t in fresh]
        kind = "call"
        if fresh and not writes:
            if function in _ALLOCATIONS and fresh[0].device == self.device:
                kind, (made,) = "new", fresh
                self.new[makes[0]] = torch.empty_strided(
                    made.shape, made.stride(), dtype=made.dtype, device="meta"
                )
            elif all(self.seen(t).root != self.seen(t).number for t in fresh):
                kind = "view"
        named = {key: self._named(value) for key, value in kwargs.items()}
        reads = [self.seen(t) for t in given]
        put = tuple(map(self._named, args))
        self.steps.append(_Step(function, put, named, reads, makes, kind, several))

    def _launch(self, ready: Any, grid: tuple[int, ...], values: Sequence[Any]) -> None:
        put = tuple(map(self._named, values))
        reads = [value.base if isinstance(value, _SeenTiles) else value for value in put]
        reads = [value for value in reads if isinstance(value, _Seen)]
        kind = "launch" if grid else "call"  # interpreted
        self.steps.append(_Step(ready, put, {}, reads, [], kind, grid=grid))

    def _add(self, tensor: Tensor, given: list[Tensor]) -> int:
        """A new tensor, seen as a view where it is in the memory of one that was given."""
        number, self._count = self._count, self._count + 1
        at, found = tensor.untyped_storage().data_ptr(), _Seen(number, number, 0)
        for other in given:
            if at and other.untyped_storage().data_ptr() == at:
                base = self.seen(other)
                offset = base.offset + tensor.data_ptr() - other.data_ptr()
                found = _Seen(number, base.root, offset)
                break
        self._remember(tensor, found)
        return number

    def _named(self, value: Any) -> Any:
        """The value with `_Seen` in place of tensors."""
        if isinstance(value, Tensor):
            return self.seen(value)
        if type(value) is TensorDescriptor:
            return _SeenTiles(self.seen(value.base), tiles_at(0, value))
        if type(value) in (list, tuple):
            return type(value)(map(self._named, value))
        if next(_tensors(value), None) is not None:
            self.failed = f"it gives a {type(value).__name__} with tensors to PyTorch"
        return value


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


# --- the function ---------------------------------------------------------------------------------


def _written(trace: _Trace, results: Sequence[Tensor | None]) -> Any:
    """A function of the trace's inputs that does what was traced; -1 if there can be none.

    It gives None, before it does anything, for tensors that do not begin at multiples of 16 bytes:
    kernels were compiled for those.
    """
    numbers = [None if t is None else trace.seen(t).number for t in results]
    if trace.failed:
        return -1
    source = _Source(trace, numbers)
    exec(compile(source.text(), "<prepared>", "exec"), source.names)
    return source.names["prepared"]


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

    def __init__(self, trace: _Trace, results: list[int | None]) -> None:
        self._trace, self._results, self._bound = trace, results, dict[int, str]()
        self.names: dict[str, Any] = {
            "empty": torch.empty, "empty_strided": torch.empty_strided, "stream_of": stream_of,
            "tiles_at": tiles_at, "uint8": torch.uint8, "device": trace.device,
        }  # fmt: skip
        # which tensors are needed as such, of which only the address, and the steps for that
        self._tensors, self._addresses = {n for n in results if n is not None}, set[int]()
        steps: list[_Step] = []
        for step in reversed(trace.steps):
            if step.kind == "view" and self._tensors.isdisjoint(step.makes):
                continue
            if step.kind == "new":
                if not {*step.makes} & (self._tensors | self._addresses):
                    continue
            elif step.kind == "launch":
                self._addresses.update(seen.root for seen in step.reads)
            else:
                self._tensors.update(seen.number for seen in step.reads)
            steps.append(step)
        self._steps = steps[::-1]
        first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        for at, step in enumerate(self._steps):
            read = [number for seen in step.reads for number in (seen.number, seen.root)]
            for number in (*step.makes, *read):
                first.setdefault(number, at)
                self._last[number] = at
        alone = [n for n in trace.new if n in self._addresses and n not in self._tensors]
        sizes = {n: trace.new[n].untyped_storage().nbytes() for n in alone}
        self._places, self._room = places({n: (sizes[n], first[n], self._last[n]) for n in alone})

    def text(self) -> str:
        """The source."""
        inputs = range(self._trace.inputs)
        lines = [
            f"def prepared({', '.join(f't{n}' for n in inputs)}):",
            f"    stream = stream_of({self._trace.device.index or 0})",
        ]
        if all(step.kind != "launch" for step in self._steps):
            lines.pop()
        given = [n for n in inputs if n in self._addresses]
        lines += [f"    p{n} = t{n}.data_ptr()" for n in given]
        if given:
            lines.append(f"    if ({' | '.join(f'p{n}' for n in given)}) & 15: return None")
        if self._places:
            lines.append(f"    room = empty({self._room}, dtype=uint8, device=device)")
            lines.append("    room_at = room.data_ptr()")
        held = {*inputs, *self._results}
        for at, step in enumerate(self._steps):
            lines += [f"    {line}" for line in self._lines(step)]
            last = [n for n, end in self._last.items() if end == at and n in self._tensors]
            gone = [f"t{n}" for n in last if n not in held]
            lines += [f"    del {', '.join(gone)}"] if gone else []
        made = ", ".join("None" if n is None else f"t{n}" for n in self._results)
        return "\n".join([*lines, f"    return [{made}]", ""])

    def _lines(self, step: _Step) -> list[str]:
        if step.kind == "launch":
            run, function, metadata = map(self._constant, step.function)
            values = ", ".join(map(self._address, step.args))
            grid = ", ".join(map(str, step.grid))
            return [launch_text(run, grid, function, metadata, values)]
        made = ", ".join(f"t{n}" for n in step.makes)
        if step.kind == "new":
            (number,) = step.makes
            if number in self._places:
                return []
            new = self._trace.new[number]
            how = f"dtype={self._constant(new.dtype)}, device=device"
            call = f"empty_strided({tuple(new.shape)}, {new.stride()}, {how})"
        else:
            given = [self._value(value) for value in step.args]
            given += [f"{name}={self._value(value)}" for name, value in step.kwargs.items()]
            call = f"{self._constant(step.function)}({', '.join(given)})"
        if not step.makes:
            return [call]
        asked = [n for n in step.makes if n in self._addresses]
        addresses = [f"p{n} = t{n}.data_ptr()" for n in asked]
        return [f"{made}{',' if step.several else ''} = {call}", *addresses]

    def _address(self, value: Any) -> str:
        if isinstance(value, _SeenTiles):
            return f"tiles_at({self._address(value.base)}, {self._constant(value.like)})"
        if not isinstance(value, _Seen):
            return self._value(value)
        if value.root in self._places:
            return f"room_at + {self._places[value.root] + value.offset}"
        return f"p{value.root} + {value.offset}" if value.offset else f"p{value.root}"

    def _value(self, value: Any) -> str:
        if isinstance(value, _Seen):
            return f"t{value.number}"
        if type(value) in (list, tuple):
            parts = "".join(f"{self._value(part)}, " for part in value)
            return f"[{parts}]" if type(value) is list else f"({parts})"
        return repr(value) if type(value) in (int, bool, type(None)) else self._constant(value)

    def _constant(self, value: Any) -> str:
        """A name for a value that is no tensor."""
        assert not isinstance(value, Tensor)
        name = self._bound.setdefault(id(value), f"c{len(self._bound)}")
        self.names[name] = value
        return name
