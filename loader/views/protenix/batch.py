"""Protenix samples as the batch its training step takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evofeed.base.shapes import Shaped
from evofeed.loader.views.protenix.view import ProtenixView


def protenix_batch(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sample itself: Protenix trains on one sample a GPU, without an axis for more.

    Raises:
        ValueError: there are several samples, or none.
    """
    if len(samples) != 1:
        raise ValueError(f"Protenix takes 1 sample a batch, not {len(samples)}: set batch_size=1")
    return samples[0]


def sample_texts(
    view: ProtenixView, packed: Mapping[str, Shaped[np.ndarray, "*_"]]
) -> dict[str, Any]:
    """The texts that belong to a sample's `basic`: the entry, and the chains of the crop."""
    row = {int(asym): name for asym, name in zip(view.chain_asym, view.chain_name, strict=True)}
    chains = [str(row[asym]) for asym in np.unique(packed["asym_id"]).tolist()]
    return {"pdb_id": view.entry, "chain_id": chains}
