# mypy: disable-error-code="no-untyped-call"
"""The ops as `torch.library` operators, so that `torch.compile` takes them whole.

Eager code never comes here: it calls the `torch.autograd.Function` directly, which
costs a third of a custom operator's dispatch. While PyTorch compiles, `operator`
puts two operators of one schema into the graph instead, `evofeed::NAME` and
`evofeed::NAME_backward`:

    (Tensor[] tensors, str call, int[] made) -> Tensor[]

`call` is everything about the call that is no tensor, pickled. The result is every
tensor that the computation made, each memory once, as an operator must: what it
returned or saved is a view of one of these or of an input. `_Layout` says which;
`made` is its share in the operator: the results to hand out.

Nobody writes down result shapes a second time. The fake (shape only) computation of
an operator is its own code on fake tensors, with no kernel launched.
"""

from __future__ import annotations

import base64
import contextlib
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from evofeed.kernels.runtime.backend import nothing_launched

__all__ = ["Operator", "named", "operator"]

_LIBRARY = torch.library.Library("evofeed", "DEF")
_SCHEMA = "(Tensor[] tensors, str call, int[] made) -> Tensor[]"


# From tensors and a call to results (tensors or None), and what else a trace must know;
# that may be left out where the last argument says so.
Compute = Callable[[list[Tensor], str, bool], tuple[Sequence["Tensor | None"], Any]]


class _View(NamedTuple):
    """Where a result lies: in an input, or in a tensor that the operator made."""

    made: bool
    number: int
    geometry: tuple[tuple[int, ...], tuple[int, ...], int] | None  # None: all of it, as it is

    def of(self, inputs: Sequence[Tensor], made: Sequence[Tensor]) -> Tensor:
        base = (made if self.made else inputs)[self.number]
        return base if self.geometry is None else base.as_strided(*self.geometry)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a computation's results lie in memory, found once per call and input shapes.

    Attributes:
        results: one view per result, None where the result is None.
        made: for each memory the computation made, the number n of a result in it: n if
            the result is all of it, ~n if the flat memory under the result is meant.
        extra: what else the computation told.
    """

    results: tuple[_View | None, ...]
    made: tuple[int, ...]
    extra: Any

    def views(self, inputs: Sequence[Tensor], made: Sequence[Tensor]) -> list[Tensor | None]:
        return [None if view is None else view.of(inputs, made) for view in self.results]


def _geometry(t: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(t.shape), t.stride(), int(t.storage_offset())


def _is_whole(t: Tensor) -> bool:
    return t.storage_offset() == 0 and t.numel() * t.itemsize == t.untyped_storage().nbytes()


def _flat(t: Tensor) -> Tensor:
    return t.as_strided((t.untyped_storage().nbytes() // t.itemsize,), (1,), 0)


def _describe(inputs: Sequence[Tensor], results: Sequence[Tensor | None], extra: Any) -> _Layout:
    """Results as views of inputs and of new memory."""
    places: dict[int, _View] = {}
    for number, given in enumerate(inputs):
        places[given.untyped_storage()._cdata] = _View(False, number, _geometry(given))
    views: list[_View | None] = []
    made: list[int] = []
    for number, t in enumerate(results):
        if t is None:
            views.append(None)
            continue
        key, shape = t.untyped_storage()._cdata, _geometry(t)
        if key not in places:
            whole = _is_whole(t)
            places[key] = _View(True, len(made), shape if whole else _geometry(_flat(t)))
            made.append(number if whole else ~number)
        home = places[key]
        views.append(home._replace(geometry=None if home.geometry == shape else shape))
    return _Layout(tuple(views), tuple(made), extra)


class _Op:
    """One operator: real and fake computation, and the layout of its results."""

    def __init__(self, name: str, compute: Compute) -> None:
        self._compute = compute
        _LIBRARY.define(name + _SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, self._run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"evofeed::{name}", self._fake, lib=_LIBRARY)
        self.packet = getattr(torch.ops.evofeed, name).default
        self._layouts: Callable[..., _Layout] = lru_cache(maxsize=4096)(self._find_layout)

    def __call__(self, tensors: list[Tensor], call: str) -> list[Tensor | None]:
        layout = self.layout(tensors, call)
        return layout.views(tensors, self.packet(tensors, call, layout.made))

    def layout(self, tensors: Sequence[Tensor], call: str) -> _Layout:
        """Where the results of this call lie."""
        return self._layouts(call, tuple(_meta(t) for t in tensors))

    def _find_layout(self, call: str, metas: tuple[Any, ...]) -> _Layout:
        with _disable_current_modes(), torch.no_grad(), FakeTensorMode(), nothing_launched():
            tensors = [_static(*meta) for meta in metas]
            with _no_autocast(tensors):
                return _describe(tensors, *self._compute(tensors, call, True))

    def _run(self, tensors: list[Tensor], call: str, made: list[int]) -> list[Tensor]:
        with _no_autocast(tensors):
            results, _ = self._compute(tensors, call, False)
        found = []
        for number in made:
            result = results[number if number >= 0 else ~number]
            assert result is not None
            found.append(result if number >= 0 else _flat(result))
        return found

    def _fake(self, tensors: list[Tensor], call: str, made: list[int]) -> list[Tensor]:
        with nothing_launched():
            return self._run([_static(*_meta(t)) for t in tensors], call, made)


@contextlib.contextmanager
def _autocast_off(device: str) -> Iterator[None]:
    with torch.autocast(device, enabled=False):
        yield


def _no_autocast(tensors: Sequence[Tensor]) -> contextlib.AbstractContextManager[None]:
    """A compiled graph runs with autocast off, and its casts are in the graph already."""
    device = tensors[0].device.type
    on = torch.is_autocast_enabled(device)
    return _autocast_off(device) if on else contextlib.nullcontext()


def _meta(t: Tensor) -> tuple[Any, ...]:
    # int(): a kernel is compiled for its sizes, so a symbolic size becomes a number here
    sizes = tuple(int(n) for n in t.shape), tuple(int(n) for n in t.stride())
    return (*sizes, t.dtype, t.device)


def _static(shape: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


# --- what is no tensor, as a string -------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Appends tensors it meets to `found`; they are pickled as their numbers in it."""

    def __init__(self, buffer: io.BytesIO, found: list[Tensor]) -> None:
        super().__init__(buffer)
        self._found = found

    def persistent_id(self, part: Any) -> int | None:
        if not isinstance(part, Tensor):
            return None
        self._found.append(part)
        return len(self._found) - 1


class _Slot(NamedTuple):
    """Stands for a tensor."""

    number: int


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, number: Any) -> Any:
        return _Slot(number)


def _encode(value: Any, tensors: list[Tensor]) -> str:
    """`value` pickled; tensors in it are appended to `tensors` and stand as their numbers."""
    buffer = io.BytesIO()
    _Pickler(buffer, tensors).dump(value)
    return base64.b64encode(buffer.getvalue()).decode()


def _decode(text: str, tensors: Sequence[Any]) -> Any:
    value, fill = _pattern(text)
    return value if fill is None else fill(tensors)


@lru_cache(maxsize=4096)
def _pattern(text: str) -> tuple[Any, Callable[[Sequence[Any]], Any] | None]:
    """The value with slots for tensors, and what fills them: every call of compiled code does."""
    value = _Unpickler(io.BytesIO(base64.b64decode(text))).load()
    return value, _filler(value)


def _filler(value: Any) -> Callable[[Sequence[Any]], Any] | None:
    """Puts tensors into the slots of tuples, lists, dictionaries and dataclasses; None: no slot."""
    kind = type(value)
    if kind is _Slot:
        return itemgetter(value.number)
    make: Callable[[list[Any]], Any] = kind
    if kind in (tuple, list):
        parts = list(value)
    elif kind is dict:
        keys, parts = list(value), list(value.values())
        make = lambda filled: dict(zip(keys, filled, strict=True))  # noqa: E731
    elif is_dataclass(kind):
        parts = [getattr(value, field.name) for field in fields(kind)]
        make = lambda filled: kind(*filled)  # noqa: E731
    else:
        return None
    fillers = [_filler(part) for part in parts]
    if not any(fillers):
        return None
    pairs = list(zip(fillers, parts, strict=True))
    return lambda tensors: make([part if fill is None else fill(tensors) for fill, part in pairs])


_operators: dict[str, Operator] = {}


def named(name: str) -> Operator:
    """The operator `evofeed::name`."""
    return _operators[name]


# --- a torch.autograd.Function as two operators -------------------------------------------------


class _Context:
    """Stands for the `ctx` of a `torch.autograd.Function`."""

    def __init__(self, saved: Sequence[Tensor | None] = (), **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.saved_tensors = tuple(saved)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "saved_tensors"}


class Operator:
    """Stands for a `torch.autograd.Function` of one result: `apply` works while compiling too."""

    def __init__(self, name: str, function: type[torch.autograd.Function]) -> None:
        self.name = name
        self.function: Any = function
        # What `function.apply` calls after a look for functorch at each argument: 10 us.
        self._apply: Any = super(torch.autograd.Function, function).apply  # type: ignore[misc]
        self._forward = _Op(name, self._compute_forward)
        self._backward = _Op(f"{name}_backward", self._compute_backward)
        torch.library.register_autograd(
            f"evofeed::{name}", self._differentiate, setup_context=self._save, lib=_LIBRARY
        )
        _operators[name] = self

    def apply(self, *arguments: Any) -> Any:
        """As the function's own."""
        if torch.compiler.is_compiling():
            from evofeed.kernels.runtime.traced import call  # imports the compiler: two seconds

            # None is not allowed through
            present = [(n, a) for n, a in enumerate(arguments) if a is not None]
            return call(self.name, len(arguments), *present)
        if torch._C._are_functorch_transforms_active():
            return self.function.apply(*arguments)
        return self._apply(*arguments)

    def call(self, *arguments: Any) -> Tensor:
        """As the function's own, through the two operators."""
        tensors: list[Tensor] = []
        call = _encode(arguments, tensors)
        result = self._forward(tensors, call)[0]
        assert result is not None
        return result

    def _compute_forward(
        self, tensors: list[Tensor], call: str, traced: bool
    ) -> tuple[list[Tensor | None], Any]:
        """The result, what is saved, and the tensors among the context's attributes."""
        context = _Context()
        results = [self.function.forward(context, *_decode(call, tensors))]
        results += context.saved_tensors
        if not traced:  # attributes hold inputs at most
            return results, None
        found: list[Tensor] = []
        attributes = _encode(context.attributes(), found)
        return [*results, *found], (len(context.saved_tensors), attributes)

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        tensors, call, _ = inputs
        layout = self._forward.layout(tensors, call)
        ctx.result, *views = layout.results
        bases = list(dict.fromkeys((v.made, v.number) for v in views if v is not None))
        ctx.save_for_backward(*((output if made else tensors)[n] for made, n in bases))
        # To the backward operator, what the forward one made and what it got are inputs alike.
        places = [
            None if v is None else _View(False, bases.index((v.made, v.number)), v.geometry)
            for v in views
        ]
        ctx.rest = _encode((places, *layout.extra), [])
        ctx.arguments, _ = _pattern(call)
        ctx.count = len(tensors)
        ctx.set_materialize_grads(False)

    def _differentiate(
        self, ctx: Any, grads: list[Tensor]
    ) -> tuple[list[Tensor | None], None, None]:
        grad = ctx.result.of((), grads)
        given = self._backward([grad, *ctx.saved_tensors], ctx.rest)
        found: list[Tensor | None] = [None] * ctx.count
        for argument, value in zip(ctx.arguments, given, strict=True):
            if isinstance(argument, _Slot):
                found[argument.number] = value
        return found, None, None

    def _compute_backward(
        self, tensors: list[Tensor], call: str, traced: bool
    ) -> tuple[Sequence[Tensor | None], Any]:
        del traced
        places, count, attributes = _decode(call, ())
        grad, *bases = tensors
        views = [None if place is None else place.of(bases, ()) for place in places]
        context = _Context(views[:count], **_decode(attributes, views[count:]))
        grads = self.function.backward(context, grad)
        return grads if isinstance(grads, tuple) else (grads,), None


def operator(name: str, *options: type) -> Callable[[type[torch.autograd.Function]], Operator]:
    """Class decorator of a `torch.autograd.Function`: what it leaves has `apply` and compiles too.

    Args:
        name: the operator's, `evofeed::name`.
        options: dataclasses among the function's arguments.
    """
    for cls in options:
        if not _pytree.is_namedtuple_class(cls) and cls not in _pytree.SUPPORTED_NODES:
            _pytree.register_dataclass(cls)
    return lambda function: Operator(name, function)
