"""Labels of a complex, with its identical chains in the order that best fits a prediction."""

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
"""Prefix of features of the full complex, `[B, M, ...]` with M residues, uncropped."""
_CA: Final = ATOM_ORDER["CA"]
_IDS: Final = ("asym_id", "entity_id", "residue_index")
_ROWS: Final = 1024


def flat_batch(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """A batch with its `gt_features` as top-level entries, padded to a multiple of 1,024 rows.

    Complexes have any size; without the padding each size would need a separate CUDA graph.
    """
    flat = dict(batch)
    truth: Mapping[str, Tensor] = flat.pop("gt_features", {})
    for name, value in truth.items():
        if value.dim() > 1:
            padded_rows = -value.shape[1] % _ROWS
            padding = [0, 0] * (value.dim() - 2) + [0, padded_rows]
            flat[GROUND_TRUTH + name] = F.pad(value, padding) if padded_rows else value
    return flat


@torch.no_grad()
def with_assigned_truth(
    outputs: Mapping[str, Any], batch: Mapping[str, Tensor], no_chains: int | None = None
) -> dict[str, Tensor]:
    """The batch with the labels of the chains that its predicted chains are matched to.

    A batch without features of the full complex keeps its labels.

    Args:
        outputs: of the model, `final_atom_positions` among them.
        batch: with the features that `flat_batch` makes from `gt_features`.
        no_chains: at least as many as any complex has, see `align_chains`; counted if None.

    Raises:
        ValueError: `no_chains` is None in a step recorded as a CUDA graph, which cannot count.
    """
    truth = {
        n.removeprefix(GROUND_TRUTH): v for n, v in batch.items() if n.startswith(GROUND_TRUTH)
    }
    features = {name: value for name, value in batch.items() if not name.startswith(GROUND_TRUTH)}
    if not truth:
        return features
    if no_chains is None:
        no_chains = _count(features["asym_id"], truth["asym_id"])
    alignment = align_chains(
        outputs["final_atom_positions"][..., _CA, :],
        features["seq_mask"],
        {name: features[name] for name in _IDS},
        truth["all_atom_positions"][..., _CA, :],
        truth["all_atom_mask"][..., _CA],
        {name: truth[name] for name in _IDS},
        no_chains=no_chains,
    )
    return features | gather_labels({n: truth[n] for n in SUPERVISED if n in truth}, alignment)


def _count(*asym_id: Tensor) -> int:
    if asym_id[0].is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "a step recorded as a CUDA graph needs the largest number of chains of a complex: "
            "set `no_chains` of the loss, or give the loader an attribute `most_chains`"
        )
    return max(int(ids.max()) for ids in asym_id)
