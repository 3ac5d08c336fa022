# mypy: disable-error-code="no-untyped-call"
"""The ops as `torch.library` operators, so that `torch.compile` takes them whole.

Eager code never comes here: it calls the `torch.autograd.Function` directly, which
costs a third of a custom operator's dispatch. While PyTorch compiles, `operator`
puts two operators of one schema into the graph instead, `evofeed::NAME` and
`evofeed::NAME_backward`:

    (Tensor[] tensors, str call) -> Tensor[]

`call` is everything about the call that is no tensor, pickled. The result is every
tensor that the computation made, each memory once, as an operator must: what it
returned or saved is a view of one of these or of an input, and `_Layout` says which.

Nobody writes down result shapes a second time. The fake (shape only) computation of
an operator is its own code on fake tensors, with no kernel launched.
"""

from __future__ import annotations

import base64
import contextlib
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from evofeed.kernels.backend import nothing_launched

__all__ = ["Operator", "named", "operator"]

_LIBRARY = torch.library.Library("evofeed", "DEF")
_SCHEMA = "(Tensor[] tensors, str call) -> Tensor[]"


class _Computed(NamedTuple):
    """What a computation gave: tensors or None, and something else about the call."""

    results: Sequence[Tensor | None]
    extra: Any = None


Compute = Callable[[list[Tensor], str], _Computed]


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
        owners: for each tensor made, the result to take it from, and whether as it is
            (else as the flat memory under it).
        extra: the computation's own.
    """

    results: tuple[_View | None, ...]
    owners: tuple[tuple[int, bool], ...]
    extra: Any

    def views(self, inputs: Sequence[Tensor], made: Sequence[Tensor]) -> list[Tensor | None]:
        return [None if view is None else view.of(inputs, made) for view in self.results]


def _geometry(t: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(t.shape), t.stride(), int(t.storage_offset())


def _is_whole(t: Tensor) -> bool:
    return t.storage_offset() == 0 and t.numel() * t.itemsize == t.untyped_storage().nbytes()


def _flat(t: Tensor) -> Tensor:
    return t.as_strided((t.untyped_storage().nbytes() // t.itemsize,), (1,), 0)


def _describe(inputs: Sequence[Tensor], computed: _Computed) -> _Layout:
    """Results as views of inputs and of new memory."""
    places: dict[int, _View] = {}
    for number, given in enumerate(inputs):
        places[given.untyped_storage()._cdata] = _View(False, number, _geometry(given))
    views: list[_View | None] = []
    owners: list[tuple[int, bool]] = []
    for number, t in enumerate(computed.results):
        if t is None:
            views.append(None)
            continue
        key, shape = t.untyped_storage()._cdata, _geometry(t)
        if key not in places:
            whole = _is_whole(t)
            places[key] = _View(True, len(owners), shape if whole else _geometry(_flat(t)))
            owners.append((number, whole))
        home = places[key]
        views.append(home._replace(geometry=None if home.geometry == shape else shape))
    return _Layout(tuple(views), tuple(owners), computed.extra)


class _Op:
    """One operator: real and fake computation, and the layout of its results."""

    def __init__(self, name: str, compute: Compute) -> None:
        self._compute = compute
        _LIBRARY.define(name + _SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, self._run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"evofeed::{name}", self._fake, lib=_LIBRARY)
        self.packet = getattr(torch.ops.evofeed, name)
        self._layouts: Callable[..., _Layout] = lru_cache(maxsize=4096)(self._find_layout)

    def __call__(self, tensors: list[Tensor], call: str) -> list[Tensor | None]:
        return self.layout(tensors, call).views(tensors, self.packet(tensors, call))

    def layout(self, tensors: Sequence[Tensor], call: str) -> _Layout:
        """Where the results of this call lie."""
        return self._layouts(call, tuple(_meta(t) for t in tensors))

    def _find_layout(self, call: str, metas: tuple[Any, ...]) -> _Layout:
        with _disable_current_modes(), FakeTensorMode(), nothing_launched():
            tensors = [_static(*meta) for meta in metas]
            return _describe(tensors, self._computed(tensors, call))

    def _computed(self, tensors: list[Tensor], call: str) -> _Computed:
        # A compiled graph runs with autocast off, and its casts are in the graph already.
        kinds = {t.device.type for t in tensors}
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            return self._compute(tensors, call)

    def _run(self, tensors: list[Tensor], call: str) -> list[Tensor]:
        results = self._computed(tensors, call).results
        made = []
        for number, whole in self.layout(tensors, call).owners:
            result = results[number]
            assert result is not None
            made.append(result if whole else _flat(result))
        return made

    def _fake(self, tensors: list[Tensor], call: str) -> list[Tensor]:
        with nothing_launched():
            return self._run([_static(*_meta(t)) for t in tensors], call)


def _meta(t: Tensor) -> tuple[Any, ...]:
    # int(): a kernel is compiled for its sizes, so a symbolic size becomes a number here
    sizes = tuple(int(n) for n in t.shape), tuple(int(n) for n in t.stride())
    return (*sizes, t.dtype, t.device)


def _static(shape: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


# --- what is no tensor, as a string -------------------------------------------------------------


def _encode(value: Any, tensors: list[Tensor]) -> str:
    """`value` pickled; tensors in it are appended to `tensors` and stand as their numbers."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, part: Any) -> int | None:
            if not isinstance(part, Tensor):
                return None
            tensors.append(part)
            return len(tensors) - 1

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return base64.b64encode(buffer.getvalue()).decode()


def _decode(text: str, tensors: Sequence[Any]) -> Any:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, number: Any) -> Any:
            return tensors[number]

    return Unpickler(io.BytesIO(base64.b64decode(text))).load()


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
        self._forward = _Op(name, self._compute_forward)
        self._backward = _Op(f"{name}_backward", self._compute_backward)
        torch.library.register_autograd(
            f"evofeed::{name}", self._differentiate, setup_context=self._save, lib=_LIBRARY
        )
        _operators[name] = self

    def apply(self, *arguments: Any) -> Any:
        """As the function's own."""
        if torch.compiler.is_compiling():
            from evofeed.kernels.traced import call  # imports the compiler: two seconds

            # None is not allowed through
            present = [(n, a) for n, a in enumerate(arguments) if a is not None]
            return call(self.name, len(arguments), *present)
        return self.function.apply(*arguments)

    def call(self, *arguments: Any) -> Tensor:
        """As the function's own, through the two operators."""
        tensors: list[Tensor] = []
        call = _encode(arguments, tensors)
        result = self._forward(tensors, call)[0]
        assert result is not None
        return result

    def _compute_forward(self, tensors: list[Tensor], call: str) -> _Computed:
        """The result, what is saved, and the tensors among the context's attributes."""
        context, found = _Context(), list[Tensor]()
        result = self.function.forward(context, *_decode(call, tensors))
        attributes = _encode(context.attributes(), found)
        saved = context.saved_tensors
        return _Computed([result, *saved, *found], (len(saved), attributes))

    def _save(self, ctx: Any, inputs: tuple[list[Tensor], str], output: list[Tensor]) -> None:
        tensors, call = inputs
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
        ctx.arguments = _decode(call, [_Slot(n) for n in range(len(tensors))])
        ctx.count = len(tensors)
        ctx.set_materialize_grads(False)

    def _differentiate(self, ctx: Any, grads: list[Tensor]) -> tuple[list[Tensor | None], None]:
        grad = ctx.result.of((), grads)
        given = self._backward([grad, *ctx.saved_tensors], ctx.rest)
        found: list[Tensor | None] = [None] * ctx.count
        for argument, value in zip(ctx.arguments, given, strict=True):
            if isinstance(argument, _Slot):
                found[argument.number] = value
        return found, None

    def _compute_backward(self, tensors: list[Tensor], call: str) -> _Computed:
        places, count, attributes = _decode(call, [])
        grad, *bases = tensors
        views = [None if place is None else place.of(bases, ()) for place in places]
        context = _Context(views[:count], **_decode(attributes, views[count:]))
        grads = self.function.backward(context, grad)
        return _Computed(grads if isinstance(grads, tuple) else (grads,))


class _Slot(NamedTuple):
    """Stands for a tensor argument."""

    number: int


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
