"""Child processes of a test: scripts, readers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests.featurize.job.stage import children

from evofeed.loader import FeatureLoader

OPENED = """
import sys, time
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
config = LoaderConfig(crop_size=8, max_msa_clusters=4, max_extra_msa=4, max_recycling_iters=0)
loader = FeatureLoader(Dataset.open(sys.argv[1]), config, device="cpu", prefetch=2)
"""
"""First lines of a script."""


def python(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The result of a script in a new Python process."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300
    )


def reader_pid(loader: FeatureLoader) -> int | None:
    """The reader process of this process; None while it is replaced."""
    for pid in children(os.getpid()):
        with contextlib.suppress(OSError):
            if "evofeed.loader.reader_process" in Path(f"/proc/{pid}/cmdline").read_text():
                return pid
    return None
