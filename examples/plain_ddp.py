"""Plain DDP: each rank reads its own part of every optimiser step, whatever their number.

torchrun --nproc-per-node 8 examples/plain_ddp.py data/
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
from evofeed.trainer import AlphaFold, AlphaFoldLoss, tiny

CONFIG = LoaderConfig(
    crop_size=32, max_msa_clusters=8, max_extra_msa=16, epoch_len=16, global_batch_size=8
)


def main(uri: str, steps: int = 2) -> list[float]:
    """Make so many optimiser steps; returns this rank's mean losses."""
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    loader = FeatureLoader(Dataset.open(uri), CONFIG, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(AlphaFold(tiny().model).to(loader.device))
    loss_of = AlphaFoldLoss(tiny().loss)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = 8 // world  # of a rank in one optimiser step
    losses, stream = [], iter(loader)
    for _ in range(steps):
        total = 0.0
        for _ in range(batches):
            batch = next(stream)
            loss, _ = loss_of(model(batch), batch)
            (loss / batches).backward()
            total += float(loss) / batches
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    loader.close()
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    print(main(sys.argv[1]))
