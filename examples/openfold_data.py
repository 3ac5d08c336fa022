"""OpenFold's batches: what its model and loss take, from a loader of evofeed.

python examples/openfold_data.py data/

In OpenFold's own `train_openfold.py` only the data module changes: docs/loader.md, "OpenFold".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from torch import Tensor

from evofeed.loader import FeatureLoader, LoaderConfig, openfold_batch
from evofeed.store import Dataset

CONFIG = LoaderConfig(crop_size=32, max_msa_clusters=8, max_extra_msa=16, epoch_len=4)


def batches(loader: FeatureLoader) -> Iterator[dict[str, Tensor]]:
    """An epoch, the recycles last in every tensor."""
    for batch in loader:
        yield openfold_batch(batch)


def main(uri: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the first batch."""
    with FeatureLoader(Dataset.open(uri), CONFIG) as loader:
        return {name: tuple(value.shape) for name, value in next(batches(loader)).items()}


if __name__ == "__main__":
    for name, shape in main(sys.argv[1]).items():
        print(name, shape)
