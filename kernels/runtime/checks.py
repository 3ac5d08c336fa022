"""What an op says about inputs that it cannot take, and what its plain version gets."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, ParamSpec

import torch
from torch import Tensor, nn

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels.runtime.backend import usable
from evofeed.kernels.runtime.private_apis import is_of_several

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Parameters:
    """Parameters of an operator: a frozen dataclass with slots, in the order that it takes them.

    Attributes:
        biases: of layers that may have none, each with its layer's weight.
    """

    __slots__: tuple[str, ...] = ()
    biases: ClassVar[dict[str, str]] = {}

    def parts(self) -> list[Any]:
        """All of them as they are."""
        return [getattr(self, name) for name in self.__slots__]

    def readable(self, x: Tensor) -> bool:
        """Whether kernels run on x, and can read these: none is quantised, or spread over ranks."""
        given = [p for p in self.parts() if p is not None and type(p) is not nn.Parameter]
        odd = [part for part in given if is_of_several(part)]
        return not odd and x.dtype is not torch.float64 and usable(x, self.parts()[0])

    def tensors(self) -> tuple[Any, ...]:
        """All of them; for biases that are None zeros, of one memory."""
        missing = [bias for bias in self.biases if getattr(self, bias) is None]
        if not missing:
            return tuple(self.parts())
        layers = [getattr(self, self.biases[bias]) for bias in missing]
        sizes = [layer.shape[0] for layer in layers]
        zeros = torch.split(layers[0].new_zeros(sum(sizes)), sizes)
        made = dict(zip(missing, zeros, strict=True))
        return tuple(made.get(name, getattr(self, name)) for name in self.__slots__)


def check_type(op: str, x: Tensor) -> None:
    """Raises `UnsupportedShape` unless `x` is of a float type."""
    if x.dtype in _TYPES:
        return
    known = ", ".join(str(dtype)[6:] for dtype in _TYPES)
    raise UnsupportedShape(f"{op} takes {known}, not {str(x.dtype)[6:]}: convert its input")


def check_shape(op: str, name: str, tensor: Tensor | None, *shape: int) -> None:
    """Raises `UnsupportedShape` unless `tensor` is None or has this shape."""
    if tensor is not None and tensor.shape != shape:
        raise UnsupportedShape(
            f"{op}: {name} is {list(tensor.shape)}; beside the other inputs it must be "
            f"{list(shape)}"
        )


def check_one_device(op: str, *tensors: Tensor | None) -> None:
    """Raises `KernelError` if the tensors are on several devices."""
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        places = sorted(map(str, devices))
        raise KernelError(f"{op}: its inputs are on {' and '.join(places)}: move them to one")


Made = Tensor | None
"""What a fused op gives: nothing where no kernel takes its inputs."""
Given = ParamSpec("Given")


def falls_back_to(
    plain: Callable[Given, Tensor], like: str = ""
) -> Callable[[Callable[..., Made]], Callable[Given, Tensor]]:
    """Makes an operator of a fused op and its plain version, which computes what the op does not.

    What the operator takes and what it means, `plain` says. The op has the same arguments, and is
    given the same defaults; it gives nothing where no kernel takes them.

    Args:
        plain: runs in the type it is given; the result has that of its first input.
        like: the input that has the result's type where it is given.
    """
    name, first = plain.__name__, next(iter(inspect.signature(plain).parameters))

    def decorate(op: Any) -> Callable[Given, Tensor]:
        op.__defaults__ = plain.__defaults__
        op.__kwdefaults__ = {**(op.__kwdefaults__ or {}), **(plain.__kwdefaults__ or {})}

        @functools.wraps(plain)
        def run(*args: Given.args, **options: Given.kwargs) -> Tensor:
            x: Any = args[0] if args else options[first]
            check_type(name, x)
            made: Made = op(*args, **options)
            if made is not None:
                return made
            check_one_device(name, *_tensors((*args, *options.values())))
            there: Any = options.get(like)
            given: Any = [_in_type_of(x, arg) for arg in args]
            named: Any = {key: _in_type_of(x, value) for key, value in options.items()}
            found = plain(*given, **named)
            return found.to(x.dtype if there is None else there.dtype)

        run.__module__ = op.__module__
        return run

    return decorate


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    whole = [[*v.parts()] if isinstance(v, Parameters) else [v] for v in values]
    return [part for parts in whole for part in parts if isinstance(part, Tensor)]


def _in_type_of(x: Tensor, value: Any) -> Any:
    """Weights for the plain version, which does not cast, in x's type, unless autocast is on."""
    if not isinstance(value, Parameters) or torch.is_autocast_enabled(x.device.type):
        return value
    parts = zip(value.__slots__, value.parts(), strict=True)
    return type(value)(**{n: None if t is None else t.to(x.dtype) for n, t in parts})
