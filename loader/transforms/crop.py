"""Which residues and templates a sample keeps, and how it is padded.

Source: AF2 SI 1.2.8. Both rules are OpenFold's, whose odd sides are part of what
published models were trained on: the start of a crop leans to the N-terminus,
and a chain with T templates gets none at all with probability 1/(T + 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Crop:
    """What one sample keeps; the same in all its recycles."""

    start: int
    """First residue."""
    length: int
    """Residues."""
    templates: tuple[int, ...]
    """Templates of the chain, in the order they are used."""

    @property
    def stop(self) -> int:
        """First residue after the crop."""
        return self.start + self.length


def crop_templates(
    num_templates: int, max_templates: int, start: int, order: Sequence[int] | np.ndarray
) -> tuple[int, ...]:
    """Templates `start, start + 1, ...` of a permutation; `start` may be `num_templates`."""
    stop = start + min(num_templates - start, max_templates)
    return tuple(int(i) for i in order[start:stop])
