"""All weights, gradients and moments of a model in five flat float32 buffers.

One buffer per role makes the gradient average one call, the norm one reduction,
Adam a handful of passes over memory, and a checkpoint a plain copy. Parameters
and their `.grad` become views, so model code needs no change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from evofeed.kernels import FusedAdamEMA
from evofeed.trainer.config import OptimConfig
from evofeed.trainer.run.precision import LossScale

LOSS_SCALE = "loss_scale"
"""Name of the loss scale's state in a checkpoint of a float16 run."""
_NORM_EPS = 1e-6  # as in torch's clip_grad_norm_: keeps the coefficient finite at norm 0
_ALIGN = 128  # elements; every parameter starts on a 512-byte boundary, good for any kernel


class FlatOptimizer:
    """Adam, clipping and moving average over flat buffers.

    Attributes:
        param: all weights; `module.parameters()` become views of it.
        grad: their gradients; `.grad` of every parameter is a view.
        exp_avg: Adam's first moment.
        exp_avg_sq: Adam's second moment.
        ema: moving average of `param`, starting as a copy.
        spans: start, length and shape of every parameter in the buffers, by name.
        updates: finite updates so far, a float64 scalar on the device.
        scale: factor of the loss before a backward pass, in float16 runs.
    """

    def __init__(
        self, module: nn.Module, config: OptimConfig, *, fused: bool = False,
        scale: LossScale | None = None,
    ) -> None:  # fmt: skip
        """Moves a module's weights, float32 and on one device, into flat buffers.

        `fused` clips, updates and averages in one kernel; `scale` is the loss scale of float16.
        """
        self.config, self.scale = config, scale
        self.spans = _layout(module)
        self._parameters = list(_trainable(module).values())
        size = sum(_padded(count) for _, count, _ in self.spans.values())
        device = next(module.parameters()).device
        self.param = torch.zeros(size, device=device)
        self.grad = torch.zeros_like(self.param)
        self.exp_avg = torch.zeros_like(self.param)
        self.exp_avg_sq = torch.zeros_like(self.param)
        self.updates = torch.zeros((), dtype=torch.float64, device=device)
        for (name, view), parameter in zip(self.views(self.param), self._parameters, strict=True):
            if parameter.dtype != torch.float32:
                raise ValueError(f"{name} is {parameter.dtype}; master weights must be float32")
            view.copy_(parameter.data)
            parameter.data = view
        self._grads = [view for _, view in self.views(self.grad)]
        for view, parameter in zip(self._grads, self._parameters, strict=True):
            parameter.grad = view
        # PyTorch takes 64 tensors a launch: small ones next to large ones leave the GPU idle.
        self._by_size = sorted(range(len(self._grads)), key=lambda n: -self._grads[n].numel())
        self._flat_grads = [view.view(-1) for view in self._grads]
        self.ema = self.param.clone()
        self._sample_sum = torch.zeros_like(self.grad) if config.clip == "per_example" else None
        self._adam = FusedAdamEMA(
            self.param, self.grad, self.exp_avg, self.exp_avg_sq, self.ema, updates=self.updates,
            beta1=config.beta1, beta2=config.beta2, eps=config.eps,
            max_norm=config.max_norm if config.clip == "global" else math.inf,
            ema_decay=config.ema_decay, plain=not fused,
        )  # fmt: skip

    def views(self, buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name and view of every parameter's part of a flat buffer."""
        for name, (start, count, shape) in self.spans.items():
            yield name, buffer[start : start + count].view(shape)

    def zero_grad(self) -> None:
        """Sets all gradients to zero."""
        self.grad.zero_()

    def backward(self, loss: Tensor) -> None:
        """Adds a loss's gradients to `grad`, all in a few launches at the end.

        `loss.backward()` would add them one by one to `.grad`, a kernel or two for each parameter.
        """
        # Autograd's own thread would wait for the GIL at each operator: 13 % of an eager step.
        with torch.autograd.set_multithreading_enabled(False):
            grads = torch.autograd.grad(self.scaled(loss), self._parameters, allow_unused=True)
        used = [n for n in self._by_size if grads[n] is not None]
        # A gradient with other strides than its target would make the launch add one by one.
        torch._foreach_add_(
            [self._flat_grads[n] for n in used], [grads[n].contiguous().view(-1) for n in used]
        )

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss times the loss scale, for a backward pass."""
        return loss if self.scale is None else loss * self.scale.factor

    def end_sample(self) -> None:
        """Clips the sample's gradient and adds it to the sum (only for `per_example`)."""
        if self._sample_sum is None:
            return
        self._unscale()
        coefficient = clip_coefficient(self._adam.gradient_norm(), self.config.max_norm)
        self._sample_sum.add_(self.grad.mul_(coefficient))
        self.grad.zero_()

    def gather(self, samples: int) -> None:
        """Divides the summed gradients of `samples` backward passes, in `grad`, to their mean."""
        if self._sample_sum is not None:
            self.grad.copy_(self._sample_sum)
            self._sample_sum.zero_()
        else:
            self._unscale()
        if samples > 1:
            self.grad.div_(samples)

    def _unscale(self) -> None:
        if self.scale is not None:
            self.grad.div_(self.scale.factor)

    def step(self, number: int) -> Tensor:
        """Updates the weights and their average; returns the gradient norm before clipping.

        A gradient that is not finite changes nothing. The norm stays on the device.
        """
        self._adam.rate.fill_(learning_rate(number, self.config))
        norm: Tensor = self._adam.step()
        if self.scale is not None:
            self.scale.update(norm)
        return norm

    def swap_ema(self) -> None:
        """Swaps weights and their average in place; a second call swaps them back."""
        weights = self.param.clone()
        self.param.copy_(self.ema)
        self.ema.copy_(weights)

    def state(self) -> dict[str, Tensor]:
        """The buffers to save in a checkpoint, by role."""
        names = ("param", "ema", "exp_avg", "exp_avg_sq")
        return {name: getattr(self, name) for name in names}

    def files(
        self, move: Callable[[Tensor], Tensor] = lambda buffer: buffer
    ) -> dict[str, dict[str, Tensor]]:
        """Tensors of a checkpoint's files, by file and name; views of `move(buffer)`."""
        by_role = {role: dict(self.views(move(buffer))) for role, buffer in self.state().items()}
        moments = {
            f"{role}.{name}": view
            for role in ("exp_avg", "exp_avg_sq")
            for name, view in by_role[role].items()
        }
        counts = {"updates": move(self.updates)}
        if self.scale is not None:
            counts[LOSS_SCALE] = move(self.scale.state)
        return {"model": by_role["param"], "ema": by_role["ema"], "optimizer": moments | counts}


def learning_rate(step: int, config: OptimConfig) -> float:
    """Learning rate of the update number `step`, counted from 0.

    Source: AF2 SI 1.11.3; OpenFold's schedule and constants.
    """
    if step <= config.warmup_steps:
        return config.learning_rate * (step / config.warmup_steps if config.warmup_steps else 1.0)
    if step <= config.decay_after:
        return config.learning_rate
    # +1: OpenFold decays at the first step after `decay_after`.
    decays = 1 + (step - config.decay_after) // config.decay_every
    return config.learning_rate * math.pow(config.decay_factor, decays)


def clip_coefficient(norm: Tensor, max_norm: float) -> Tensor:
    """The factor of gradients of this norm: at most 1, 0-dim, on the same device."""
    coefficient: Tensor = max_norm / (norm + _NORM_EPS)
    return coefficient.clamp(max=1.0)


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def _padded(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


def _layout(module: nn.Module) -> dict[str, tuple[int, int, torch.Size]]:
    spans, start = {}, 0
    for name, parameter in _trainable(module).items():
        spans[name] = (start, parameter.numel(), parameter.shape)
        start += _padded(parameter.numel())
    return spans
