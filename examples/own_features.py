"""Features and transforms of your own: hydropathy of each residue, depth, atoms with noise.

python examples/own_features.py data/
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from evofeed.loader import ChainSample, FeatureLoader, LoaderConfig, LoaderHooks
from evofeed.store import Dataset

KYTE_DOOLITTLE = (  # in the order of residues.RESTYPES, "ARNDCQEGHILKMFPSTWYV"
    1.8, -4.5, -3.5, -3.5, 2.5, -3.5, -3.5, -0.4, -3.2, 4.5,
    3.8, -3.9, 1.9, 2.8, -1.6, -0.8, -0.7, -0.9, -1.3, 4.2,
)  # fmt: skip
HYDROPATHY = np.array([*KYTE_DOOLITTLE, 0.0], np.float32)


def features(sample: ChainSample) -> dict[str, Any]:
    """Of a whole chain: the loader crops, pads and stacks."""
    return {
        "hydropathy": HYDROPATHY[sample.record.aatype],
        "depth": np.float32(sample.row["num_alignments"]),
    }


def transform(batch: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """On the device: atoms with noise of half an ångström beside the true ones."""
    atoms = batch["all_atom_positions"]
    noise = torch.randn(atoms.shape, generator=generator, device=atoms.device)
    return batch | {"noisy_positions": atoms + 0.5 * noise}


def main(uri: str) -> dict[str, Any]:
    """The first batch."""
    hooks = LoaderHooks(name="hydropathy-1", features=features, transform=transform)
    config = LoaderConfig(crop_size=32, max_msa_clusters=8, max_extra_msa=16)
    with FeatureLoader(Dataset.open(uri), config, hooks=hooks) as loader:
        return next(iter(loader))


if __name__ == "__main__":
    found = main(sys.argv[1])
    for name in ("hydropathy", "depth", "noisy_positions"):
        print(name, tuple(found[name].shape))
