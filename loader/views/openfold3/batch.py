"""OpenFold3 samples as the batch its training step takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

_LISTED: Final = "ref_space_uid_to_perm"
"""The feature that stays a list, one a sample."""


def openfold3_batch(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Samples padded with zeros to the longest along their first axis, and stacked.

    A last axis of one element goes, as in OpenFold3; texts and atom orders stay lists.
    """
    batch: dict[str, Any] = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        if isinstance(first, Tensor):
            batch[name] = pad_sequence(values, batch_first=True).squeeze(-1)
        elif isinstance(first, dict) and name != _LISTED:
            batch[name] = openfold3_batch(values)
        else:
            batch[name] = values
    return batch
