"""From a run's `gradients` to what averages them: the modes that send less than there is.

What a mode with a residual sends and the residual's mean over hosts add up to all mean gradients.
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
"""Neighbours that share a scale in `int8`: a parameter begins at a multiple of it."""
_SPARSE_BLOCK: Final = 1 << 16


def exchange_of(
    config: GradientConfig, spans: Iterable[Span], size: int, *, rank: int, ranks: int,
    device: torch.device,
) -> Exchange:  # fmt: skip
    """What averages a flat gradient of `size` elements; every rank must call it.

    Raises:
        TrainerError: the hosts have different numbers of ranks.
    """
    if config.mode == "none" or ranks == 1:
        return Exchange(config, (Group(), Group(None, rank, ranks)), spans, size, device)
    return _MODES[config.mode](config, host_groups(rank, ranks, device), spans, size, device)


class Bfloat16(Exchange):
    """`bf16`: half the bytes between hosts, rounded; what rounding loses is lost."""

    def _between(self, part: Tensor, step: int) -> None:
        low = self.between.sum(part.to(torch.bfloat16))
        torch.div(low.float(), self.between.size, out=part)


class _WithResidual(Exchange):
    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        return {"residual": torch.zeros(self.part.stop - self.part.start, device=device)}

    def _between(self, part: Tensor, step: int) -> None:
        kept = {name: value.clone() for name, value in self.kept.items()}
        sent = self._send(part, kept, step)
        bad = self.inside.sum((~torch.isfinite(sent).all()).float()[None])  # in any part
        for name, value in self.kept.items():
            value.copy_(torch.where(bad == 0, kept[name], value))
        part.copy_(sent)

    def _send(self, part: Tensor, kept: dict[str, Tensor], step: int) -> Tensor:
        """What all hosts apply; `kept` is changed to what this one still owes."""
        raise NotImplementedError


class Quantized(_WithResidual):
    """`int8`: a byte a weight and way, with error feedback on both ways.

    Every host sends each other the piece that one will average, and gets averages back: twice
    (H - 1) / H bytes a weight, as a ring would. What rounding loses stays with whoever rounded, the
    averaging host's loss as its own, H times: the mean over hosts counts it once.
    Source: Seide et al. 2014 (error feedback), Tang et al. 2021, "1-bit Adam" (both ways).
    """

    def _send(self, part: Tensor, kept: dict[str, Tensor], step: int) -> Tensor:
        hosts, length = self.between.size, part.numel()
        owed = _padded(kept["residual"].add_(part), hosts * BLOCK).view(hosts, -1)
        codes = encode(owed)
        owed = owed - decode(codes)
        mine = decode(self.between.swap(codes)).mean(0, keepdim=True)
        codes = encode(mine)
        owed[self.between.rank] += hosts * (mine - decode(codes))[0]
        kept["residual"].copy_(owed.view(-1)[:length])
        return decode(self.between.gather(codes[0])).view(-1)[:length]


def encode(x: Tensor) -> Tensor:
    """Bytes of `x`, `[R, n]` with n a multiple of `BLOCK`: codes, then a float32 scale a block."""
    blocks = x.view(len(x), -1, BLOCK)
    scale = blocks.abs().amax(-1) / 127
    codes = (blocks / scale.clamp(min=1e-30)[..., None]).round_().to(torch.int8)
    return torch.cat([codes.view(len(x), -1).view(torch.uint8), scale.view(torch.uint8)], 1)


def decode(coded: Tensor) -> Tensor:
    """What `encode` made of `[R, n]`, back in float32; infinite or nan where it was."""
    rows, nbytes = coded.shape
    count = nbytes * BLOCK // (BLOCK + 4)
    codes = coded[:, :count].view(torch.int8).view(rows, -1, BLOCK)
    scale = coded[:, count:].contiguous().view(torch.float32)
    return (codes.float() * scale[..., None]).view(rows, count)


class Sparse(_WithResidual):
    """`topk`: only the largest entries are sent, the others wait: Deep Gradient Compression.

    Of every block of 65,536 neighbours, about a weight matrix, the largest few go as a bfloat16 and
    a 16-bit position. With `momentum` what waits is not the gradient but its momentum (momentum
    correction), and where an entry is sent its momentum restarts (factor masking); without,
    nothing is ever lost. Clipping each rank's own gradient is `optim.clip: per_example`.
    Source: Lin et al. 2018, algorithms 1 and 4.
    """

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        kept = super()._empty(device)
        return kept | ({"momentum": kept["residual"].clone()} if self.config.momentum else {})

    def _send(self, part: Tensor, kept: dict[str, Tensor], step: int) -> Tensor:
        length, block = part.numel(), min(part.numel(), _SPARSE_BLOCK)
        if "momentum" in kept:
            part = kept["momentum"].mul_(self.config.momentum).add_(part)
        owed = _padded(kept["residual"].add_(part), block).view(-1, block)
        density = density_at(step, self.config.density, self.config.warmup_steps)
        places = owed.abs().topk(max(1, round(block * density)), dim=1, sorted=False).indices
        largest = owed.gather(1, places)
        values = largest.to(torch.bfloat16)
        left = owed.scatter(1, places, largest - values.float())
        kept["residual"].copy_(left.view(-1)[:length])
        if "momentum" in kept:
            waits = torch.ones_like(owed).scatter_(1, places, 0.0)
            kept["momentum"].mul_(waits.view(-1)[:length])
        short = (places - _SPARSE_BLOCK // 2).to(torch.int16)
        coded = torch.stack([values.view(torch.int16), short]).view(torch.uint8)
        total = torch.zeros_like(owed)
        for one in self.between.gather(coded.view(-1)).view(torch.int16):  # host by host: same bits
            sent, at = one.view(2, *places.shape)
            at = at.long() + _SPARSE_BLOCK // 2
            total.scatter_(1, at, total.gather(1, at) + sent.view(torch.bfloat16).float())
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
    """`powersgd`: of every weight matrix's gradient two thin factors, after exact first steps.

    Half a step of subspace iteration between hosts: P = M Q summed and orthonormalised, then
    Q = M' P averaged; what is applied is P Q', and M - P Q' waits. Q is where the next step begins.
    Vectors, and matrices that two factors would not halve, go whole.

    Torch has this as a hook of its DDP wrapper (`powerSGD_hook`), the oracle in the tests: it waits
    for the GPU in every step, orthonormalises matrix by matrix above rank 2, and its residual is in
    no flat buffer that a checkpoint could hold.
    Source: Vogels et al. 2019, algorithms 1 and 2.
    """

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        self._stacks: dict[tuple[int, int], list[int]] = {}  # starts of matrices, by their shape
        whole = [torch.empty(0, dtype=torch.int64)]
        for start, count, shape in self.spans:
            if not self.part.start <= start < self.part.stop:
                continue
            start -= self.part.start
            n, m = (shape[0], count // shape[0]) if len(shape) > 1 else (count, 1)
            if 2 * (n + m) * min(self.config.rank, n, m) < count:
                self._stacks.setdefault((n, m), []).append(start)
            else:
                whole.append(torch.arange(start, start + count))
        self._whole = torch.cat(whole).to(device)
        # Drawn on the CPU: the same on all hosts, whatever their GPUs.
        drawn = torch.Generator().manual_seed(0)
        factors = torch.randn(sum(map(math.prod, self._shapes(1))), generator=drawn)
        return super()._empty(device) | {"factors": factors.to(device)}

    def _shapes(self, side: int) -> list[tuple[int, int, int]]:
        """Shapes of the stacked factors on one side of the matrices: 0 for P, 1 for Q."""
        return [
            (len(places), shape[side], min(self.config.rank, *shape))
            for shape, places in self._stacks.items()
        ]

    def _send(self, part: Tensor, kept: dict[str, Tensor], step: int) -> Tensor:
        hosts, owed = self.between, kept["residual"].add_(part)
        if step < self.config.warmup_steps:
            sent = hosts.mean(owed.clone())
            owed.zero_()
            return sent
        stacks = [torch.stack(views) for views in self._views(owed)]
        right = self._cut(kept["factors"], 1)
        left = hosts.sum(_flat([m @ q for m, q in zip(stacks, right, strict=True)], owed))
        p = [orthonormal(one) for one in self._cut(left, 0)]
        thin = _flat([m.mT @ one for m, one in zip(stacks, p, strict=True)], owed)
        both = hosts.sum(torch.cat([thin, owed[self._whole]])).div_(hosts.size)
        kept["factors"].copy_(both[: thin.numel()])
        sent = torch.zeros_like(owed)
        for views, one, q in zip(self._views(sent), p, self._cut(both, 1), strict=True):
            torch._foreach_copy_(views, list((one @ q.mT).unbind(0)))
        owed.sub_(sent).index_fill_(0, self._whole, 0.0)
        return sent.index_copy_(0, self._whole, both[thin.numel() :])

    def _views(self, x: Tensor) -> list[list[Tensor]]:
        """The matrices inside a flat tensor, those of one shape together."""
        return [
            [x[start : start + n * m].view(n, m) for start in places]
            for (n, m), places in self._stacks.items()
        ]

    def _cut(self, flat: Tensor, side: int) -> list[Tensor]:
        """The stacked factors of one side at the beginning of a flat tensor."""
        found, start = [], 0
        for shape in self._shapes(side):
            found.append(flat[start : start + math.prod(shape)].view(shape))
            start += math.prod(shape)
        return found


def orthonormal(x: Tensor) -> Tensor:
    """Columns of every matrix `[B, n, r]` made orthonormal from the left: Gram-Schmidt, each twice.

    A column that depends on those before it becomes any direction or zero, never a copy of one.
    """
    done = x[..., :0]
    for number in range(x.shape[-1]):
        column = x[..., number : number + 1]
        for _ in range(2):
            column = F.normalize(column, dim=-2, eps=1e-30)
            column = column - done @ (done.mT @ column)
        done = torch.cat([done, F.normalize(column, dim=-2, eps=1e-30)], dim=-1)
    return done


def _flat(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat([like[:0], *(part.reshape(-1) for part in parts)])


_MODES: Final[dict[str, type[Exchange]]] = {
    "hierarchical": Exchange, "bf16": Bfloat16, "int8": Quantized, "powersgd": LowRank,
    "topk": Sparse,
}  # fmt: skip
