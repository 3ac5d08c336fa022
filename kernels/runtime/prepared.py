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

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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

    def __call__(
        self, kind: Any, tensors: Sequence[Tensor | None], *constants: Any, **shared: Any
    ) -> Results:
        """The results; `kind` is what `kind_of` says of the call, None for one that is `shared`."""
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
        return self._compute(tensors, *constants, **shared)


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


@dataclass(slots=True)
class _Step:
    """One call or launch.

    Attributes:
        line: its source, in which `t3` is a tensor and `<3+64>` an address behind a tensor's.
        reads: the tensors in it.
        makes: numbers of the results; tensors known before are not among them.
        kind: `call`; `view`, which only makes views; `new`, which only reserves memory; `launch`,
            which reads addresses alone.
    """

    line: str
    reads: list[_Seen]
    makes: list[int]
    kind: str


class _Trace(TorchFunctionMode):
    """What is done with tensors inside, in order.

    Args:
        inputs: all different; numbers count them, None too.

    Attributes:
        steps: the calls and launches.
        names: what their lines name.
        bytes: sizes of what is only reserved, by number.
        failed: why it cannot be repeated; empty if it can.
    """

    def __init__(self, inputs: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.steps: list[_Step] = []
        self.bytes: dict[int, int] = {}
        self.failed = ""
        self.inputs = self._count = len(inputs)
        self._tensors: dict[int, tuple[weakref.ref[Tensor], _Seen]] = {}  # still there, by `id`
        for number, tensor in enumerate(inputs):
            if tensor is not None:
                self.device = tensor.device
                self._remember(tensor, _Seen(number, number, 0))
        self._autocast = autocast_type(self.device.type)
        self._bound: dict[int, str] = {}
        self.names: dict[str, Any] = {
            "empty": torch.empty, "stream_of": stream_of, "tiles_at": tiles_at,
            "uint8": torch.uint8, "device": self.device,
        }  # fmt: skip

    def __enter__(self) -> _Trace:
        launching.watched.by = self._launch
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        launching.watched.by = None
        super().__exit__(*failure)

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
            self.failed = f"it reads a tensor {list(tensor.shape)} that is not an input"
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
        makes, kind = [self._add(t, given) for t in fresh], "call"
        if fresh and not writes:
            if function in _ALLOCATIONS and fresh[0].device == self.device:
                kind, (made,) = "new", fresh
                function, args = torch.empty_strided, (tuple(made.shape), made.stride())
                kwargs = {"dtype": made.dtype, "device": self.device}
                self.bytes[makes[0]] = made.untyped_storage().nbytes()
            elif all(self.seen(t).root != self.seen(t).number for t in fresh):
                kind = "view"
        put = [self._text(value) for value in args]
        put += [f"{key}={self._text(value)}" for key, value in kwargs.items()]
        line = f"{self._constant(function)}({', '.join(put)})"
        if makes:
            line = f"{', '.join(f't{n}' for n in makes)}{',' * several} = {line}"
        reads = [] if kind == "new" else [self.seen(t) for t in given]
        self.steps.append(_Step(line, reads, makes, kind))

    def _launch(self, ready: Any, grid: tuple[int, ...], values: Sequence[Any]) -> None:
        bases = [value.base if type(value) is TensorDescriptor else value for value in values]
        reads = [self.seen(base) for base in bases if isinstance(base, Tensor)]
        if not grid:  # interpreted
            line = f"{self._constant(ready)}({', '.join(map(self._text, values))})"
            self.steps.append(_Step(line, reads, [], "call"))
            return
        run, function, metadata = map(self._constant, ready)
        put = ", ".join(map(self._address, values))
        line = launch_text(run, ", ".join(map(str, grid)), function, metadata, put)
        self.steps.append(_Step(line, reads, [], "launch"))

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

    def _address(self, value: Any) -> str:
        """Source of a launch's value."""
        if type(value) is TensorDescriptor:
            return f"tiles_at({self._address(value.base)}, {self._constant(tiles_at(0, value))})"
        if not isinstance(value, Tensor):
            return self._text(value)
        seen = self.seen(value)
        return f"<{seen.root}+{seen.offset}>"

    def _text(self, value: Any) -> str:
        """Source of a value."""
        if isinstance(value, Tensor):
            return f"t{self.seen(value).number}"
        if type(value) in (list, tuple):
            parts = "".join(f"{self._text(part)}, " for part in value)
            return f"[{parts}]" if type(value) is list else f"({parts})"
        if next(_tensors(value), None) is not None:
            self.failed = f"it gives a {type(value).__name__} with tensors to PyTorch"
        return repr(value) if type(value) in (int, bool, type(None)) else self._constant(value)

    def _constant(self, value: Any) -> str:
        """A name for a value that is no tensor."""
        name = self._bound.setdefault(id(value), f"c{len(self._bound)}")
        self.names[name] = value
        return name


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


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


def _written(trace: _Trace, results: Sequence[Tensor | None]) -> Any:
    """A function of the trace's inputs that does what was traced; -1 if there can be none.

    It gives None, before it does anything, for tensors that do not begin at multiples of 16 bytes:
    kernels were compiled for those.
    """
    numbers = [None if t is None else trace.seen(t).number for t in results]
    if trace.failed:
        return -1
    exec(compile(_source(trace, numbers), "<prepared>", "exec"), trace.names)
    return trace.names["prepared"]


def _source(trace: _Trace, results: list[int | None]) -> str:
    """Source of a function that does what was traced."""
    # which tensors are needed as such, of which only the address, and the steps for that
    tensors, addresses = {n for n in results if n is not None}, set[int]()
    steps: list[_Step] = []
    for step in reversed(trace.steps):
        wanted = {"view": tensors, "new": tensors | addresses}.get(step.kind)
        if wanted is not None and wanted.isdisjoint(step.makes):
            continue
        if step.kind == "launch":
            addresses.update(seen.root for seen in step.reads)
        else:
            tensors.update(seen.number for seen in step.reads)
        steps.insert(0, step)
    first, last = dict[int, int](), dict[int, int]()
    for at, step in enumerate(steps):
        read = [number for seen in step.reads for number in (seen.number, seen.root)]
        for number in (*step.makes, *read):
            first.setdefault(number, at)
            last[number] = at
    alone = [n for n in trace.bytes if n in addresses and n not in tensors]
    rooms, size = places({n: (trace.bytes[n], first[n], last[n]) for n in alone})

    def put(match: re.Match[str]) -> str:
        root, offset = map(int, match.groups())
        at, offset = ("room_at", rooms[root] + offset) if root in rooms else (f"p{root}", offset)
        return f"{at} + {offset}" if offset else at

    inputs = range(trace.inputs)
    lines = [f"def prepared({', '.join(f't{n}' for n in inputs)}):"]
    if any(step.kind == "launch" for step in steps):
        lines.append(f"stream = stream_of({trace.device.index or 0})")
    given = [n for n in inputs if n in addresses]
    lines += [f"p{n} = t{n}.data_ptr()" for n in given]
    if given:
        lines.append(f"if ({' | '.join(f'p{n}' for n in given)}) & 15: return None")
    if rooms:
        lines += [f"room = empty({size}, dtype=uint8, device=device)", "room_at = room.data_ptr()"]
    for at, step in enumerate(steps):
        if step.kind == "new" and step.makes[0] in rooms:
            continue
        lines.append(re.sub(r"<(\d+)\+(-?\d+)>", put, step.line))
        lines += [f"p{n} = t{n}.data_ptr()" for n in step.makes if n in addresses]
        gone = [n for n, end in last.items() if end == at and n in tensors]
        gone = [n for n in gone if n not in {*inputs, *results}]
        lines += [f"del {', '.join(f't{n}' for n in gone)}"] if gone else []
    made = ", ".join("None" if n is None else f"t{n}" for n in results)
    return "\n    ".join([*lines, f"return [{made}]"]) + "\n"
