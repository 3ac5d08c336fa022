"""What the sections share: inputs, both passes of an op timed, numerics against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from benchmarks.gpu_times import Call, Row, gpu_times, peak_mb, wall_us
from torch import Tensor, nn

from evofeed.kernels import to_fused

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


def module_rows(
    case: str, module: nn.Module, inputs: Callable[[], list[Tensor]], peers: bool
) -> Iterator[Row]:
    """A module of the trainer in bfloat16: fused, and with `peers` eager and compiled.

    Args:
        case: what the rows are called.
        module: as the trainer makes it.
        inputs: makes a set of its arguments; masks among them have no gradient.
        peers: whether PyTorch's own are timed too.
    """
    module = randomise(module).to(DEVICE, BF16)
    sets = [inputs() for _ in range(3)]
    grads = [n for n, t in enumerate(sets[0]) if not _is_mask(t)]
    if peers:
        torch.compiler.reset()
        compiled = torch.compile(module, dynamic=False)
        for who, op in (("torch eager", module), ("torch.compile", compiled)):
            yield {"case": case, "who": who, **both_ways(op, sets, grads)}
    yield {"case": case, "who": "evofeed", **both_ways(to_fused(module), sets, grads)}


def mask(*shape: int) -> Tensor:
    """One key in ten is left out."""
    return (torch.rand(shape, device=DEVICE) > 0.1).to(BF16)


def _is_mask(t: Tensor) -> bool:
    return bool(((t == 0) | (t == 1)).all())
