"""From a run's `gradients` to what averages them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from evofeed.trainer.config import GradientConfig
from evofeed.trainer.gradients.exchange import Bfloat16, Exchange, Hierarchical, Span, Whole
from evofeed.trainer.gradients.hosts import Hosts
from evofeed.trainer.gradients.low_rank import LowRank
from evofeed.trainer.gradients.quantized import Quantized
from evofeed.trainer.gradients.sparse import Sparse


def exchange_of(
    config: GradientConfig,
    spans: Iterable[Span],
    size: int,
    *,
    rank: int,
    ranks: int,
    device: torch.device,
) -> Exchange:
    """What averages a flat gradient of `size` elements; every rank must call it.

    Raises:
        TrainerError: the hosts have different numbers of ranks.
    """
    if config.mode == "none" or ranks == 1:
        return Whole(rank, ranks, spans, size)
    hosts = Hosts.of(rank, ranks, device)
    if config.mode == "hierarchical":
        return Hierarchical(hosts, spans, size)
    if config.mode == "bf16":
        return Bfloat16(hosts, spans, size)
    if config.mode == "int8":
        return Quantized(hosts, spans, size, device)
    warmup = config.warmup_steps
    if config.mode == "powersgd":
        return LowRank(hosts, spans, size, device, rank=config.rank, warmup=warmup)
    return Sparse(
        hosts, spans, size, device, density=config.density, momentum=config.momentum, warmup=warmup
    )
