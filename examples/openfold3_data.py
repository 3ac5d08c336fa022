"""OpenFold3's training data from evofeed: what its data module returns as the training loader.

    python examples/openfold3_data.py data/

In OpenFold3's own script only the data module changes: `train_dataloader` returns `Batches(uri)`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from evofeed.loader import FeatureLoader, LoaderConfig, openfold3_batch
from evofeed.store import Dataset


class Batches:
    """Batches of one rank, epoch after epoch; save `state_dict()` with the model's checkpoint."""

    def __init__(self, uri: str, config: LoaderConfig | None = None, **options: Any) -> None:
        rank, world = (int(os.environ.get(name, value)) for name, value in _RANKS)
        self.loader = FeatureLoader(
            Dataset.open(uri).entries,
            config or LoaderConfig.openfold3(),
            **{"rank": rank, "world_size": world, **options},
        )
        self.state_dict = self.loader.state_dict
        self.load_state_dict = self.loader.load_state_dict

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(openfold3_batch, self.loader)


_RANKS = (("RANK", "0"), ("WORLD_SIZE", "1"))  # as torchrun sets them


if __name__ == "__main__":
    batches = Batches(sys.argv[1])
    for name, value in next(iter(batches)).items():
        print(name, getattr(value, "shape", type(value).__name__))
    batches.loader.close()
