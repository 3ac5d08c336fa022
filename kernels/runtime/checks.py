"""Checks of an op's inputs, and the fallback to its plain version."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, ParamSpec

import torch
from torch import Tensor, nn

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels.runtime.backend import usable
from evofeed.kernels.runtime.private_apis import is_wrapper_subclass

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Parameters:
    """Parameters of an operator: a frozen dataclass with slots, in the operator's order.

    Attributes:
        biases: names of optional biases, each with the name of its layer's weight.
    """

    __slots__: tuple[str, ...] = ()
    biases: ClassVar[dict[str, str]] = {}

    def parts(self) -> list[Any]:
        """All parameters, None where a bias is missing."""
        return [getattr(self, name) for name in self.__slots__]

    def readable(self, x: Tensor) -> bool:
        """True if kernels run on x and can read these: none is quantised or sharded over ranks."""
        parts = [p for p in self.parts() if p is not None and type(p) is not nn.Parameter]
        wrapped = any(is_wrapper_subclass(part) for part in parts)
        return not wrapped and x.dtype is not torch.float64 and usable(x, self.parts()[0])

    def tensors(self) -> tuple[Any, ...]:
        """All parameters; missing biases are zeros that share one allocation."""
        missing = [bias for bias in self.biases if getattr(self, bias) is None]
        if not missing:
            return tuple(self.parts())
        weights = [getattr(self, self.biases[bias]) for bias in missing]
        sizes = [weight.shape[0] for weight in weights]
        zeros = torch.split(weights[0].new_zeros(sum(sizes)), sizes)
        biases = dict(zip(missing, zeros, strict=True))
        return tuple(biases.get(name, getattr(self, name)) for name in self.__slots__)


def check_type(op: str, x: Tensor) -> None:
    """Raises `UnsupportedShape` unless `x` has a float type."""
    if x.dtype in _TYPES:
        return
    accepted = ", ".join(str(dtype)[6:] for dtype in _TYPES)
    raise UnsupportedShape(f"{op} takes {accepted}, not {str(x.dtype)[6:]}: convert its input")


def check_shape(op: str, name: str, tensor: Tensor | None, *shape: int) -> None:
    """Raises `UnsupportedShape` unless `tensor` is None or has this shape."""
    if tensor is not None and tensor.shape != shape:
        raise UnsupportedShape(
            f"{op}: {name} is {list(tensor.shape)}; to match the other inputs it must be "
            f"{list(shape)}"
        )


def check_one_device(op: str, *tensors: Tensor | None) -> None:
    """Raises `KernelError` if the tensors are on several devices."""
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        names = sorted(map(str, devices))
        raise KernelError(f"{op}: its inputs are on {' and '.join(names)}: move them to one")


FusedResult = Tensor | None
"""The result of a fused op; None where no kernel takes its inputs."""
P = ParamSpec("P")


def falls_back_to(
    plain: Callable[P, Tensor], like: str = ""
) -> Callable[[Callable[..., FusedResult]], Callable[P, Tensor]]:
    """Makes an operator of a fused op and its plain version, which computes the op's other inputs.

    The operator has the signature, defaults and docstring of `plain`. The fused op has the same
    arguments and returns None where no kernel takes them.

    Args:
        plain: computes in the type of its inputs; the result is cast to that of its first input.
        like: name of an input whose type the result has instead, where it is passed.
    """
    name, first = plain.__name__, next(iter(inspect.signature(plain).parameters))

    def decorate(op: Any) -> Callable[P, Tensor]:
        op.__defaults__ = plain.__defaults__
        op.__kwdefaults__ = {**(op.__kwdefaults__ or {}), **(plain.__kwdefaults__ or {})}

        @functools.wraps(plain)
        def run(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            x: Any = args[0] if args else kwargs[first]
            check_type(name, x)
            result: FusedResult = op(*args, **kwargs)
            if result is not None:
                return result
            check_one_device(name, *_tensors((*args, *kwargs.values())))
            typed: Any = kwargs.get(like)
            plain_args: Any = [_in_type_of(x, arg) for arg in args]
            plain_kwargs: Any = {key: _in_type_of(x, value) for key, value in kwargs.items()}
            computed = plain(*plain_args, **plain_kwargs)
            return computed.to(x.dtype if typed is None else typed.dtype)

        run.__module__ = op.__module__
        return run

    return decorate


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    groups = [[*v.parts()] if isinstance(v, Parameters) else [v] for v in values]
    return [part for parts in groups for part in parts if isinstance(part, Tensor)]


def _in_type_of(x: Tensor, value: Any) -> Any:
    """Parameters cast to x's type for the plain version, unless autocast casts them."""
    if not isinstance(value, Parameters) or torch.is_autocast_enabled(x.device.type):
        return value
    named_parts = zip(value.__slots__, value.parts(), strict=True)
    return type(value)(**{n: None if t is None else t.to(x.dtype) for n, t in named_parts})
