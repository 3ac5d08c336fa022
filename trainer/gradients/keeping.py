"""What the ranks have kept of their gradients, into a checkpoint and out of it.

The first rank collects and hands out, rank by rank. On as many hosts of as many ranks as before,
every rank gets back exactly what it had. Otherwise each host gets the mean over the old hosts: the
mean that is still to be applied stays the same. A mode that keeps nothing applies it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from evofeed.trainer.gradients.exchange import Exchange

_LINEAR = ("residual", "momentum")


def described(exchange: Exchange) -> dict[str, Any]:
    """Who keeps how much, JSON-ready; every rank must call it."""
    ranks = exchange.inside.size * exchange.between.size
    mine = {role: kept.numel() for role, kept in exchange.kept.items()}
    lengths: list[Any] = [mine] * ranks
    if mine:
        dist.all_gather_object(lengths, mine)
    return {"cuts": exchange.cuts, "lengths": lengths}


def collected(exchange: Exchange, layout: Mapping[str, Any]) -> dict[str, Tensor]:
    """Everybody's, by role and rank, on the CPU of the first rank; every rank must call it."""
    me, found = _rank(exchange), {}
    for rank, lengths in enumerate(layout["lengths"]):
        for role, length in lengths.items():
            if rank == me == 0:
                found[f"{role}.{rank}"] = exchange.kept[role].to("cpu", copy=True)
            elif rank == me:
                dist.send(exchange.kept[role], 0)
            elif me == 0:
                like = exchange.kept["residual"]
                received = like.new_empty(length)
                dist.recv(received, rank)
                found[f"{role}.{rank}"] = received.to("cpu", copy=True)
    return found


def hand_out(exchange: Exchange, before: Mapping[str, Any], saved: Mapping[str, Tensor]) -> None:
    """Give every rank its own again, or its share; every rank must call it.

    Args:
        before: what `described` said when it was saved; empty if nothing was kept.
        saved: what `collected` gave, on the first rank; anything elsewhere.
    """
    if not any(before.get("lengths", ())):
        return
    now, me = described(exchange), _rank(exchange)
    if not exchange.kept:
        if me == 0:
            left = _mean(before, saved, "residual") * len(now["lengths"])
            exchange.left = left  # moved when it is added
        return
    alike = before["cuts"] == now["cuts"] and len(before["lengths"]) == len(now["lengths"])
    for rank, lengths in enumerate(now["lengths"]):
        for role, length in lengths.items():
            exact = alike and before["lengths"][rank].get(role) == length
            if not exact and not (role in _LINEAR and role in before["lengths"][0]):
                continue  # new here, or factors of other matrices: they start again
            mine = exchange.kept[role] if rank == me else None
            if me == 0:
                local = rank % exchange.inside.size
                part = slice(*exchange.cuts[local : local + 2])
                value = saved[f"{role}.{rank}"] if exact else _mean(before, saved, role)[part]
                if mine is not None:
                    mine.copy_(value)
                else:
                    dist.send(value.to(exchange.kept["residual"].device), rank)
            elif mine is not None:
                dist.recv(mine, 0)


def _mean(before: Mapping[str, Any], saved: Mapping[str, Tensor], role: str) -> Tensor:
    """Mean over the hosts that were, of the whole buffer."""
    locals_ = len(before["cuts"]) - 1
    hosts = len(before["lengths"]) // locals_
    wholes = (
        torch.cat([saved[f"{role}.{host * locals_ + local}"] for local in range(locals_)])
        for host in range(hosts)
    )
    return sum(wholes, torch.zeros(before["cuts"][-1])) / hosts


def _rank(exchange: Exchange) -> int:
    return exchange.between.rank * exchange.inside.size + exchange.inside.rank
