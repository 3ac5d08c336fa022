"""The truth of a complex, its equal chains in the order that fits a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from evofeed.features import SUPERVISED
from evofeed.residues import ATOM_ORDER
from evofeed.trainer.losses.permutation import align_chains, gather_labels

GROUND_TRUTH: Final = "gt_features."
"""Names of a whole complex's features begin so, `[B, M, ...]`, M residues without any crop."""
_CA: Final = ATOM_ORDER["CA"]
_IDS: Final = ("asym_id", "entity_id", "residue_index")
_ROWS: Final = 1024


def flat_batch(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """A batch whose `gt_features` stand beside the others, padded to a multiple of 1,024 rows.

    Complexes have any size; without the padding each would be a shape of its own to record.
    """
    flat = dict(batch)
    truth: Mapping[str, Tensor] = flat.pop("gt_features", {})
    for name, value in truth.items():
        if value.dim() > 1:
            missing = -value.shape[1] % _ROWS
            padding = [0, 0] * (value.dim() - 2) + [0, missing]
            flat[GROUND_TRUTH + name] = F.pad(value, padding) if missing else value
    return flat


@torch.no_grad()
def with_assigned_truth(
    outputs: Mapping[str, Any], batch: Mapping[str, Tensor], no_chains: int
) -> dict[str, Tensor]:
    """The batch with the labels that its chains are compared with; itself if it has no others.

    Args:
        outputs: of the model, `final_atom_positions` among them.
        batch: with features that `flat_batch` makes of `gt_features`.
        no_chains: see `align_chains`.
    """
    truth = {
        n.removeprefix(GROUND_TRUTH): v for n, v in batch.items() if n.startswith(GROUND_TRUTH)
    }
    own = {name: value for name, value in batch.items() if not name.startswith(GROUND_TRUTH)}
    if not truth:
        return own
    found = align_chains(
        outputs["final_atom_positions"][..., _CA, :],
        own["seq_mask"],
        {name: own[name] for name in _IDS},
        truth["all_atom_positions"][..., _CA, :],
        truth["all_atom_mask"][..., _CA],
        {name: truth[name] for name in _IDS},
        no_chains=no_chains,
    )
    return own | gather_labels({n: truth[n] for n in SUPERVISED if n in truth}, found)
