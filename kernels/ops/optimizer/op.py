# mypy: disable-error-code="no-untyped-call"
"""Clipping, Adam, moving average and the 16-bit copy of the weights in one pass over memory.

All weights are in one flat buffer (as in the trainer), so no table of pointers is
copied to the device. Learning rate, number of updates and clip factor are scalars on
the device: a step never waits for the GPU and can be captured in a CUDA graph. A
gradient that is not finite changes nothing.

Bytes per weight: gradient 4 (or 2), weight, moments and average 16 read and 16
written, 16-bit copy 2 written.
"""

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels.ops.optimizer.reference import adam_ema_step, global_norm
from evofeed.kernels.ops.optimizer.triton import (
    adam_update_kernel,
    scalars_kernel,
    square_sum_kernel,
)
from evofeed.kernels.runtime.backend import sm_count, triton, usable


@dataclass(eq=False, repr=False)
class FlatBuffers:
    """Flat buffers of an optimizer, and its scalars on their device.

    The buffers are the caller's and are changed in place, without a kernel (CPU,
    no Triton) by a plain version.

    Attributes:
        param: weights, float32 `[N]`.
        grad: gradients, float32 or 16-bit `[N]`.
        updates: finite updates so far, a float64 scalar on the device (from a checkpoint, or new).
        max_norm: gradients longer than this are scaled down to it; infinite for no clipping.
        ema_decay: decay of the weights' moving average.
        rate: learning rate, a float32 scalar on the device; fill it before a step.

    Raises:
        UnsupportedShape: a buffer has another length or a type no kernel takes.
        KernelError: a buffer is on another device.
    """

    param: Tensor
    grad: Tensor
    _: KW_ONLY
    updates: Tensor = None  # type: ignore[assignment]  # a new one
    max_norm: float = math.inf
    ema_decay: float = 0.999

    def __post_init__(self) -> None:
        buffers = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        none_yet = torch.zeros((), dtype=torch.float64, device=self.param.device)
        self.updates = buffers.pop("updates", none_yet)
        _check(self.param, buffers)
        self.rate = torch.zeros((), device=self.param.device)


def _check(param: Tensor, buffers: dict[str, Tensor]) -> None:
    """Raises unless the kernels can read and write the buffers."""
    low = (torch.bfloat16, torch.float16)
    for name, buffer in buffers.items():
        if buffer.shape != param.shape or not buffer.is_contiguous() or param.dim() != 1:
            raise UnsupportedShape(
                f"{name} is {list(buffer.shape)}, param {list(param.shape)}: all buffers "
                "must be flat, contiguous and of one length"
            )
        dtypes = {"low": low, "grad": (torch.float32, *low)}.get(name, (torch.float32,))
        if buffer.dtype not in dtypes:
            allowed = ", ".join(str(dtype)[6:] for dtype in dtypes)
            raise UnsupportedShape(f"{name} is {buffer.dtype}; it may be {allowed}")
        if buffer.device != param.device:
            raise KernelError(f"{name} is on {buffer.device}, param on {param.device}: move one")


@dataclass(eq=False, repr=False)
class FusedAdamEMA(FlatBuffers):
    """Clipped Adam and the weights' moving average over flat buffers, four launches a step.

    Attributes:
        exp_avg, exp_avg_sq: Adam's moments, float32 `[N]`.
        ema: moving average of the weights, float32 `[N]`, or None for none.
        low: a 16-bit copy of the weights to keep up to date, or None.
        beta1, beta2, eps: Adam's.
        plain: True to use PyTorch operators also where a kernel could run.
    """

    exp_avg: Tensor
    exp_avg_sq: Tensor
    ema: Tensor | None = None
    low: Tensor | None = None
    _: KW_ONLY
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-5
    plain: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        device = self.param.device
        self._scalars = torch.zeros(5, device=device)
        self._partial = torch.zeros(min(1024, 4 * sm_count(self.param)), device=device)

    def gradient_norm(self) -> Tensor:
        """Norm of the gradient as it is now, a float32 scalar on the device."""
        return global_norm([self.grad])

    def step(self) -> Tensor:
        """Updates all buffers; returns the norm before clipping, a scalar on the device."""
        if self.plain or not usable(self.param, self.grad):
            return adam_ema_step(self)
        norm = self._find_scalars()
        N = self.param.numel()
        # A separate tail: loads are wide only if the length is a multiple of 16.
        aligned = N // 16 * 16
        for part in (slice(0, aligned), slice(aligned, N)):
            self._update(part)
        return norm

    def _find_scalars(self) -> Tensor:
        """Fills `_scalars`, for all parts; returns the norm of the gradient."""
        N, G = self.param.numel(), self._partial.numel()
        square_sum_kernel[(G,)](self.grad, self._partial, N, N // 16 * 16, BLOCK=4096, num_warps=8)
        logs = (math.log2(beta) if beta > 0 else -1e4 for beta in (self.beta1, self.beta2))
        scalars_kernel[(1,)](
            self._partial, G, self.rate, self.updates, self._scalars, self.max_norm, *logs,
            BLOCK=triton.next_power_of_2(G),
        )  # fmt: skip
        return self._scalars[0]

    def _update(self, part: slice) -> None:
        size = part.stop - part.start
        if size == 0:
            return
        buffers = (self.param, self.grad, self.exp_avg, self.exp_avg_sq, self.ema, self.low)
        adam_update_kernel[(triton.cdiv(size, 1024),)](
            *(None if buffer is None else buffer[part] for buffer in buffers),
            self._scalars, size, 1 - self.beta1, 1 - self.beta2, self.eps, 1 - self.ema_decay,
            HAS_EMA=self.ema is not None, HAS_LOW=self.low is not None, BLOCK=1024, num_warps=4,
        )  # fmt: skip
