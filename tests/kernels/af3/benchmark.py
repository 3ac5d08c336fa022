"""A benchmark of the projects' own code, run in a process of its own."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[3]
BENCHMARKS, PROJECTS = ROOT / "benchmarks", ROOT / ".projects"


def benchmark(script: str, words: list[str]) -> None:
    """It runs, its weights drawn by NumPy: SciPy, which the projects ask, takes seconds."""
    sys.path = [str(BENCHMARKS), *sys.path, str(PROJECTS)]
    from scipy.stats import truncnorm

    draw = np.random.default_rng(0)
    truncnorm.rvs = lambda size, scale, **_: scale * draw.standard_normal(size)
    sys.argv = [script, *words]
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
