"""A curriculum by epoch and a held-out set: short chains first, the same validation each time.

python examples/curriculum.py data/
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from evofeed.loader import FeatureLoader, LoaderConfig, LoaderHooks
from evofeed.store import Dataset

SIZES = {"max_msa_clusters": 8, "max_extra_msa": 16}


def weights(index: pa.Table, epoch: int) -> np.ndarray:
    """Chains up to the median length in the first epoch; then all, deep alignments more often."""
    length = index["num_res"].to_numpy()
    if epoch == 0:
        return (length <= np.median(length)).astype(float)
    return np.log1p(index["num_alignments"].to_numpy())


def main(uri: str, valid: str = "") -> tuple[list[list[int]], list[list[int]]]:
    """Lengths of the chains of two epochs, and those of the validation after each."""
    hooks = LoaderHooks(name="short-first-1", weights=weights)
    train = FeatureLoader(
        Dataset.open(uri), LoaderConfig(crop_size=96, epoch_len=8, **SIZES), hooks=hooks
    )
    whole = LoaderConfig(
        crop_size=None, uniform_recycling=False, num_blocks=0, subsample_templates=False,
        clamp_prob=1.0, shuffle_window=0, **SIZES,
    )  # fmt: skip
    held_out = FeatureLoader(Dataset.open(valid or uri), whole)
    start = held_out.state_dict()
    trained, validated = [], []
    with train, held_out:
        for _ in range(2):
            trained.append([int(batch["seq_length"][0]) for batch in train])
            held_out.load_state_dict(start)
            validated.append([int(batch["seq_length"][0]) for batch in held_out])
    return trained, validated


if __name__ == "__main__":
    print(main(*sys.argv[1:3]))
