"""What an op says about inputs that it cannot take, and what its plain version gets."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels.runtime.private_apis import is_of_several

Weights = TypeVar("Weights")

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Parameters:
    """Parameters of an operator: a frozen dataclass with slots, in the order that it takes them.

    Attributes:
        biases: of layers that may have none, each with its layer's weight.
    """

    __slots__: tuple[str, ...] = ()
    biases: ClassVar[dict[str, str]] = {}

    def readable(self) -> bool:
        """Whether kernels can read all of them: none is quantised, or spread over ranks."""
        parts = [getattr(self, name) for name in self.__slots__]
        given = [part for part in parts if part is not None and type(part) is not nn.Parameter]
        odd = [part for part in given if is_of_several(part)]
        return not odd

    def tensors(self) -> tuple[Any, ...]:
        """All of them; for biases that are None zeros, of one memory."""
        missing = [bias for bias in self.biases if getattr(self, bias) is None]
        if not missing:
            return tuple([getattr(self, name) for name in self.__slots__])
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


def in_type_of(x: Tensor, weights: Weights) -> Weights:
    """Weights for the plain version, which does not cast: in x's type, unless autocast is on."""
    if torch.is_autocast_enabled(x.device.type):
        return weights
    parts = {field.name: getattr(weights, field.name) for field in fields(weights)}  # type: ignore[arg-type]
    return type(weights)(**{n: None if t is None else t.to(x.dtype) for n, t in parts.items()})
