"""What a deep alignment costs from its file to its shard, in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROWS, COLUMNS = 16_000, 1_500
MOST = 4.0
"""Bytes a cell at the peak, the process before it apart."""
SCRIPT = """
import resource, sys
from evofeed.featurize import ChainSource, FileRef, featurize_chain
from evofeed.store import write_shard
def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
path, shards, cells = sys.argv[1], sys.argv[2], int(sys.argv[3])
small = ChainSource("small", sequence="ACDEFGHIKL")
write_shard(shards, [featurize_chain(small)])
before = most()
chain = ChainSource("deep", alignments=(FileRef("deep.a3m", path),))
write_shard(shards, [featurize_chain(chain)])
print((most() - before) / cells)
"""


def test_a_deep_alignment_takes_four_bytes_a_cell_at_most(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY-", np.uint8)
    base = letters[draw.integers(0, 20, (200, COLUMNS))]
    with (tmp_path / "deep.a3m").open("wb") as file:
        for row in range(ROWS):
            sequence = base[row % 200].copy()
            sequence[row % 1400 : row % 1400 + 8] = letters[draw.integers(0, 20, 8)]
            file.write(b">r%d\n%s\n" % (row, sequence.tobytes()))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "deep.a3m"), str(tmp_path / "shards"),
         str(ROWS * COLUMNS)],
        # Whatever is freed goes back at once, as it does in arrays of full size.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144",
             "ARROW_DEFAULT_MEMORY_POOL": "system"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < MOST
