"""Multi-chain permutation alignment: the assignment of true to predicted chains that fits best.

Copies of one sequence have no order, so a prediction may be right with its chains permuted. Up to
`MAX_ASSIGNMENTS` permissible assignments are all tried; with more, assignments are grown greedily
from every start and improved by swapping pairs. All shapes depend on those of the batch only, and
nothing waits for the device, so a CUDA graph can record it.

Letters: B samples, R predicted residues, M true ones (uncropped), C chains, K assignments.
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

MAX_ASSIGNMENTS: Final = 5040
"""Assignments of seven copies; complexes with at most as many are enumerated."""
_SWAP_ROUNDS: Final = 8
_MIN_SHARE: Final = 0.5
"""Least share of the most compared residues with which an assignment is considered."""


class ChainAlignment(NamedTuple):
    """The result of `align_chains`.

    Attributes:
        chain: true chain of each predicted one, both numbered by `asym_id - 1`; a number without
            a predicted chain maps to itself, `[B, C]`.
        rmsd: of the CA atoms after the best superposition, ångström, `[B]`.
        rows: row of the truth for each predicted residue, `[B, R]`.
        matched: True if the residue has a row of the truth, `[B, R]`.
    """

    chain: Tensor
    rmsd: Tensor
    rows: Tensor
    matched: Tensor


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
    max_assignments: int = MAX_ASSIGNMENTS,
) -> ChainAlignment:
    """The assignment with the lowest RMSD of one superposition of the full complex.

    CA atoms are in ångström, `no_chains` is at least the highest number of a chain.

    Args:
        pred: `asym_id` (0 is padding), `entity_id` and `residue_index` of the residues, `[B, R]`.
        true: the same of the full complex, `[B, M]`; the rows of a chain are consecutive, one for
            every residue.
    """
    rows, matched = _rows(pred, true, no_chains)
    entity, true_entity = (
        _entities(ids["asym_id"], ids["entity_id"], no_chains) for ids in (pred, true)
    )
    allowed = (entity[..., None] == true_entity[:, None]) & (entity > 0)[..., None]
    on_chain = F.one_hot(pred["asym_id"], no_chains + 1)[..., 1:].double()  # [B, R, C]
    by_residue = _residue_sums(pred_ca, pred_mask, true_ca, true_mask, rows, matched)
    sums = torch.unflatten(on_chain.mT @ by_residue.flatten(2), -1, by_residue.shape[2:])
    # The last row and column stand for no chain: any chain may be assigned to it, and adds zero.
    sums = F.pad(sums * allowed[..., None], (0, 0, 0, 1, 0, 1))
    allowed = F.pad(allowed, (0, 1, 0, 1), value=True)
    total_assignments = math.factorial(no_chains)
    picks = _enumerated(allowed, min(max_assignments, total_assignments))
    if max_assignments < total_assignments:
        picks = torch.cat([picks, _grown(sums, allowed)], dim=1)
    best = torch.argmin(_score(_total(sums, picks)), dim=1)
    pick = picks[torch.arange(len(picks), device=picks.device), best]
    if max_assignments < total_assignments:
        pick = _swapped(pick, sums, allowed)
    rmsd = fit_rmsd(_total(sums, pick[:, None])[:, 0])
    pick = torch.where(pick < no_chains, pick, torch.arange(no_chains, device=pick.device))
    number = (pred["asym_id"] - 1).clamp(min=0)
    chain_of_residue = torch.gather(pick, 1, number)[..., None]
    return ChainAlignment(
        chain=pick,
        rmsd=rmsd,
        rows=torch.gather(rows, 2, chain_of_residue)[..., 0],
        matched=torch.gather(matched, 2, chain_of_residue)[..., 0],
    )


def gather_labels(truth: Mapping[str, Tensor], alignment: ChainAlignment) -> dict[str, Tensor]:
    """Features of the full complex, `[B, M, ...]`, by predicted residue; 0 if it is unmatched."""
    labels = {}
    for name, value in truth.items():
        trailing = (1,) * (value.dim() - 2)
        index = alignment.rows.view(*alignment.rows.shape, *trailing)
        gathered = torch.gather(value, 1, index.expand(*alignment.rows.shape, *value.shape[2:]))
        matched = alignment.matched.view(*alignment.matched.shape, *trailing)
        labels[name] = torch.where(matched, gathered, torch.zeros_like(gathered))
    return labels


def _rows(
    pred: Mapping[str, Tensor], true: Mapping[str, Tensor], no_chains: int
) -> tuple[Int[Tensor, "B R C"], Bool[Tensor, "B R C"]]:
    """Row of each predicted residue's counterpart in each true chain, and whether it exists."""
    chains = torch.arange(1, no_chains + 1, device=pred["asym_id"].device)
    of_chain = true["asym_id"][..., None] == chains  # [B, M, C]
    start = of_chain.to(torch.uint8).argmax(dim=1)
    first = torch.gather(true["residue_index"], 1, start)
    offset = pred["residue_index"][..., None] - first[:, None]
    inside = (offset >= 0) & (offset < of_chain.sum(dim=1)[:, None])
    inside = inside & (pred["asym_id"] > 0)[..., None]
    rows = (start[:, None] + offset).clamp(0, of_chain.shape[1] - 1)
    number = torch.gather(true["residue_index"], 1, rows.flatten(1)).view(rows.shape)
    return rows, inside & (number == pred["residue_index"][..., None])


def _entities(asym_id: Tensor, entity_id: Tensor, no_chains: int) -> Int[Tensor, "B C"]:
    """Entity of each chain, 0 for numbers without a chain."""
    chains = torch.arange(1, no_chains + 1, device=asym_id.device)
    return torch.where(asym_id[..., None] == chains, entity_id[..., None], 0).amax(dim=1)


def _residue_sums(
    pred_ca: Tensor, pred_mask: Tensor, true_ca: Tensor, true_mask: Tensor, rows: Tensor,
    matched: Tensor,
) -> Float[Tensor, "B R C 18"]:  # fmt: skip
    """Fit sums of every predicted residue with its counterpart in every chain, centred, float64."""
    x, y = (_centred(ca, mask) for ca, mask in ((pred_ca, pred_mask), (true_ca, true_mask)))
    sample = torch.arange(len(rows), device=rows.device)[:, None, None]
    weight = true_mask.double()[sample, rows] * pred_mask.double()[..., None] * matched
    partner = y[sample, rows]  # [B, R, C, 3]
    return fit_sums(x[:, :, None].expand_as(partner), partner, weight)


def _centred(points: Tensor, mask: Tensor) -> Tensor:
    points, mask = points.double(), mask.double()[..., None]
    centre = torch.sum(points * mask, dim=1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return (points - centre) * mask


def _score(total: Float[Tensor, "B K 18"]) -> Float[Tensor, "B K"]:
    """RMSD of assignments; infinite for one that compares far fewer residues than another."""
    count = total[..., 0]
    enough = count >= _MIN_SHARE * count.amax(dim=1, keepdim=True)
    return torch.where(enough, fit_rmsd(total), torch.inf)


def _total(sums: Tensor, picks: Int[Tensor, "B K C"]) -> Float[Tensor, "B K 18"]:
    """Sums over the chains of each assignment."""
    sample = torch.arange(len(picks), device=picks.device)[:, None]
    total = sums.new_zeros(*picks.shape[:2], sums.shape[-1])
    for p in range(picks.shape[-1]):
        total = total + sums[sample, p, picks[..., p]]
    return total


def _index_of(flags: Bool[Tensor, "*B C"]) -> Int[Tensor, "*B"]:
    """Index of the flag that is True, C if all are False."""
    return torch.where(flags.any(-1), flags.to(torch.uint8).argmax(-1), flags.shape[-1])


def _enumerated(allowed: Tensor, no_picks: int) -> Int[Tensor, "B K C"]:
    """The first `no_picks` assignments: digits of a running number select the free copy to take."""
    batch, no_chains = len(allowed), allowed.shape[1] - 1
    code = torch.arange(no_picks, device=allowed.device).expand(batch, no_picks)
    free = torch.ones(batch, no_picks, no_chains, dtype=torch.bool, device=allowed.device)
    picks = []
    for p in range(no_chains):
        options = free & allowed[:, None, p, :-1]
        count = options.sum(-1).clamp(min=1)
        digit, code = code % count, torch.div(code, count, rounding_mode="floor")
        taken = options & (options.cumsum(-1) - 1 == digit[..., None])
        free = free & ~taken
        picks.append(_index_of(taken))
    return torch.stack(picks, dim=-1)


def _grown(sums: Tensor, allowed: Tensor) -> Int[Tensor, "B C C"]:
    """Greedy assignments, started with the best-resolved chain on each true chain it may take."""
    batch, no_chains = len(allowed), allowed.shape[1] - 1
    sample = torch.arange(batch, device=sums.device)
    anchor = torch.argmax(sums[:, :-1, :, 0].amax(-1), dim=1)
    may_take = allowed[sample, anchor, :-1]
    chains = torch.arange(no_chains, device=sums.device)
    start = torch.where(may_take, chains, _index_of(may_take)[:, None])
    total = sums[sample[:, None], anchor[:, None], start]  # [B, start, 18]
    free = start[..., None] != chains
    picks = []
    for p in range(no_chains):
        is_anchor = (anchor == p)[:, None]
        options = free & allowed[:, None, p, :-1] & ~is_anchor[..., None]
        fit = fit_rmsd(total[:, :, None] + sums[:, None, p, :-1])
        best = torch.argmin(torch.where(options, fit, torch.inf), dim=-1)
        taken = F.one_hot(best, no_chains).bool() & options
        total = total + sums[sample[:, None], p, _index_of(taken)]
        free = free & ~taken
        picks.append(torch.where(is_anchor, start, _index_of(taken)))
    return torch.stack(picks, dim=-1)


def _swapped(pick: Int[Tensor, "B C"], sums: Tensor, allowed: Tensor) -> Int[Tensor, "B C"]:
    """An assignment after the best swaps of two chains, or moves to a free one."""
    no_chains = pick.shape[1]
    sample = torch.arange(len(pick), device=pick.device)
    chains = torch.arange(no_chains, device=pick.device)
    b, p, t = sample[:, None, None], chains[:, None], chains
    for _ in range(_SWAP_ROUNDS):
        # Predicted chain p takes the true chain t; q, which had t, takes p's old one.
        old, q = pick[..., None], _index_of((pick[..., None] == t).mT)[:, None]
        current = sums[b, p, old]
        change = sums[b, p, t] - current + sums[b, q, old] - sums[b, q, t]
        permitted = allowed[b, p, t] & allowed[b, q, old]
        score = _score((current.sum(dim=1, keepdim=True) + change).flatten(1, 2))
        best = torch.argmin(torch.where(permitted.flatten(1), score, torch.inf), dim=1)[:, None]
        mover, target = torch.div(best, no_chains, rounding_mode="floor"), best % no_chains
        moved = torch.where(pick == target, torch.gather(pick, 1, mover), pick)
        pick = torch.where(chains == mover, target, moved)
    return pick
