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
    pred_chains = F.one_hot(pred["asym_id"], no_chains + 1)[..., 1:].double()  # [B, R, C]
    entity_of = {
        "pred": _entities(pred["asym_id"], pred["entity_id"], no_chains),
        "true": _entities(true["asym_id"], true["entity_id"], no_chains),
    }
    present = entity_of["pred"] > 0
    allowed = (entity_of["pred"][:, :, None] == entity_of["true"][:, None]) & present[..., None]
    sums = _pair_sums(pred_ca, pred_mask, pred_chains, true_ca, true_mask, rows, known, allowed)
    all_of_them = math.factorial(no_chains)
    picks, total = _enumerated(sums, allowed, min(most_assignments, all_of_them))
    if most_assignments < all_of_them:
        grown, grown_total = _grown(sums, allowed)
        picks, total = torch.cat([picks, grown], dim=1), torch.cat([total, grown_total], dim=1)
    best = torch.argmin(_score(total), dim=1)
    pick = torch.gather(picks, 1, best[:, None, None].expand(-1, 1, no_chains))[:, 0]
    if most_assignments < all_of_them:
        pick = _exchanged(pick, sums, allowed, present)
    final = torch.gather(sums, 2, pick[..., None, None].expand(-1, -1, 1, sums.shape[-1]))
    own = torch.arange(no_chains, device=pick.device)
    pick = torch.where(present & allowed.any(-1), pick, own)
    number = (pred["asym_id"] - 1).clamp(min=0)
    chain_of_residue = torch.gather(pick, 1, number)[..., None]
    return ChainAlignment(
        chain=pick,
        rmsd=fit_rmsd((final[:, :, 0] * present[..., None]).sum(1)),
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
    length = true["asym_id"].shape[1]
    place = torch.arange(length, device=chains.device)
    of_chain = true["asym_id"][..., None] == chains  # [B, M, C]
    start = torch.where(of_chain, place[:, None], length).amin(dim=1).clamp(max=length - 1)
    first = torch.gather(true["residue_index"], 1, start)  # [B, C]
    rows = start[:, None] + pred["residue_index"][..., None] - first[:, None]
    inside = (rows >= 0) & (rows < length)
    rows = rows.clamp(0, length - 1)
    flat = rows.flatten(1)
    found = {
        name: torch.gather(true[name], 1, flat).view(rows.shape)
        for name in ("asym_id", "residue_index")
    }
    same = (found["asym_id"] == chains) & (
        found["residue_index"] == pred["residue_index"][..., None]
    )
    return rows, inside & same & (pred["asym_id"] > 0)[..., None]


def _entities(asym_id: Tensor, entity_id: Tensor, no_chains: int) -> Int[Tensor, "B C"]:
    """Entity of each chain, 0 where there is no such chain."""
    chains = torch.arange(1, no_chains + 1, device=asym_id.device)
    return torch.where(asym_id[..., None] == chains, entity_id[..., None], 0).amax(dim=1)


def _pair_sums(
    pred_ca: Tensor,
    pred_mask: Tensor,
    pred_chains: Tensor,
    true_ca: Tensor,
    true_mask: Tensor,
    rows: Tensor,
    known: Tensor,
    allowed: Tensor,
) -> Float[Tensor, "B C C 18"]:
    """Sums of every predicted chain on every true one, in float64 about the middle."""
    x, y = (_centred(ca, mask) for ca, mask in ((pred_ca, pred_mask), (true_ca, true_mask)))
    flat = rows.flatten(1)
    partner = torch.gather(y, 1, flat[..., None].expand(-1, -1, 3)).view(*rows.shape, 3)
    weight = torch.gather(true_mask.double(), 1, flat).view(rows.shape)
    weight = weight * pred_mask.double()[..., None] * known
    terms = fit_sums(x[:, :, None].expand_as(partner), partner, weight)  # [B, R, C, 18]
    sums = torch.matmul(pred_chains.transpose(1, 2), terms.flatten(2))
    return torch.unflatten(sums, -1, terms.shape[2:]) * allowed[..., None]


def _centred(points: Tensor, mask: Tensor) -> Tensor:
    points, mask = points.double(), mask.double()[..., None]
    centre = torch.sum(points * mask, dim=1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return (points - centre) * mask


def _enumerated(
    sums: Tensor, allowed: Tensor, most: int
) -> tuple[Int[Tensor, "B K C"], Float[Tensor, "B K 18"]]:
    """The first `most` assignments: digits of a running number say which free copy is taken."""
    batch, no_chains = sums.shape[:2]
    code = torch.arange(most, device=sums.device).expand(batch, most)
    free = torch.ones(batch, most, no_chains, dtype=torch.bool, device=sums.device)
    total = sums.new_zeros(batch, most, sums.shape[-1])
    picks = []
    for p in range(no_chains):
        options = free & allowed[:, None, p]
        count = options.sum(-1).clamp(min=1)
        digit, code = code % count, torch.div(code, count, rounding_mode="floor")
        pick = options & (options.cumsum(-1) - 1 == digit[..., None])
        free = free & ~pick
        total = total + torch.matmul(pick.to(sums.dtype), sums[:, p])
        picks.append(torch.argmax(pick.to(torch.uint8), dim=-1))
    return torch.stack(picks, dim=-1), total


def _score(total: Float[Tensor, "B K 18"]) -> Float[Tensor, "B K"]:
    """RMSD of assignments, infinite for one that compares much less than another."""
    count = total[..., 0]
    enough = count >= _LEAST_SHARE * count.amax(dim=1, keepdim=True)
    return torch.where(enough, fit_rmsd(total), torch.inf)


def _grown(sums: Tensor, allowed: Tensor) -> tuple[Int[Tensor, "B C C"], Float[Tensor, "B C 18"]]:
    """Assignments grown from the best-known chain, put in turn on each true one."""
    batch, no_chains = sums.shape[:2]
    anchor = torch.argmax(sums[..., 0].amax(-1), dim=1)  # [B]
    starts = torch.eye(no_chains, dtype=torch.bool, device=sums.device).expand(batch, -1, -1)
    of_anchor = torch.gather(sums, 1, anchor[:, None, None, None].expand(-1, 1, *sums.shape[2:]))
    total = of_anchor[:, 0]  # [B, start, 18]
    free = ~starts
    picks = [starts.to(torch.uint8).argmax(-1)] * no_chains
    for p in range(no_chains):
        options = free & allowed[:, None, p]
        trial = total[:, :, None] + sums[:, None, p]
        score = torch.where(options, fit_rmsd(trial), torch.inf)
        is_anchor = (anchor == p)[:, None, None]
        best = torch.argmin(score, dim=-1)
        pick = F.one_hot(best, no_chains).bool() & options & ~is_anchor
        free = free & ~pick
        total = total + torch.matmul(pick.to(sums.dtype), sums[:, p])
        picks[p] = torch.where(is_anchor[..., 0], picks[p], best)
    possible = torch.gather(allowed, 1, anchor[:, None, None].expand(-1, 1, no_chains))[:, 0]
    return torch.stack(picks, dim=-1), total * possible[..., None]  # no points: no assignment


def _exchanged(pick: Tensor, sums: Tensor, allowed: Tensor, present: Tensor) -> Tensor:
    """An assignment after the best exchanges of two chains, or moves to a free one."""
    no_chains = pick.shape[1]
    sums = sums * present[:, :, None, None]
    for _ in range(_SWAP_ROUNDS):
        taken = F.one_hot(pick, no_chains) * present[..., None]  # [B, p, t]
        owned, owner = taken.amax(1), taken.argmax(1)  # [B, t]
        mine = torch.gather(sums, 2, pick[..., None, None].expand(-1, -1, 1, sums.shape[-1]))
        total = mine.sum(1)  # [B, 1, 18]
        # p takes t; who had t takes what p had.
        theirs = torch.gather(mine[:, :, 0], 1, owner[..., None].expand(-1, -1, sums.shape[-1]))
        back = sums[
            torch.arange(len(sums), device=sums.device)[:, None, None],
            owner[:, None],
            pick[:, :, None],
        ]
        delta = sums - mine + (back - theirs[:, None]) * owned[:, None, :, None]
        swap_ok = torch.gather(allowed, 1, owner[..., None].expand(-1, -1, no_chains))
        swap_ok = torch.gather(
            swap_ok.transpose(1, 2), 1, pick[..., None].expand(-1, -1, no_chains)
        )
        fits = allowed & (swap_ok | (owned == 0)[:, None]) & present[..., None]
        score = torch.where(
            fits,
            _score((total[:, :, None] + delta[:, :, :]).flatten(1, 2)).view(fits.shape),
            torch.inf,
        )
        best = torch.argmin(score.flatten(1), dim=1)
        p, t = torch.div(best, no_chains, rounding_mode="floor"), best % no_chains
        better = (
            torch.gather(score.flatten(1), 1, best[:, None])[:, 0] < fit_rmsd(total[:, 0]) - 1e-12
        )
        had = torch.gather(pick, 1, p[:, None])
        chains = torch.arange(no_chains, device=pick.device)
        other = (torch.gather(owner, 1, t[:, None]) == chains) & (
            torch.gather(owned, 1, t[:, None]) > 0
        )
        moved = torch.where(other, had, pick)
        moved = torch.where(chains == p[:, None], t[:, None], moved)
        pick = torch.where(better[:, None], moved, pick)
    return pick
