# mypy: disable-error-code="no-untyped-call"
"""Operators with a gradient: eagerly a `torch.autograd.Function`, compiled a `torch.library` op.

Each operator is a subclass of `Operator` that writes its forward and backward pass as
functions from tensors to new tensors. Eager code calls `torch.autograd.Function` directly,
which costs a third of a custom operator's dispatch. While PyTorch compiles, `evofeed::NAME` and
`evofeed::NAME_backward` go into the graph instead:

    (Tensor[] tensors, <options>) -> Tensor[]

The shapes of their results are what the same functions give for tensors without numbers, for
which nothing is launched. A tensor that is None is an empty one there: lists of optional
tensors have no gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from evofeed.base.errors import KernelError
from evofeed.kernels.runtime.backend import Scope, without_autocast
from evofeed.kernels.runtime.one_pass import apart
from evofeed.kernels.runtime.prepared import Prepared, kind_of
from evofeed.kernels.runtime.private_apis import (
    function_apply,
    memory_of,
    no_view,
    saved_tensor_hooks_active,
)

Given = Sequence[Any]
Results = Sequence["Tensor | None"]
Kinds = Sequence["torch.dtype | None"]
NAMESPACE = "evofeed"
"""Of `torch.ops`."""


as_operators = Scope()
"""Calls without gradients are operators of `torch.library` inside: modes see each as one."""


def whole() -> bool:
    """Whether somebody looks at operators: a compiler, or a mode."""
    if torch.compiler.is_compiling():
        return True
    return as_operators.depth > 0 and not torch.is_grad_enabled()


class Operator:
    """One operator. A subclass names it, `class _Norm(Operator, name="layer_norm")`.

    Attributes:
        options: types and names of what is no tensor, as in a `torch.library` schema.
        kept: numbers of the tensors that the backward pass reads.
        keeps_result: whether it reads the result too.
    """

    options: ClassVar[str] = ""
    kept: ClassVar[tuple[int, ...]] = ()
    keeps_result: ClassVar[bool] = False
    compiled: ClassVar[Any]
    """The overload that `torch.compile` sees."""
    _function: ClassVar[Any]
    _function_and_input: ClassVar[Any]
    _alone: ClassVar[Prepared]

    @staticmethod
    def forward(tensors: Given, *options: Any) -> Results:
        """The result, and behind it what else the backward pass reads.

        All new, but for an input itself; no two may share memory.
        """
        raise NotImplementedError

    @staticmethod
    def backward(tensors: Given, *options: Any) -> Results:
        """The gradient of every tensor of `forward`, or None; they are cast to the tensors' types.

        That of a tensor that is None is left out.

        Args:
            tensors: the result's gradient, the inputs that are kept, the result if it is
                kept, and what else `forward` gave.
            options: those of `forward`.
        """
        raise NotImplementedError

    def __init_subclass__(cls, name: str) -> None:
        cls.forward = staticmethod(_of_dense(cls.forward))  # type: ignore[method-assign]
        cls.backward = staticmethod(_of_dense(cls.backward))  # type: ignore[method-assign]
        cls._function = _eager(cls)
        cls._function_and_input = _eager(cls, passes_on=True)
        forward = cls.forward
        cls._alone = Prepared(lambda tensors, *options: forward(tensors, *options)[:1])
        _register(cls, name)

    @classmethod
    def apply(cls, options: tuple[Any, ...], *tensors: Tensor | None, others: Any = None) -> Tensor:
        """The result.

        Args:
            options: in the order of `cls.options`.
            tensors: in the order that `forward` takes them; the first is never None.
            others: of a part of what several GPUs have, eagerly alone: what they say to each
                other in the middle, which `forward` and `backward` then take.
        """
        first = tensors[0]
        assert first is not None
        with without_autocast(first):
            if others is not None:
                result: Tensor = cls._function.apply(options, others, *tensors)
            elif whole():
                given = _without_none(tensors, tensors)
                result = cls.compiled(given, *options)[0]
            elif not torch.is_grad_enabled():
                result = cls._result(options, tensors)
            else:
                result = function_apply(cls._function)(options, None, *tensors)
        return result

    @classmethod
    def _result(cls, options: tuple[Any, ...], tensors: tuple[Tensor | None, ...]) -> Tensor:
        """Where no gradient will be asked for: nothing is kept."""
        (result,) = cls._alone(kind_of(tensors, options), tensors, *options)
        assert result is not None
        return result

    @classmethod
    def apply_and_pass_on(
        cls, options: tuple[Any, ...], *tensors: Tensor | None, others: Any = None
    ) -> tuple[Tensor, Tensor]:
        """The result and the first tensor: what is done with that later adds to its gradient here.

        Autograd would add the two gradients of an input that is used twice in a kernel of its
        own. `backward` takes the later one as `later`, and adds it where it writes its own.
        """
        first = tensors[0]
        assert first is not None
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return cls.apply(options, *tensors, others=others), first
        with without_autocast(first):
            results: tuple[Tensor, Tensor] = function_apply(cls._function_and_input)(
                options, others, *tensors
            )
        return results


def _of_dense(compute: Callable[..., Results]) -> Callable[..., Results]:
    """Gives a forward or backward pass its weights of one axis as kernels read them: contiguous."""

    @functools.wraps(compute)
    def run(tensors: Results, *options: Any, **others: Any) -> Results:
        dense = [t.contiguous() if t is not None and t.dim() == 1 else t for t in tensors]
        return compute(dense, *options, **others)

    return run


def _saver(op: type[Operator]) -> Callable[[Results, Results], list[Tensor | None]]:
    """What the backward pass reads, of an operator's inputs and of what it made."""
    kept, first = op.kept, 0 if op.keeps_result else 1

    def saved(tensors: Results, made: Results) -> list[Tensor | None]:
        return [*[tensors[n] for n in kept], *made[first:]]

    return saved


def _kinds(tensors: Results) -> list[torch.dtype | None]:
    return [None if t is None else t.dtype for t in tensors]


def _cast(gradients: Results, kinds: Kinds) -> list[Tensor | None]:
    """The gradients of all tensors, in their types."""
    return [
        g if g is None or g.dtype is kind else None if kind is None else g.to(kind)
        for g, kind in zip(gradients, kinds, strict=True)
    ]


def _first_order() -> None:
    """Refuses `create_graph=True`: the gradient's own gradient would silently be missing."""
    if torch.is_grad_enabled():
        raise KernelError("fused kernels have no second derivatives: call to_torch(model) for them")


# --- eager ----------------------------------------------------------------------------------------
# Called once a launch or so: names are looked up when an operator is defined, not at every call.


def _backward(op: type[Operator]) -> Callable[..., Results]:
    """All of a backward pass: from gradients and what was saved to the gradients of all inputs."""
    differentiate: Any = op.backward

    def backward(
        tensors: Results, options: tuple[Any, ...], kinds: tuple[Any, ...], **shared: Any
    ) -> Results:
        grad, later, *saved = tensors
        passed = shared if later is None else {"later": later, **shared}
        return _cast(differentiate((grad, *saved), *options, **passed), kinds)

    return backward


def _eager(op: type[Operator], passes_on: bool = False) -> type[torch.autograd.Function]:
    """The operator for autograd; one that passes its first tensor on gives that one too.

    What several GPUs have parts of is computed with the `others`, and never repeated.
    """
    compute, differentiate = Prepared(op.forward), Prepared(_backward(op))
    saved = _saver(op)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, options: tuple[Any, ...], others: Any, *tensors: Tensor | None
        ) -> Any:  # fmt: skip
            ctx.set_materialize_grads(False)
            ctx.shared = {} if others is None else {"others": others}
            kind = None if ctx.shared else kind_of(tensors, options)
            made = compute(kind, tensors, *options, **ctx.shared)
            assert made[0] is not None
            result = no_view(made[0])
            ctx.save_for_backward(*saved(tensors, (result, *made[1:])))
            # hooks may give back something else
            ctx.kind = None if saved_tensor_hooks_active() else kind
            ctx.call = options, tuple(_kinds(tensors))
            return (result, tensors[0]) if passes_on else result

        @staticmethod
        def backward(ctx: Any, grad: Tensor | None, later: Tensor | None = None) -> Any:
            _first_order()
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
    saved = _saver(op)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        tensors, *ctx.options = inputs
        ctx.save_for_backward(*saved(tensors, output))
        ctx.kinds = _kinds(_with_none(tensors))
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
        found = compiled_backward([grads[0], *ctx.saved_tensors], *ctx.options)
        return _cast(_with_none(found), ctx.kinds), *(None for _ in ctx.options)

    torch.library.register_autograd(f"{NAMESPACE}::{name}", differentiate, setup_context=setup)


def _define(name: str, op: type[Operator], compute: Callable[..., Results]) -> None:
    def run(tensors: list[Tensor], *options: Any) -> list[Tensor]:
        with without_autocast(tensors[0]), apart():  # a compiler may reuse what it gets
            made = _without_none(compute(_with_none(tensors), *options), tensors)
        memory = {memory_of(t) for t in tensors}  # a custom operator may return no part of one
        own = []
        for t in made:
            own.append(t.clone() if memory_of(t) in memory else t)
            memory.add(memory_of(t))
        return own

    schema = f"(Tensor[] tensors{', ' if op.options else ''}{op.options}) -> Tensor[]"
    torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=(), schema=schema)
    torch.library.register_fake(f"{NAMESPACE}::{name}", run)


def _with_none(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    return [None if t.dim() == 1 and t.shape[0] == 0 else t for t in tensors]


def _without_none(tensors: Results, beside: Results) -> list[Tensor]:
    """The tensors, an empty one on the device of the first of `beside` for each None."""
    first = beside[0]
    assert first is not None
    return [first.new_empty(0) if t is None else t for t in tensors]
