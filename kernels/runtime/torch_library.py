# mypy: disable-error-code="no-untyped-call"
"""Operators with a gradient: eagerly a `torch.autograd.Function`, compiled a `torch.library` op.

Each operator is a subclass of `Operator` with its forward and backward pass as functions from
tensors to new tensors. Eager code calls `torch.autograd.Function` directly, which costs a third
of a custom operator's dispatch. While PyTorch compiles, `evofeed::NAME` and
`evofeed::NAME_backward` go into the graph instead:

    (Tensor[] tensors, <options>) -> Tensor[]

The shapes of their results come from the same functions with fake tensors, for which nothing is
launched. There an empty tensor stands for None: lists of optional tensors have no gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from evofeed.base.errors import KernelError
from evofeed.kernels.runtime.backend import Scope, without_autocast
from evofeed.kernels.runtime.one_pass import unshared
from evofeed.kernels.runtime.prepared import Prepared, kind_of
from evofeed.kernels.runtime.private_apis import (
    as_non_view,
    function_apply,
    saved_tensor_hooks_active,
    storage_id,
)

Tensors = Sequence[Any]
Results = Sequence["Tensor | None"]
Dtypes = Sequence["torch.dtype | None"]
NAMESPACE = "evofeed"
"""The operators' namespace in `torch.ops`."""


as_operators = Scope()
"""Calls without gradients are operators of `torch.library` inside, for dispatch modes."""


def uses_custom_ops() -> bool:
    """True if calls must be `torch.library` operators: for a compiler or a dispatch mode."""
    if torch.compiler.is_compiling():
        return True
    return as_operators.depth > 0 and not torch.is_grad_enabled()


class Operator:
    """One operator. A subclass names it, `class _Norm(Operator, name="layer_norm")`.

    Attributes:
        options: types and names of the arguments besides tensors, as in a `torch.library` schema.
        saved_inputs: indices of the tensors that the backward pass reads.
        saves_result: whether it reads the result too.
    """

    options: ClassVar[str] = ""
    saved_inputs: ClassVar[tuple[int, ...]] = ()
    saves_result: ClassVar[bool] = False
    compiled: ClassVar[Any]
    """The overload that `torch.compile` sees."""
    _function: ClassVar[Any]
    _function_with_input: ClassVar[Any]
    _alone: ClassVar[Prepared]

    @staticmethod
    def forward(tensors: Tensors, *options: Any) -> Results:
        """The result, followed by the other tensors that the backward pass reads.

        All are new, or inputs themselves; no two may share memory.
        """
        raise NotImplementedError

    @staticmethod
    def backward(tensors: Tensors, *options: Any) -> Results:
        """The gradient of every tensor of `forward`, or None; the caller casts them.

        Gradients of tensors that are None are dropped.

        Args:
            tensors: the result's gradient, the saved inputs, the result if it is saved, and the
                other tensors that `forward` returned.
            options: those of `forward`.
        """
        raise NotImplementedError

    def __init_subclass__(cls, name: str) -> None:
        cls.forward = staticmethod(_contiguous(cls.forward))  # type: ignore[method-assign]
        cls.backward = staticmethod(_contiguous(cls.backward))  # type: ignore[method-assign]
        cls._function = _eager(cls)
        cls._function_with_input = _eager(cls, with_input=True)
        forward = cls.forward
        cls._alone = Prepared(lambda tensors, *options: forward(tensors, *options)[:1])
        _register(cls, name)

    @classmethod
    def apply(cls, options: tuple[Any, ...], *tensors: Tensor | None, others: Any = None) -> Tensor:
        """The result.

        Args:
            options: in the order of `cls.options`.
            tensors: in the order of `forward`; the first is never None.
            others: for an input that is sharded over GPUs, only eagerly: the exchange between
                them, which `forward` and `backward` then take.
        """
        first = tensors[0]
        assert first is not None
        with without_autocast(first):
            if others is not None:
                result: Tensor = cls._function.apply(options, others, *tensors)
            elif uses_custom_ops():
                inputs = _without_none(tensors, tensors)
                result = cls.compiled(inputs, *options)[0]
            elif not torch.is_grad_enabled():
                (alone,) = cls._alone(kind_of(tensors, options), tensors, *options)
                assert alone is not None
                result = alone
            else:
                result = function_apply(cls._function)(options, None, *tensors)
        return result

    @classmethod
    def apply_with_input(
        cls, options: tuple[Any, ...], *tensors: Tensor | None, others: Any = None
    ) -> tuple[Tensor, Tensor]:
        """The result and the first tensor, for callers that use the input again.

        Autograd would add the two gradients of an input that is used twice in a separate kernel.
        Here `backward` takes the gradient of that later use as `later` and adds it to its own.
        """
        first = tensors[0]
        assert first is not None
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return cls.apply(options, *tensors, others=others), first
        with without_autocast(first):
            results: tuple[Tensor, Tensor] = function_apply(cls._function_with_input)(
                options, others, *tensors
            )
        return results


def _contiguous(compute: Callable[..., Results]) -> Callable[..., Results]:
    """A forward or backward pass with its weights of one axis made contiguous, as kernels read."""

    @functools.wraps(compute)
    def run(tensors: Results, *options: Any, **others: Any) -> Results:
        dense = [t.contiguous() if t is not None and t.dim() == 1 else t for t in tensors]
        return compute(dense, *options, **others)

    return run


def _saved_tensors(op: type[Operator]) -> Callable[[Results, Results], list[Tensor | None]]:
    """Selects the tensors that the backward pass reads from an operator's inputs and results."""
    saved_inputs, first = op.saved_inputs, 0 if op.saves_result else 1

    def select(tensors: Results, results: Results) -> list[Tensor | None]:
        return [*[tensors[n] for n in saved_inputs], *results[first:]]

    return select


def _dtypes(tensors: Results) -> list[torch.dtype | None]:
    return [None if t is None else t.dtype for t in tensors]


def _cast(gradients: Results, dtypes: Dtypes) -> list[Tensor | None]:
    """The gradients of all tensors, in their types."""
    return [
        g if g is None or g.dtype is dtype else None if dtype is None else g.to(dtype)
        for g, dtype in zip(gradients, dtypes, strict=True)
    ]


# --- eager ----------------------------------------------------------------------------------------
# Called about once a launch: names are looked up when an operator is defined, not at every call.


def _backward(op: type[Operator]) -> Callable[..., Results]:
    """A whole backward pass: from gradients and saved tensors to the gradients of all inputs."""
    differentiate: Any = op.backward

    def backward(
        tensors: Results, options: tuple[Any, ...], dtypes: tuple[Any, ...], **shared: Any
    ) -> Results:
        grad, later, *saved = tensors
        keywords = shared if later is None else {"later": later, **shared}
        return _cast(differentiate((grad, *saved), *options, **keywords), dtypes)

    return backward


def _eager(op: type[Operator], with_input: bool = False) -> type[torch.autograd.Function]:
    """The operator for autograd; `with_input`, it returns its first tensor too.

    Inputs that are sharded over GPUs are computed with the `others`, and never traced.
    """
    compute, differentiate = Prepared(op.forward), Prepared(_backward(op))
    select_saved = _saved_tensors(op)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, options: tuple[Any, ...], others: Any, *tensors: Tensor | None
        ) -> Any:  # fmt: skip
            ctx.set_materialize_grads(False)
            ctx.shared = {} if others is None else {"others": others}
            kind = None if ctx.shared else kind_of(tensors, options)
            results = compute(kind, tensors, *options, **ctx.shared)
            assert results[0] is not None
            result = as_non_view(results[0])
            ctx.save_for_backward(*select_saved(tensors, (result, *results[1:])))
            # hooks may return other tensors
            ctx.kind = None if saved_tensor_hooks_active() else kind
            ctx.call = options, tuple(_dtypes(tensors))
            return (result, tensors[0]) if with_input else result

        @staticmethod
        def backward(ctx: Any, grad: Tensor | None, later: Tensor | None = None) -> Any:
            if torch.is_grad_enabled():  # `create_graph=True`: that gradient would be missing
                raise KernelError(
                    "fused kernels have no second derivatives: call to_torch(model) for them"
                )
            if grad is None:  # of shared parts on all GPUs
                return None, None, later, *(None for _ in ctx.call[1][1:])
            tensors = grad, later, *ctx.saved_tensors
            if ctx.shared:
                kind = None
            elif ctx.kind is None:
                kind = kind_of(tensors, ctx.call)
            else:
                kind = kind_of(tensors[:2], ctx.kind)
            return None, None, *differentiate(kind, tensors, *ctx.call, **ctx.shared)

    return Function


# --- compiled -------------------------------------------------------------------------------------


def _register(op: type[Operator], name: str) -> None:
    """Defines `evofeed::name`, its backward operator, and its gradient."""
    _define(name, op, op.forward)
    _define(f"{name}_backward", op, op.backward)
    op.compiled = getattr(getattr(torch.ops, NAMESPACE), name).default
    compiled_backward = getattr(getattr(torch.ops, NAMESPACE), f"{name}_backward").default
    select_saved = _saved_tensors(op)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        tensors, *ctx.options = inputs
        ctx.save_for_backward(*select_saved(tensors, output))
        ctx.dtypes = _dtypes(_with_none(tensors))
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
        gradients = compiled_backward([grads[0], *ctx.saved_tensors], *ctx.options)
        return _cast(_with_none(gradients), ctx.dtypes), *(None for _ in ctx.options)

    torch.library.register_autograd(f"{NAMESPACE}::{name}", differentiate, setup_context=setup)


def _define(name: str, op: type[Operator], compute: Callable[..., Results]) -> None:
    def run(tensors: list[Tensor], *options: Any) -> list[Tensor]:
        with without_autocast(tensors[0]), unshared():  # a compiler may reuse the results
            results = _without_none(compute(_with_none(tensors), *options), tensors)
        storages = {storage_id(t) for t in tensors}  # custom operators must not return views
        outputs = []
        for t in results:
            outputs.append(t.clone() if storage_id(t) in storages else t)
            storages.add(storage_id(t))
        return outputs

    schema = f"(Tensor[] tensors{', ' if op.options else ''}{op.options}) -> Tensor[]"
    torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=(), schema=schema)
    torch.library.register_fake(f"{NAMESPACE}::{name}", run)


def _with_none(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    return [None if t.dim() == 1 and t.shape[0] == 0 else t for t in tensors]


def _without_none(tensors: Results, like: Results) -> list[Tensor]:
    """The tensors, with an empty one on the device of `like[0]` for each None."""
    first = like[0]
    assert first is not None
    return [first.new_empty(0) if t is None else t for t in tensors]
