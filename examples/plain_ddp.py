"""Plain DDP: each rank reads its own part of every optimiser step, whatever their number.

torchrun --nproc-per-node 8 examples/plain_ddp.py data/ checkpoint.pt

Run again, with as many ranks or others, it goes on with the very next step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
from evofeed.trainer import AlphaFold, AlphaFoldLoss, tiny

CONFIG = LoaderConfig(
    crop_size=32, max_msa_clusters=8, max_extra_msa=16, epoch_len=10_000, global_batch_size=8
)


def main(uri: str, checkpoint: str, steps: int = 2) -> list[float]:
    """Make so many optimiser steps more; returns their losses, the means of all ranks."""
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    loader = FeatureLoader(Dataset.open(uri), CONFIG, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = AlphaFold(tiny().model).eval().to(loader.device)  # eval: without dropout
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    if Path(checkpoint).exists():
        saved = torch.load(checkpoint, map_location=loader.device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    ranks, loss_of = DistributedDataParallel(model), AlphaFoldLoss(tiny().loss)
    batches = 8 // world  # of a rank in one optimiser step
    losses, stream = [], iter(loader)
    for _ in range(steps):
        mean = torch.zeros((), device=loader.device)
        for _ in range(batches):
            batch = next(stream)
            loss, _ = loss_of(ranks(batch), batch)
            (loss / batches).backward()
            mean += loss.detach() / batches / world
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean)
        losses.append(float(mean))
    if rank == 0:  # the ranks hold the same
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        torch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint)
    loader.close()
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    print(main(*sys.argv[1:3]))
