"""Numbers of many runs, one after the other."""

from __future__ import annotations

import numpy as np

from evofeed.base.shapes import Int


def joined_runs(starts: Int[np.ndarray, " n"], counts: Int[np.ndarray, " n"]) -> np.ndarray:
    """`i64`: `start, start + 1, ...` of every run in turn."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: np.ndarray = np.arange(total) + np.repeat(starts - ends + counts, counts)
    return numbers
