"""What an op says about tensors that no kernel of it can take."""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.errors import KernelError, UnsupportedShape
from evofeed.kernels.runtime.backend import HAS_TRITON, usable

__all__ = ["check_device", "check_shape", "check_type"]

_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_type(op: str, x: Tensor, *, double: bool = False) -> None:
    """Raises `UnsupportedShape` unless `x` is of a type the op takes (`double`: or float64)."""
    if x.dtype in _TYPES or (double and x.dtype is torch.float64):
        return
    known = ", ".join(str(dtype)[6:] for dtype in (*_TYPES, *([torch.float64] if double else [])))
    raise UnsupportedShape(f"{op} takes {known}, not {str(x.dtype)[6:]}: convert its input")


def check_shape(op: str, name: str, tensor: Tensor | None, *shape: int) -> None:
    """Raises `UnsupportedShape` unless `tensor` is None or has this shape."""
    if tensor is not None and tensor.shape != shape:
        raise UnsupportedShape(
            f"{op}: {name} is {list(tensor.shape)}; beside the other inputs it must be "
            f"{list(shape)}"
        )


def check_device(op: str, *tensors: Tensor | None) -> None:
    """Raises `KernelError` unless kernels can run on these tensors."""
    if usable(*tensors):
        return
    if not HAS_TRITON:
        raise KernelError(f"{op} needs Triton, which is not installed: pip install triton")
    places = sorted({str(tensor.device) for tensor in tensors if tensor is not None})
    raise KernelError(
        f"{op} runs on one NVIDIA GPU, not on {', '.join(places)}: move its inputs to one GPU, or "
        f"call evofeed.kernels.reference.{op}"
    )
