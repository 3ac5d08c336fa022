"""Made-up chains of realistic sizes, and a storage that is sometimes slow."""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path

import numpy as np

from evofeed.store import Dataset, DatasetWriter
from evofeed.store.storage import LocalStorage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.trainer.synthetic_records import synthetic_record


def write_chains(folder: Path, count: int, seed: int = 0, scale: float = 1.0) -> Dataset:
    """`count` chains: lengths around 260, rows around 2000 (median 1400), up to 20 templates.

    The distributions are those of OpenProteinSet's chains (P(L > 256) = 0.41, rows capped
    by work at 5e7 / L and by 15,000); `scale` shrinks them for a test on a small machine.
    """
    rng = np.random.default_rng(seed)
    writer = DatasetWriter(str(folder))
    for number in range(count):
        length = int(np.clip(np.exp(rng.normal(5.37, 0.6)), 30, 1000) * scale) + 1
        rows = int(min(np.exp(rng.normal(7.24, 0.85)), 15_000, 5e7 / length) * scale) + 2
        templates = int(rng.integers(0, 21))
        sizes = {"num_res": length, "num_rows": rows, "num_templates": templates}
        writer.add(synthetic_record(seed * count + number, **sizes))
    writer.commit()
    return Dataset.open(str(folder))


class SlowStorage(LocalStorage):
    """Every twentieth read, by place in the file, waits: a slow disk or a far shard.

    Args:
        root: the folder.
        seconds: how long the slow reads wait.
    """

    def __init__(self, root: Path | str, seconds: float) -> None:
        super().__init__(root)
        self.seconds = seconds

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Read, sometimes late."""
        if zlib.crc32(f"{key}{offset}".encode()) % 20 == 0:
            time.sleep(self.seconds)
        super().read_into(key, offset, out)

    def __reduce__(self) -> tuple[type[LocalStorage], tuple]:
        return SlowStorage, (str(self.root), self.seconds)
