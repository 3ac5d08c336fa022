"""Train in a loop of your own: batches, model and loss from evofeed, the rest plain PyTorch.

python examples/plain_loop.py data/ checkpoint.pt

Run again, it goes on with the very next batch, in the middle of an epoch too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
from evofeed.trainer import AlphaFold, AlphaFoldLoss, tiny

CONFIG = LoaderConfig(crop_size=32, max_msa_clusters=8, max_extra_msa=16, epoch_len=4)


def main(uri: str, checkpoint: str, steps: int = 4) -> list[float]:
    """Make so many steps more; returns the losses."""
    torch.manual_seed(0)
    model, loss_of = AlphaFold(tiny().model), AlphaFoldLoss(tiny().loss)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = FeatureLoader(Dataset.open(uri), CONFIG)
    model.to(loader.device)
    if Path(checkpoint).exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        torch.set_rng_state(saved["dropout"])  # of the CPU; torch.cuda has its own
    losses: list[float] = []
    while len(losses) < steps:
        for batch in loader:
            loss, _ = loss_of(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            losses.append(float(loss))
            if len(losses) == steps:
                break
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save(state | {"dropout": torch.get_rng_state()}, checkpoint)
    loader.close()
    return losses


if __name__ == "__main__":
    print(main(*sys.argv[1:3]))
