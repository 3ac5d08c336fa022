"""The truth of a complex, its equal chains in the order that fits a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from evofeed.protein.features import SUPERVISED
from evofeed.protein.residues import ATOM_ORDER
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
    outputs: Mapping[str, Any], batch: Mapping[str, Tensor], no_chains: int | None = None
) -> dict[str, Tensor]:
    """The batch with the labels that its chains are compared with; itself if it has no others.

    Args:
        outputs: of the model, `final_atom_positions` among them.
        batch: with features that `flat_batch` makes of `gt_features`.
        no_chains: at least as many as any complex has, see `align_chains`; counted if not given.

    Raises:
        ValueError: it is not given where nothing may wait for the device, in a recorded step.
    """
    truth = {
        n.removeprefix(GROUND_TRUTH): v for n, v in batch.items() if n.startswith(GROUND_TRUTH)
    }
    own = {name: value for name, value in batch.items() if not name.startswith(GROUND_TRUTH)}
    if not truth:
        return own
    if no_chains is None:
        no_chains = _count(own["asym_id"], truth["asym_id"])
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


def _count(*asym_id: Tensor) -> int:
    if asym_id[0].is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "a recorded step of complexes must know the largest number of chains beforehand: "
            "set `no_chains` of the loss, or give the loader an attribute `most_chains`"
        )
    return max(int(ids.max()) for ids in asym_id)
