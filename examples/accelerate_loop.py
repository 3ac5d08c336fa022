"""Accelerate: it prepares model and optimiser, and keeps the loader's place in its checkpoint.

accelerate launch examples/accelerate_loop.py data/ checkpoint/
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
from evofeed.trainer import AlphaFold, AlphaFoldLoss, tiny

CONFIG = LoaderConfig(crop_size=32, max_msa_clusters=8, max_extra_msa=16, epoch_len=16)


def main(uri: str, folder: str, steps: int = 2) -> list[float]:
    """Make so many steps more; returns the losses."""
    accelerator = Accelerator()
    torch.manual_seed(0)
    model, loss_of = AlphaFold(tiny().model), AlphaFoldLoss(tiny().loss)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 1e-3))
    loader = FeatureLoader(  # not prepared: it knows its rank, and its batches are on the device
        Dataset.open(uri),
        CONFIG,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        device=accelerator.device,
    )
    accelerator.register_for_checkpointing(loader)
    if Path(folder).exists():
        accelerator.load_state(folder)
    losses = []
    for _, batch in zip(range(steps), loader, strict=False):  # takes no batch too many
        loss, _ = loss_of(model(batch), batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    accelerator.save_state(folder)
    loader.close()
    return losses


if __name__ == "__main__":
    print(main(*sys.argv[1:3]))
