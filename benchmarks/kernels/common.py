"""What the sections share: inputs, both passes of an op timed, numerics against float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.gpu_times import Call, Row, gpu_times, peak_mb, wall_us
from torch import Tensor, nn

BF16, DEVICE = torch.bfloat16, "cuda"


def rand(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def calls_of(
    op: Callable[..., Tensor], sets: list[list[Tensor]], grads_of: list[int]
) -> tuple[list[Call], list[Call]]:
    """Forward, and forward plus backward, of `op` on each input set; of a module's weights too."""
    weights: list[Tensor] = [*getattr(op, "parameters", list)()]
    for inputs in sets:
        for n in grads_of:
            inputs[n].requires_grad_()
    outs = [torch.randn_like(op(*inputs)) for inputs in sets]

    def backward(inputs: list[Tensor], grad: Tensor) -> Call:
        leaves = [*(inputs[n] for n in grads_of), *weights]
        return lambda: torch.autograd.grad(op(*inputs), leaves, grad)

    forward = [lambda inputs=inputs: op(*inputs) for inputs in sets]
    return forward, [backward(inputs, grad) for inputs, grad in zip(sets, outs, strict=True)]


def both_ways(
    op: Callable[..., Tensor], sets: list[list[Tensor]], grads_of: list[int], wall: bool = True
) -> Row:
    """Forward, and forward plus backward, of `op` on rotating input sets."""
    forward, full = calls_of(op, sets, grads_of)
    row: Row = {"forward": gpu_times(forward), "both": gpu_times(full)}
    if wall:
        row |= {"forward_wall": wall_us(forward), "both_wall": wall_us(full)}
    row["peak_mb"] = peak_mb(full[0])
    return row


def errors(op: Callable[..., Tensor], inputs: list[Tensor], grads_of: list[int]) -> list[Tensor]:
    leaves = [t.detach().clone() for t in inputs]
    for n in grads_of:
        leaves[n].requires_grad_()
    out = op(*leaves)
    weight = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype)
    grads = torch.autograd.grad((out * weight).sum(), [leaves[n] for n in grads_of])
    return [out.detach(), *grads]


def three_way(
    fused: Callable[..., Tensor],
    plain: Callable[..., Tensor],
    inputs: list[Tensor],
    grads_of: list[int],
) -> list[list[float]]:
    """[ours, PyTorch's] relative error against float64, for the output and each gradient."""
    exact = errors(plain, [t.double() for t in inputs], grads_of)
    rows = []
    for ours, theirs, true in zip(
        errors(fused, inputs, grads_of), errors(plain, inputs, grads_of), exact, strict=True
    ):
        scale = true.norm().clamp_min(1e-30)
        rows.append([float((t.double() - true).norm() / scale) for t in (ours, theirs)])
    return rows


def randomise(module: nn.Module) -> nn.Module:
    """AF2 starts many weights at 0; a benchmark of zeros runs faster than the real thing."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    return module
