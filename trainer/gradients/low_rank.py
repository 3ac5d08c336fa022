"""`powersgd`: of every weight matrix's gradient two thin factors, with error feedback.

Half a step of subspace iteration between hosts: P = M Q summed and orthonormalised, then Q = M' P
averaged; what is applied is P Q', and M - P Q' waits. Q is where the next step begins. Vectors, and
matrices that two factors would not halve, go whole.

Torch has this as a hook of its DDP wrapper (`powerSGD_hook`). It is the oracle in the tests, not
used: it waits for the GPU in every step, orthonormalises matrix by matrix above rank 2, and its
residual is in no flat buffer that a checkpoint could hold.

Source: Vogels et al. 2019, algorithms 1 and 2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evofeed.trainer.gradients.exchange import WithResidual


class LowRank(WithResidual):
    """Averages low-rank factors, after exact first steps; see the module."""

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        self._stacks: dict[tuple[int, int], list[int]] = {}  # starts of matrices, by their shape
        whole = [torch.empty(0, dtype=torch.int64)]
        own = self.part
        for start, count, shape in self.spans:
            if not own.start <= start < own.stop:
                continue
            n, m = (shape[0], count // shape[0]) if len(shape) > 1 else (count, 1)
            if 2 * (n + m) * min(self.config.rank, n, m) < count:
                self._stacks.setdefault((n, m), []).append(start - own.start)
            else:
                whole.append(torch.arange(start - own.start, start - own.start + count))
        self._whole = torch.cat(whole).to(device)
        # Drawn on the CPU: the same on all hosts, whatever their GPUs.
        drawn = torch.Generator().manual_seed(0)
        factors = sum(math.prod(shape) for shape in self._shapes(1))
        return super()._empty(device) | {
            "factors": torch.randn(factors, generator=drawn).to(device)
        }

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
        right = _cut(kept["factors"], self._shapes(1))
        left = hosts.sum(_flat([m @ q for m, q in zip(stacks, right, strict=True)], owed))
        p = [orthonormal(one) for one in _cut(left, self._shapes(0))]
        thin = _flat([m.mT @ one for m, one in zip(stacks, p, strict=True)], owed)
        both = hosts.sum(torch.cat([thin, owed[self._whole]])).div_(hosts.size)
        kept["factors"].copy_(both[: thin.numel()])
        sent = torch.zeros_like(owed)
        right = _cut(kept["factors"], self._shapes(1))
        for views, one, q in zip(self._views(sent), p, right, strict=True):
            torch._foreach_copy_(views, list((one @ q.mT).unbind(0)))
        owed.sub_(sent).index_fill_(0, self._whole, 0.0)
        return sent.index_copy_(0, self._whole, both[thin.numel() :])

    def _views(self, x: Tensor) -> list[list[Tensor]]:
        """The matrices inside a flat tensor, those of one shape together."""
        return [
            [x[start : start + n * m].view(n, m) for start in places]
            for (n, m), places in self._stacks.items()
        ]


def orthonormal(x: Tensor) -> Tensor:
    """Columns of every matrix `[B, n, r]` made orthonormal from the left: Gram-Schmidt, each twice.

    A column that depends on those before it becomes any direction or zero, never a copy of one.
    """
    done = torch.zeros_like(x)
    for column in range(x.shape[-1]):
        one, before = x[..., column : column + 1], done[..., :column]
        for _ in range(2):
            one = one / torch.linalg.vector_norm(one, dim=-2, keepdim=True).clamp(min=1e-30)
            one = one - before @ (before.mT @ one)
        one = one / torch.linalg.vector_norm(one, dim=-2, keepdim=True).clamp(min=1e-30)
        done[..., column : column + 1] = one
    return done


def _flat(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts]) if parts else like.new_empty(0)


def _cut(flat: Tensor, shapes: list[tuple[int, int, int]]) -> list[Tensor]:
    sizes = [math.prod(shape) for shape in shapes]
    pieces = zip(torch.split(flat, sizes) if sizes else (), shapes, strict=True)
    return [piece.view(shape) for piece, shape in pieces]
