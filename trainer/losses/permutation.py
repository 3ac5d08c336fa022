"""Which copy of a chain is which: the assignment of true chains that fits a prediction best.

Copies of one sequence have no order, so a prediction may be right with its chains exchanged.
The best of all permissible assignments is found, exactly as long as there are no more than
`MOST_ASSIGNMENTS`; beyond, by growing from every start and exchanging pairs. All shapes are
fixed by those of the batch, and nothing waits for the device, so it can be recorded.

Letters: B samples, R predicted residues, M true ones (whole, uncropped), C chains, K assignments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from evofeed.base.shapes import Bool, Float, Int
from evofeed.trainer.losses.rigid_fit import fit_rmsd, fit_sums

MOST_ASSIGNMENTS: Final = 5040
"""Of seven copies; complexes with no more are tried whole."""
_SWAP_ROUNDS: Final = 8
_LEAST_SHARE: Final = 0.5
"""An assignment to chains of which so much less is resolved is not preferred for that."""


class ChainAlignment(NamedTuple):
    """What `align_chains` gives.

    Attributes:
        chain: true chain of each predicted one, both numbered by `asym_id - 1`; its own number
            where there is no such chain, `[B, C]`.
        rmsd: of the CA atoms after the best superposition, ångström, `[B]`.
        rows: row of the truth for each predicted residue, `[B, R]`.
        known: whether there is one, `[B, R]`.
    """

    chain: Tensor
    rmsd: Tensor
    rows: Tensor
    known: Tensor


@torch.no_grad()
def align_chains(
    pred_ca: Float[Tensor, "B R 3"],
    pred_mask: Float[Tensor, "B R"],
    pred: Mapping[str, Tensor],
    true_ca: Float[Tensor, "B M 3"],
    true_mask: Float[Tensor, "B M"],
    true: Mapping[str, Tensor],
    *,
    no_chains: int,
    most_assignments: int = MOST_ASSIGNMENTS,
) -> ChainAlignment:
    """The assignment with the lowest RMSD of one superposition of the whole complex.

    CA atoms are in ångström, `no_chains` is at least the highest number of a chain.

    Args:
        pred: `asym_id` (0 is padding), `entity_id` and `residue_index` of the residues, `[B, R]`.
        true: the same of the whole complex, `[B, M]`; a chain's rows follow each other, one for
            every residue.
    """
    rows, known = _rows(pred, true, no_chains)
    entity, copies = (_entities(of["asym_id"], of["entity_id"], no_chains) for of in (pred, true))
    allowed = (entity[..., None] == copies[:, None]) & (entity > 0)[..., None]
    on_chain = F.one_hot(pred["asym_id"], no_chains + 1)[..., 1:].double()  # [B, R, C]
    fits = _residue_sums(pred_ca, pred_mask, true_ca, true_mask, rows, known)
    sums = torch.unflatten(on_chain.mT @ fits.flatten(2), -1, fits.shape[2:])
    # The last row and column are of no chain: it may be given to anybody, and adds nothing.
    sums = F.pad(sums * allowed[..., None], (0, 0, 0, 1, 0, 1))
    allowed = F.pad(allowed, (0, 1, 0, 1), value=True)
    every = math.factorial(no_chains)
    picks = _enumerated(allowed, min(most_assignments, every))
    if most_assignments < every:
        picks = torch.cat([picks, _grown(sums, allowed)], dim=1)
    best = torch.argmin(_score(_total(sums, picks)), dim=1)
    pick = picks[torch.arange(len(picks), device=picks.device), best]
    if most_assignments < every:
        pick = _exchanged(pick, sums, allowed)
    rmsd = fit_rmsd(_total(sums, pick[:, None])[:, 0])
    pick = torch.where(pick < no_chains, pick, torch.arange(no_chains, device=pick.device))
    number = (pred["asym_id"] - 1).clamp(min=0)
    chain_of_residue = torch.gather(pick, 1, number)[..., None]
    return ChainAlignment(
        chain=pick,
        rmsd=rmsd,
        rows=torch.gather(rows, 2, chain_of_residue)[..., 0],
        known=torch.gather(known, 2, chain_of_residue)[..., 0],
    )


def gather_labels(truth: Mapping[str, Tensor], alignment: ChainAlignment) -> dict[str, Tensor]:
    """Features of the whole complex, `[B, M, ...]`, for each predicted residue; 0 where unknown."""
    labels = {}
    for name, value in truth.items():
        trailing = (1,) * (value.dim() - 2)
        index = alignment.rows.view(*alignment.rows.shape, *trailing)
        found = torch.gather(value, 1, index.expand(*alignment.rows.shape, *value.shape[2:]))
        known = alignment.known.view(*alignment.known.shape, *trailing)
        labels[name] = torch.where(known, found, torch.zeros_like(found))
    return labels


def _rows(
    pred: Mapping[str, Tensor], true: Mapping[str, Tensor], no_chains: int
) -> tuple[Int[Tensor, "B R C"], Bool[Tensor, "B R C"]]:
    """Row of each predicted residue's like in each true chain, and whether there is one."""
    chains = torch.arange(1, no_chains + 1, device=pred["asym_id"].device)
    of_chain = true["asym_id"][..., None] == chains  # [B, M, C]
    start = of_chain.to(torch.uint8).argmax(dim=1)
    first = torch.gather(true["residue_index"], 1, start)
    place = pred["residue_index"][..., None] - first[:, None]
    inside = (
        (place >= 0) & (place < of_chain.sum(dim=1)[:, None]) & (pred["asym_id"] > 0)[..., None]
    )
    rows = (start[:, None] + place).clamp(0, of_chain.shape[1] - 1)
    number = torch.gather(true["residue_index"], 1, rows.flatten(1)).view(rows.shape)
    return rows, inside & (number == pred["residue_index"][..., None])


def _entities(asym_id: Tensor, entity_id: Tensor, no_chains: int) -> Int[Tensor, "B C"]:
    """Entity of each chain, 0 where there is no such chain."""
    chains = torch.arange(1, no_chains + 1, device=asym_id.device)
    return torch.where(asym_id[..., None] == chains, entity_id[..., None], 0).amax(dim=1)


def _residue_sums(
    pred_ca: Tensor, pred_mask: Tensor, true_ca: Tensor, true_mask: Tensor, rows: Tensor,
    known: Tensor,
) -> Float[Tensor, "B R C 18"]:  # fmt: skip
    """Sums of every predicted residue on its like in every chain, in float64 about the middle."""
    x, y = (_centred(ca, mask) for ca, mask in ((pred_ca, pred_mask), (true_ca, true_mask)))
    sample = torch.arange(len(rows), device=rows.device)[:, None, None]
    weight = true_mask.double()[sample, rows] * pred_mask.double()[..., None] * known
    partner = y[sample, rows]  # [B, R, C, 3]
    return fit_sums(x[:, :, None].expand_as(partner), partner, weight)


def _centred(points: Tensor, mask: Tensor) -> Tensor:
    points, mask = points.double(), mask.double()[..., None]
    centre = torch.sum(points * mask, dim=1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return (points - centre) * mask


def _score(total: Float[Tensor, "B K 18"]) -> Float[Tensor, "B K"]:
    """RMSD of assignments, infinite for one that compares much less than another."""
    count = total[..., 0]
    enough = count >= _LEAST_SHARE * count.amax(dim=1, keepdim=True)
    return torch.where(enough, fit_rmsd(total), torch.inf)


def _total(sums: Tensor, picks: Int[Tensor, "B K C"]) -> Float[Tensor, "B K 18"]:
    """Sums over the chains of each assignment."""
    sample = torch.arange(len(picks), device=picks.device)[:, None]
    total = sums.new_zeros(*picks.shape[:2], sums.shape[-1])
    for p in range(picks.shape[-1]):
        total = total + sums[sample, p, picks[..., p]]
    return total


def _number(one: Bool[Tensor, "*B C"]) -> Int[Tensor, "*B"]:
    """Place of the entry that is true, C if none is."""
    return torch.where(one.any(-1), one.to(torch.uint8).argmax(-1), one.shape[-1])


def _enumerated(allowed: Tensor, most: int) -> Int[Tensor, "B K C"]:
    """The first `most` assignments: digits of a running number say which free copy is taken."""
    batch, no_chains = len(allowed), allowed.shape[1] - 1
    code = torch.arange(most, device=allowed.device).expand(batch, most)
    free = torch.ones(batch, most, no_chains, dtype=torch.bool, device=allowed.device)
    picks = []
    for p in range(no_chains):
        options = free & allowed[:, None, p, :-1]
        count = options.sum(-1).clamp(min=1)
        digit, code = code % count, torch.div(code, count, rounding_mode="floor")
        taken = options & (options.cumsum(-1) - 1 == digit[..., None])
        free = free & ~taken
        picks.append(_number(taken))
    return torch.stack(picks, dim=-1)


def _grown(sums: Tensor, allowed: Tensor) -> Int[Tensor, "B C C"]:
    """Assignments grown from the best-known chain, put in turn on each true one it may have."""
    batch, no_chains = len(allowed), allowed.shape[1] - 1
    sample = torch.arange(batch, device=sums.device)
    anchor = torch.argmax(sums[:, :-1, :, 0].amax(-1), dim=1)
    may_have = allowed[sample, anchor, :-1]
    own = torch.arange(no_chains, device=sums.device)
    start = torch.where(may_have, own, _number(may_have)[:, None])
    total = sums[sample[:, None], anchor[:, None], start]  # [B, start, 18]
    free = start[..., None] != own
    picks = []
    for p in range(no_chains):
        is_anchor = (anchor == p)[:, None]
        options = free & allowed[:, None, p, :-1] & ~is_anchor[..., None]
        fit = fit_rmsd(total[:, :, None] + sums[:, None, p, :-1])
        best = torch.argmin(torch.where(options, fit, torch.inf), dim=-1)
        taken = F.one_hot(best, no_chains).bool() & options
        total = total + sums[sample[:, None], p, _number(taken)]
        free = free & ~taken
        picks.append(torch.where(is_anchor, start, _number(taken)))
    return torch.stack(picks, dim=-1)


def _exchanged(pick: Int[Tensor, "B C"], sums: Tensor, allowed: Tensor) -> Int[Tensor, "B C"]:
    """An assignment after the best exchanges of two chains, or moves to a free one."""
    no_chains = pick.shape[1]
    sample = torch.arange(len(pick), device=pick.device)
    chains = torch.arange(no_chains, device=pick.device)
    of, p, t = sample[:, None, None], chains[:, None], chains
    for _ in range(_SWAP_ROUNDS):
        # p takes t; who had t, the other, takes what p had.
        had, other = pick[..., None], _number((pick[..., None] == t).mT)[:, None]
        mine = sums[of, p, had]
        change = sums[of, p, t] - mine + sums[of, other, had] - sums[of, other, t]
        fits = allowed[of, p, t] & allowed[of, other, had]
        score = _score((mine.sum(dim=1, keepdim=True) + change).flatten(1, 2))
        best = torch.argmin(torch.where(fits.flatten(1), score, torch.inf), dim=1)[:, None]
        mover, goal = torch.div(best, no_chains, rounding_mode="floor"), best % no_chains
        moved = torch.where(pick == goal, torch.gather(pick, 1, mover), pick)
        pick = torch.where(chains == mover, goal, moved)
    return pick
