# mypy: disable-error-code="no-untyped-call"
"""What a function of tensors does, written down: calls of PyTorch and launches, in order.

A tensor is a number here. A view knows the tensor whose memory it is in, its root, and how many
bytes behind that one's address it begins, so that a launch needs the root's address alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from evofeed.kernels.runtime import launching
from evofeed.kernels.runtime.backend import TensorDescriptor, autocast_type

_ALLOCATIONS = frozenset({torch.empty, torch.empty_like, Tensor.new_empty, torch.empty_strided})
_QUESTIONS = frozenset({  # whose answers all calls of a kind share; addresses, a launch asks for
    "__get__", "__len__", "data_ptr", "dim", "element_size", "get_device", "is_complex",
    "is_contiguous", "is_floating_point", "is_inference", "nelement", "numel", "size",
    "storage_offset", "stride",
})  # fmt: skip
_OPERATORS = "add and div floordiv lshift matmul mod mul or pow rshift sub truediv xor"
_IN_PLACE = frozenset({"__set__", "__setitem__", *(f"__i{name}__" for name in _OPERATORS.split())})


class Seen(NamedTuple):
    """A tensor of a trace.

    Attributes:
        number: of the tensor.
        root: number of the tensor in whose memory it begins; its own, if that is new.
        offset: bytes from the root's address to its own.
    """

    number: int
    root: int
    offset: int


class SeenTiles(NamedTuple):
    """Tiles of a tensor, as `launching.tiles_in` gives them.

    Attributes:
        base: the tensor.
        like: they, of no memory.
    """

    base: Seen
    like: Any


@dataclass(slots=True)
class Step:
    """One call or launch.

    Attributes:
        function: what is called; of a launch what Triton's launcher takes again.
        args, kwargs: of the call, `Seen` in place of tensors; of a launch its values.
        reads: the tensors among them.
        makes: numbers of the results; tensors known before are not among them.
        several: whether they come in a tuple or list.
        kind: `call`; `view`, which only makes views; `new`, which only reserves memory; `launch`.
        grid: of a launch.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: list[Seen]
    makes: list[int]
    kind: str
    several: bool = False
    grid: tuple[int, ...] = ()


@dataclass(slots=True)
class New:
    """Memory that a step reserves: all that is needed to reserve it again."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int


@dataclass(slots=True)
class Trace:
    """What was done, in order.

    Attributes:
        steps: the calls and launches.
        new: what the steps that only reserve memory reserve, by the tensor's number.
        tensors: those seen that are still there, by their `id`.
        failed: why it cannot be repeated; empty if it can.
        inputs: how many there are.
        device: where they are.
        autocast: what autocast computes in there.
    """

    steps: list[Step] = field(default_factory=list)
    new: dict[int, New] = field(default_factory=dict)
    tensors: dict[int, tuple[weakref.ref[Tensor], Seen]] = field(default_factory=dict)
    failed: str = ""
    inputs: int = 0
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a constant
    autocast: torch.dtype | None = None
    _count: int = 0

    def give(self, tensors: Sequence[Tensor | None]) -> None:
        """The function's inputs, all different: numbers count them, None too."""
        self.inputs = self._count = len(tensors)
        for number, tensor in enumerate(tensors):
            if tensor is not None:
                self.device = tensor.device
                self._remember(tensor, Seen(number, number, 0))
        self.autocast = autocast_type(self.device.type)

    def _remember(self, tensor: Tensor, seen: Seen) -> None:
        forget = partial(self.tensors.pop, id(tensor))  # another may get its id
        self.tensors[id(tensor)] = weakref.ref(tensor, forget), seen

    def seen(self, tensor: Tensor) -> Seen:
        """What is known of a tensor."""
        found = self.tensors.get(id(tensor))
        if found is None:
            self.failed = f"it reads a tensor {list(tensor.shape)} that is no input"
            return Seen(-1, -1, 0)
        return found[1]

    def call(self, function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Writes down a call of PyTorch with its result."""
        given, results = list(_tensors((args, kwargs))), list(_tensors(result))
        name, several = getattr(function, "__name__", ""), isinstance(result, list | tuple)
        writes = "out" in kwargs or name in _IN_PLACE or (name[-1:] == "_" != name[-2:-1])
        fresh = [t for t in results if id(t) not in self.tensors]
        if not fresh and not writes:  # one of its arguments as it was, or a question
            if not results and result is not None and name not in _QUESTIONS:
                self.failed = f"what {name} answers may depend on the numbers in a tensor"
            return
        if fresh and len(fresh) < (len(result) if several else 1):
            self.failed = f"{name} gives more than new tensors"
        if autocast_type(self.device.type) is not self.autocast:
            self.failed = f"{name} is called with autocast set otherwise"
        if name == "split" and len(args) == 2:  # three calls of Python
            function, axis = Tensor.split_with_sizes, kwargs.get("dim", 0)
            args, kwargs = (args[0], tuple(t.shape[axis] for t in results), axis), {}
        makes = [self._add(t, given) for t in fresh]
        kind = "call"
        if fresh and not writes:
            if function in _ALLOCATIONS and fresh[0].device == self.device:
                kind, (made,) = "new", fresh
                self.new[makes[0]] = New(
                    tuple(made.shape), made.stride(), made.dtype, made.untyped_storage().nbytes()
                )
            elif all(self.seen(t).root != self.seen(t).number for t in fresh):
                kind = "view"
        named = {key: self._named(value) for key, value in kwargs.items()}
        reads = [self.seen(t) for t in given]
        put = tuple(map(self._named, args))
        self.steps.append(Step(function, put, named, reads, makes, kind, several))

    def launch(self, ready: Any, grid: tuple[int, ...], values: Sequence[Any]) -> None:
        """Writes down a launch."""
        put = tuple(map(self._named, values))
        reads = [value.base if isinstance(value, SeenTiles) else value for value in put]
        reads = [value for value in reads if isinstance(value, Seen)]
        self.steps.append(Step(ready, put, {}, reads, [], "launch", False, grid))

    def _add(self, tensor: Tensor, given: list[Tensor]) -> int:
        """A new tensor, seen as a view where it is in the memory of one that was given."""
        number, self._count = self._count, self._count + 1
        at, found = tensor.untyped_storage().data_ptr(), Seen(number, number, 0)
        for other in given:
            if at and other.untyped_storage().data_ptr() == at:
                base = self.seen(other)
                offset = base.offset + tensor.data_ptr() - other.data_ptr()
                found = Seen(number, base.root, offset)
                break
        self._remember(tensor, found)
        return number

    def _named(self, value: Any) -> Any:
        """The value with `Seen` in place of tensors."""
        if isinstance(value, Tensor):
            return self.seen(value)
        if type(value) is TensorDescriptor:
            return SeenTiles(self.seen(value.base), launching.tiles_at(0, value))
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


class traced(TorchFunctionMode):  # noqa: N801 - reads as a statement: `with traced(inputs) as trace`
    """Writes down what is done with tensors inside: `with traced(inputs) as trace`."""

    def __init__(self, inputs: Sequence[Tensor | None]) -> None:
        super().__init__()
        self._trace = Trace()
        self._trace.give(inputs)

    def __enter__(self) -> Trace:
        launching.watched.by = self._trace.launch
        super().__enter__()
        return self._trace

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
            launching.watched.by = self._trace.launch
        self._trace.call(func, args, kwargs or {}, result)
        return result
