"""Gradient compression between hosts: the exchange for a run's `gradients.mode`.

For a mode with a residual, the means sent and the residuals' mean over hosts add up to the exact
mean gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from evofeed.trainer.config import GradientConfig
from evofeed.trainer.gradients.exchange import Exchange, Group, Span, host_groups

BLOCK: Final = 128
"""Consecutive elements that share a scale in `int8`: a parameter begins at a multiple of it."""
_SPARSE_BLOCK: Final = 1 << 16


def exchange_of(
    config: GradientConfig, spans: Iterable[Span], size: int, *, rank: int, ranks: int,
    device: torch.device,
) -> Exchange:  # fmt: skip
    """The exchange that averages a flat gradient of `size` elements; every rank must call it.

    Raises:
        TrainerError: the hosts have different numbers of ranks.
    """
    if config.mode == "none" or ranks == 1:
        return Exchange(config, (Group(), Group(None, rank, ranks)), spans, size, device)
    return _MODES[config.mode](config, host_groups(rank, ranks, device), spans, size, device)


class Bfloat16(Exchange):
    """`bf16`: half the bytes between hosts; the rounding error is not fed back."""

    def _between(self, part: Tensor, step: int) -> None:
        low = self.between.sum(part.to(torch.bfloat16))
        torch.div(low.float(), self.between.size, out=part)


class _WithResidual(Exchange):
    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        return {"residual": torch.zeros(self.part.stop - self.part.start, device=device)}

    def _between(self, part: Tensor, step: int) -> None:
        state = {role: tensor.clone() for role, tensor in self.state.items()}
        mean = self._compressed_mean(part, state, step)
        bad = self.inside.sum((~torch.isfinite(mean).all()).float()[None])  # in any part
        for role, tensor in self.state.items():
            tensor.copy_(torch.where(bad == 0, state[role], tensor))
        part.copy_(mean)

    def _compressed_mean(self, part: Tensor, state: dict[str, Tensor], step: int) -> Tensor:
        """The mean that all hosts apply; `state` becomes that after the step."""
        raise NotImplementedError


class Quantized(_WithResidual):
    """`int8`: one byte per weight in each direction, with error feedback in both.

    Every host sends each other host the piece that that one averages, and gets averages back:
    2 (H - 1) / H bytes a weight, as a ring does. Each host keeps its rounding error as its
    residual, the error of averages H times: the mean over hosts counts it once.
    Source: Seide et al. 2014 (error feedback), Tang et al. 2021, "1-bit Adam" (both ways).
    """

    def _compressed_mean(self, part: Tensor, state: dict[str, Tensor], step: int) -> Tensor:
        hosts, length = self.between.size, part.numel()
        owed = _padded(state["residual"].add_(part), hosts * BLOCK).view(hosts, -1)
        codes = encode(owed)
        owed = owed - decode(codes)
        mine = decode(self.between.swap(codes)).mean(0, keepdim=True)
        codes = encode(mine)
        owed[self.between.rank] += hosts * (mine - decode(codes))[0]
        state["residual"].copy_(owed.view(-1)[:length])
        return decode(self.between.gather(codes[0])).view(-1)[:length]


def encode(x: Tensor) -> Tensor:
    """Bytes of `x`, `[R, n]` with n a multiple of `BLOCK`: codes, then a float32 scale a block."""
    blocks = x.view(len(x), -1, BLOCK)
    scale = blocks.abs().amax(-1) / 127
    codes = (blocks / scale.clamp(min=1e-30)[..., None]).round_().to(torch.int8)
    return torch.cat([codes.view(len(x), -1).view(torch.uint8), scale.view(torch.uint8)], 1)


def decode(coded: Tensor) -> Tensor:
    """The inverse of `encode`: `[R, n]` in float32; infinite or nan where the input was."""
    rows, nbytes = coded.shape
    count = nbytes * BLOCK // (BLOCK + 4)
    codes = coded[:, :count].view(torch.int8).view(rows, -1, BLOCK)
    scale = coded[:, count:].contiguous().view(torch.float32)
    return (codes.float() * scale[..., None]).view(rows, count)


class Sparse(_WithResidual):
    """`topk`: only the largest entries are sent (Deep Gradient Compression).

    Of every block of 65,536 consecutive elements, about a weight matrix, the largest are sent as a
    bfloat16 and a 16-bit index. With `momentum` the residual collects momentum instead of gradients
    (momentum correction), and the momentum of a sent entry restarts at zero (factor masking);
    without it, no gradient is lost. `optim.clip: per_example` clips each rank's gradient.
    Source: Lin et al. 2018, algorithms 1 and 4.
    """

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        state = super()._empty(device)
        if self.config.momentum:
            state["momentum"] = state["residual"].clone()
        return state

    def _compressed_mean(self, part: Tensor, state: dict[str, Tensor], step: int) -> Tensor:
        length, block = part.numel(), min(part.numel(), _SPARSE_BLOCK)
        if "momentum" in state:
            part = state["momentum"].mul_(self.config.momentum).add_(part)
        owed = _padded(state["residual"].add_(part), block).view(-1, block)
        density = density_at(step, self.config.density, self.config.warmup_steps)
        indices = owed.abs().topk(max(1, round(block * density)), dim=1, sorted=False).indices
        largest = owed.gather(1, indices)
        values = largest.to(torch.bfloat16)
        residual = owed.scatter(1, indices, largest - values.float())
        state["residual"].copy_(residual.view(-1)[:length])
        if "momentum" in state:
            unsent = torch.ones_like(owed).scatter_(1, indices, 0.0)
            state["momentum"].mul_(unsent.view(-1)[:length])
        short = (indices - _SPARSE_BLOCK // 2).to(torch.int16)
        coded = torch.stack([values.view(torch.int16), short]).view(torch.uint8)
        total = torch.zeros_like(owed)
        # Added in the order of hosts: all hosts get the same bits.
        for message in self.between.gather(coded.view(-1)).view(torch.int16):
            values, short = message.view(2, *indices.shape)
            index = short.long() + _SPARSE_BLOCK // 2
            total.scatter_(1, index, total.gather(1, index) + values.view(torch.bfloat16).float())
        return total.view(-1)[:length] / self.between.size


def density_at(step: int, density: float, warmup: int) -> float:
    """Share of the entries that step number `step` sends: 1/4, 1/16, ... in the warm-up."""
    if step >= warmup:
        return density
    stages = max(1, math.ceil(-math.log(density, 4)) - 1)
    return max(density, float(4.0 ** -(1 + step * stages // warmup)))


def _padded(x: Tensor, multiple: int) -> Tensor:
    return F.pad(x, (0, -x.numel() % multiple))


class LowRank(_WithResidual):
    """`powersgd`: two low-rank factors of each weight matrix's gradient, after exact first steps.

    Half a step of subspace iteration between hosts: P = M Q summed and orthonormalised, then
    Q = M' P averaged. P Q' is applied, M - P Q' is the residual, and the next step begins with Q.
    Vectors, and matrices that two factors would not halve, are sent uncompressed.

    Torch has this as a hook of its DDP wrapper (`powerSGD_hook`), the reference in the tests: it
    synchronises with the GPU in every step, orthonormalises matrix by matrix above rank 2, and its
    residual is not in a flat buffer that a checkpoint could hold.
    Source: Vogels et al. 2019, algorithms 1 and 2.
    """

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        self._stacks: dict[tuple[int, int], list[int]] = {}  # starts of matrices, by their shape
        uncompressed = [torch.empty(0, dtype=torch.int64)]
        for start, count, shape in self.spans:
            if not self.part.start <= start < self.part.stop:
                continue
            start -= self.part.start
            n, m = (shape[0], count // shape[0]) if len(shape) > 1 else (count, 1)
            if 2 * (n + m) * min(self.config.rank, n, m) < count:
                self._stacks.setdefault((n, m), []).append(start)
            else:
                uncompressed.append(torch.arange(start, start + count))
        self._uncompressed = torch.cat(uncompressed).to(device)
        # Drawn on the CPU: the same on all hosts, whatever their GPUs.
        drawn = torch.Generator().manual_seed(0)
        factors = torch.randn(sum(map(math.prod, self._shapes(1))), generator=drawn)
        return super()._empty(device) | {"factors": factors.to(device)}

    def _shapes(self, side: int) -> list[tuple[int, int, int]]:
        """Shapes of the stacked factors on one side of the matrices: 0 for P, 1 for Q."""
        return [
            (len(starts), shape[side], min(self.config.rank, *shape))
            for shape, starts in self._stacks.items()
        ]

    def _compressed_mean(self, part: Tensor, state: dict[str, Tensor], step: int) -> Tensor:
        hosts, owed = self.between, state["residual"].add_(part)
        if step < self.config.warmup_steps:
            mean = hosts.mean(owed.clone())
            owed.zero_()
            return mean
        stacks = [torch.stack(views) for views in self._views(owed)]
        right = self._factors(state["factors"], 1)
        left = hosts.sum(_flat([m @ q for m, q in zip(stacks, right, strict=True)], owed))
        left_factors = [orthonormal(p) for p in self._factors(left, 0)]
        right_flat = _flat([m.mT @ p for m, p in zip(stacks, left_factors, strict=True)], owed)
        averaged = hosts.sum(torch.cat([right_flat, owed[self._uncompressed]])).div_(hosts.size)
        state["factors"].copy_(averaged[: right_flat.numel()])
        mean, right = torch.zeros_like(owed), self._factors(averaged, 1)
        for views, p, q in zip(self._views(mean), left_factors, right, strict=True):
            torch._foreach_copy_(views, list((p @ q.mT).unbind(0)))
        owed.sub_(mean).index_fill_(0, self._uncompressed, 0.0)
        return mean.index_copy_(0, self._uncompressed, averaged[right_flat.numel() :])

    def _views(self, x: Tensor) -> list[list[Tensor]]:
        """The matrices inside a flat tensor, grouped by shape."""
        return [
            [x[start : start + n * m].view(n, m) for start in starts]
            for (n, m), starts in self._stacks.items()
        ]

    def _factors(self, flat: Tensor, side: int) -> list[Tensor]:
        """The stacked factors of one side at the beginning of a flat tensor."""
        factors, start = [], 0
        for shape in self._shapes(side):
            factors.append(flat[start : start + math.prod(shape)].view(shape))
            start += math.prod(shape)
        return factors


def orthonormal(x: Tensor) -> Tensor:
    """Orthonormal columns of every matrix `[B, n, r]`, by Gram-Schmidt with two passes a column.

    A column that depends on the earlier ones becomes any direction or zero, never a copy of one.
    """
    basis = x[..., :0]
    for number in range(x.shape[-1]):
        column = x[..., number : number + 1]
        for _ in range(2):
            column = F.normalize(column, dim=-2, eps=1e-30)
            column = column - basis @ (basis.mT @ column)
        basis = torch.cat([basis, F.normalize(column, dim=-2, eps=1e-30)], dim=-1)
    return basis


def _flat(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat([like[:0], *(part.reshape(-1) for part in parts)])


_MODES: Final[dict[str, type[Exchange]]] = {
    "hierarchical": Exchange, "bf16": Bfloat16, "int8": Quantized, "powersgd": LowRank,
    "topk": Sparse,
}  # fmt: skip
