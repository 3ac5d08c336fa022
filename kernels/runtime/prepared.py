# mypy: disable-error-code="no-untyped-call"
"""Traces of tensor functions, replayed as straight-line code without their Python.

An operator's forward or backward pass is a few launches and products, and ten times as much Python
that decides on tiles, strides and types. Those decisions depend only on the shapes, types and
constants of the call. After `TRACE_AFTER` calls of a kind the next one is traced, and later calls
run a function generated from the trace: the same PyTorch calls, the same launches, the same
arguments and bits. Tensors that only kernels read share one arena, each while it is live, and are
passed to launches as addresses.
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
from evofeed.kernels.runtime.launching import tma_tiles_at
from evofeed.kernels.runtime.private_apis import launch_source, raw_stream, tf32_allowed

TRACE_AFTER = 8  # calls of a kind; tracing takes as long as a dozen calls save
MAX_KINDS = 512  # of calls of one function; sizes are part of a kind
ALIGNMENT = 512  # bytes, as in PyTorch's allocator

Results = Sequence["Tensor | None"]
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


class Prepared:
    """`compute(tensors, *constants)`, which must depend on nothing else, and its traces.

    Args:
        compute: returns tensors or None; draws no random numbers, and enters no context that
            changes anything for PyTorch.
    """

    def __init__(self, compute: Callable[..., Results]) -> None:
        self._compute = compute
        self._by_kind: dict[Any, Any] = {}  # generated functions, or counts of calls
        _caches.append(self._by_kind)

    def __call__(
        self, kind: Any, tensors: Sequence[Tensor | None], *constants: Any, **shared: Any
    ) -> Results:
        """The results; `kind` is the call's `kind_of`, None for a call with `shared` arguments."""
        cached = self._by_kind.get(kind, 0)
        if type(cached) is not int:
            results: Results | None = cached(*tensors)
            if results is not None:
                return results
        elif kind is None or cached < 0:
            pass
        elif cached < TRACE_AFTER:
            if len(self._by_kind) >= MAX_KINDS:
                self._by_kind.clear()
            self._by_kind[kind] = cached + 1
        elif _traceable(tensors):
            inputs = _distinct(tensors)
            with _Trace(inputs) as trace:
                results = self._compute(inputs, *constants)
            if kind in self._by_kind:  # else `forget_traces` was called meanwhile
                self._by_kind[kind] = _generated(trace, results)
            return results
        return self._compute(tensors, *constants, **shared)


def _traceable(tensors: Sequence[Tensor | None]) -> bool:
    """True if this call can be traced.

    Kernels are specialised on addresses that are multiples of 16 bytes, and later calls of the
    kind may have such; and in a CUDA graph capture nothing may be launched for the first time.
    """
    if any(t.data_ptr() & 15 for t in tensors if t is not None):
        return False
    first = tensors[0]
    assert first is not None
    return not (first.is_cuda and torch.cuda.is_current_stream_capturing())


_caches: list[dict[Any, Any]] = []


def forget_traces() -> None:
    """Drops all traces, when something besides their arguments that calls depend on changes."""
    for cache in _caches:
        cache.clear()


def kind_of(tensors: Sequence[Tensor | None], *constants: Any) -> Any:
    """Everything that a call's Python depends on; None where the Python must run."""
    if launching.on_new_launch or launching.observer.notify or torch.is_grad_enabled():
        return None
    first = tensors[0]
    assert first is not None
    device = first.get_device()
    if device >= 0 and device != torch.cuda.current_device():
        return None
    parts: list[Any] = [
        constants, device, autocast_type(first.device.type), tf32_allowed(), one_pass.in_pass(),
    ]  # fmt: skip
    for t in tensors:
        if t is None:
            parts.append(None)
        elif type(t) in _PLAIN:
            parts += type(t), t.shape, t.stride(), t.dtype
        else:
            return None
    return tuple(parts)


def _distinct(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tensors, with a new view in place of each that occurred before."""
    seen_ids: set[int] = set()
    distinct: list[Tensor | None] = []
    for t in tensors:
        distinct.append(t.detach() if t is not None and id(t) in seen_ids else t)
        seen_ids.add(id(t))
    return distinct


# --- the trace ------------------------------------------------------------------------------------

_ALLOCATIONS = frozenset({torch.empty, torch.empty_like, Tensor.new_empty, torch.empty_strided})
_QUERIES = frozenset({  # equal for all calls of a kind; addresses are read by launches only
    "__get__", "__len__", "data_ptr", "dim", "element_size", "get_device", "is_complex",
    "is_contiguous", "is_floating_point", "is_inference", "nelement", "numel", "size",
    "storage_offset", "stride",
})  # fmt: skip
_OPERATORS = "add and div floordiv lshift matmul mod mul or pow rshift sub truediv xor"
_IN_PLACE = frozenset({"__set__", "__setitem__", *(f"__i{name}__" for name in _OPERATORS.split())})


class _Entry(NamedTuple):
    """A tensor of a trace: its number, the number of the tensor in whose memory it starts (its own
    if the memory is new), and the offset from that tensor's address in bytes."""

    number: int
    root: int
    offset: int


@dataclass(slots=True)
class _Step:
    """One call or launch.

    Attributes:
        line: its source, in which `t3` is a tensor and `<3+64>` an address at an offset.
        reads: tensors among its arguments.
        makes: numbers of its new tensors.
        kind: `call`; `view`, which only makes views; `new`, which only allocates; `launch`,
            which only reads addresses.
    """

    line: str
    reads: list[_Entry]
    makes: list[int]
    kind: str


class _Trace(TorchFunctionMode):
    """A recording of the tensor operations inside, in order.

    Args:
        inputs: all different; they are numbered first, None too.

    Attributes:
        steps: the calls and launches.
        names: values of the names in their lines.
        bytes: sizes of tensors that are only allocated, by number.
        failed: why it cannot be replayed; empty if it can.
    """

    def __init__(self, inputs: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.steps: list[_Step] = []
        self.bytes: dict[int, int] = {}
        self.failed = ""
        self.inputs = self._count = len(inputs)
        self._tensors: dict[int, tuple[weakref.ref[Tensor], _Entry]] = {}  # live ones, by `id`
        for number, tensor in enumerate(inputs):
            if tensor is not None:
                self.device = tensor.device
                self._record(tensor, _Entry(number, number, 0))
        self._autocast = autocast_type(self.device.type)
        self._bound: dict[int, str] = {}
        self.names: dict[str, Any] = {
            "empty": torch.empty, "raw_stream": raw_stream, "tma_tiles_at": tma_tiles_at,
            "uint8": torch.uint8, "device": self.device,
        }  # fmt: skip

    def __enter__(self) -> _Trace:
        launching.observer.notify = self._record_launch
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        launching.observer.notify = None
        super().__exit__(*failure)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs the call and records it; launches inside belong to it."""
        launching.observer.notify = None
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            launching.observer.notify = self._record_launch
        self._record_call(func, args, kwargs or {}, result)
        return result

    def entry(self, tensor: Tensor) -> _Entry:
        """The entry of a tensor; the trace fails if it has none."""
        entry = self._tensors.get(id(tensor))
        if entry is None:
            self.failed = f"it reads a tensor {list(tensor.shape)} that is not an input"
            return _Entry(-1, -1, 0)
        return entry[1]

    def _record(self, tensor: Tensor, entry: _Entry) -> None:
        forget = partial(self._tensors.pop, id(tensor))  # its id may be reused
        self._tensors[id(tensor)] = weakref.ref(tensor, forget), entry

    def _record_call(self, function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        inputs, results = list(_tensors((args, kwargs))), list(_tensors(result))
        name, in_sequence = getattr(function, "__name__", ""), isinstance(result, list | tuple)
        writes = "out" in kwargs or name in _IN_PLACE or (name[-1:] == "_" != name[-2:-1])
        created = [t for t in results if id(t) not in self._tensors]
        if not created and not writes:  # returns an argument, or a query
            if not results and result is not None and name not in _QUERIES:
                self.failed = f"the result of {name} may depend on values of a tensor"
            return
        if created and len(created) < (len(result) if in_sequence else 1):
            self.failed = f"{name} returns more than new tensors"
        if autocast_type(self.device.type) is not self._autocast:
            self.failed = f"{name} is called with another autocast setting"
        if name == "split" and len(args) == 2:  # saves three Python calls
            function, axis = Tensor.split_with_sizes, kwargs.get("dim", 0)
            args, kwargs = (args[0], tuple(t.shape[axis] for t in results), axis), {}
        makes, kind = [self._add(t, inputs) for t in created], "call"
        if created and not writes:
            if function in _ALLOCATIONS and created[0].device == self.device:
                kind, (tensor,) = "new", created
                function, args = torch.empty_strided, (tuple(tensor.shape), tensor.stride())
                kwargs = {"dtype": tensor.dtype, "device": self.device}
                self.bytes[makes[0]] = tensor.untyped_storage().nbytes()
            elif all(self.entry(t).root != self.entry(t).number for t in created):
                kind = "view"
        sources = [self._text(value) for value in args]
        sources += [f"{key}={self._text(value)}" for key, value in kwargs.items()]
        line = f"{self._constant(function)}({', '.join(sources)})"
        if makes:
            line = f"{', '.join(f't{n}' for n in makes)}{',' * in_sequence} = {line}"
        reads = [] if kind == "new" else [self.entry(t) for t in inputs]
        self.steps.append(_Step(line, reads, makes, kind))

    def _record_launch(self, launcher: Any, grid: tuple[int, ...], values: Sequence[Any]) -> None:
        bases = [value.base if type(value) is TensorDescriptor else value for value in values]
        reads = [self.entry(base) for base in bases if isinstance(base, Tensor)]
        if not grid:  # interpreted
            line = f"{self._constant(launcher)}({', '.join(map(self._text, values))})"
            self.steps.append(_Step(line, reads, [], "call"))
            return
        run, function, metadata = map(self._constant, launcher)
        sources = ", ".join(map(self._address, values))
        line = launch_source(run, ", ".join(map(str, grid)), function, metadata, sources)
        self.steps.append(_Step(line, reads, [], "launch"))

    def _add(self, tensor: Tensor, inputs: list[Tensor]) -> int:
        """The number of a new tensor; a view, if it is in the memory of one of the inputs."""
        number, self._count = self._count, self._count + 1
        address, entry = tensor.untyped_storage().data_ptr(), _Entry(number, number, 0)
        for source in inputs:
            if address and source.untyped_storage().data_ptr() == address:
                base = self.entry(source)
                offset = base.offset + tensor.data_ptr() - source.data_ptr()
                entry = _Entry(number, base.root, offset)
                break
        self._record(tensor, entry)
        return number

    def _address(self, value: Any) -> str:
        """Source of an argument of a launch."""
        if type(value) is TensorDescriptor:
            like = self._constant(tma_tiles_at(0, value))
            return f"tma_tiles_at({self._address(value.base)}, {like})"
        if not isinstance(value, Tensor):
            return self._text(value)
        entry = self.entry(value)
        return f"<{entry.root}+{entry.offset}>"

    def _text(self, value: Any) -> str:
        """Source of a value."""
        if isinstance(value, Tensor):
            return f"t{self.entry(value).number}"
        if type(value) in (list, tuple):
            parts = "".join(f"{self._text(part)}, " for part in value)
            return f"[{parts}]" if type(value) is list else f"({parts})"
        if next(_tensors(value), None) is not None:
            self.failed = f"it passes a {type(value).__name__} with tensors to PyTorch"
        return repr(value) if type(value) in (int, bool, type(None)) else self._constant(value)

    def _constant(self, value: Any) -> str:
        """A name for a value that is not a tensor."""
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


def assign_offsets(tensors: Mapping[int, tuple[int, int, int]]) -> tuple[dict[int, int], int]:
    """Offsets in an arena, and its size, for tensors by (size in bytes, first use, last use).

    Tensors that are live at the same time do not overlap; the largest are placed first, at the
    lowest offset that fits.
    """
    placed: list[tuple[int, int, int, int]] = []  # start, end, first use, last use
    offsets: dict[int, int] = {}
    for number, (size, first, last) in sorted(tensors.items(), key=lambda item: -item[1][0]):
        size = -(-size // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, end, first_use, last_use in sorted(placed):
            if first_use <= last and first <= last_use and start < offset + size:
                offset = max(offset, end)
        placed.append((offset, offset + size, first, last))
        offsets[number] = offset
    return offsets, max((end for _, end, _, _ in placed), default=0)


def _generated(trace: _Trace, results: Sequence[Tensor | None]) -> Any:
    """A function of the trace's inputs that replays it; -1 if it cannot be replayed.

    It returns None, without doing anything, for tensors that do not start at multiples of 16
    bytes, which the kernels were specialised on.
    """
    numbers = [None if t is None else trace.entry(t).number for t in results]
    if trace.failed:
        return -1
    exec(compile(_source(trace, numbers), "<prepared>", "exec"), trace.names)
    return trace.names["prepared"]


def _source(trace: _Trace, results: list[int | None]) -> str:
    """Source of a function that replays the trace."""
    # numbers of the tensors and of the addresses that are needed, and the steps that make them
    tensors, addresses = {n for n in results if n is not None}, set[int]()
    steps: list[_Step] = []
    for step in reversed(trace.steps):
        needed = {"view": tensors, "new": tensors | addresses}.get(step.kind)
        if needed is not None and needed.isdisjoint(step.makes):
            continue
        if step.kind == "launch":
            addresses.update(entry.root for entry in step.reads)
        else:
            tensors.update(entry.number for entry in step.reads)
        steps.insert(0, step)
    first, last = dict[int, int](), dict[int, int]()
    for index, step in enumerate(steps):
        numbers = [number for entry in step.reads for number in (entry.number, entry.root)]
        for number in (*step.makes, *numbers):
            first.setdefault(number, index)
            last[number] = index
    unread = [n for n in trace.bytes if n in addresses and n not in tensors]
    offsets, size = assign_offsets({n: (trace.bytes[n], first[n], last[n]) for n in unread})

    def substitute(match: re.Match[str]) -> str:
        root, offset = map(int, match.groups())
        base = "arena" if root in offsets else f"p{root}"
        offset += offsets.get(root, 0)
        return f"{base} + {offset}" if offset else base

    inputs = range(trace.inputs)
    lines = [f"def prepared({', '.join(f't{n}' for n in inputs)}):"]
    if any(step.kind == "launch" for step in steps):
        lines.append(f"stream = raw_stream({trace.device.index or 0})")
    pointers = [n for n in inputs if n in addresses]
    lines += [f"p{n} = t{n}.data_ptr()" for n in pointers]
    if pointers:
        lines.append(f"if ({' | '.join(f'p{n}' for n in pointers)}) & 15: return None")
    if offsets:
        lines += [
            f"memory = empty({size}, dtype=uint8, device=device)",
            "arena = memory.data_ptr()",
        ]
    for index, step in enumerate(steps):
        if step.kind == "new" and step.makes[0] in offsets:
            continue
        lines.append(re.sub(r"<(\d+)\+(-?\d+)>", substitute, step.line))
        lines += [f"p{n} = t{n}.data_ptr()" for n in step.makes if n in addresses]
        dead = [n for n, end in last.items() if end == index and n in tensors]
        dead = [n for n in dead if n not in {*inputs, *results}]
        lines += [f"del {', '.join(f't{n}' for n in dead)}"] if dead else []
    values = ", ".join("None" if n is None else f"t{n}" for n in results)
    return "\n    ".join([*lines, f"return [{values}]"]) + "\n"
