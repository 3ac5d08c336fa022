"""The last of a Protenix sample's features, made on the device: plain torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evofeed.loader.views.columns import RESTYPES
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.entry_view import numbers_within
from evofeed.loader.views.laid import nested
from evofeed.loader.views.openfold3.features import template_directions, template_distogram


def protenix_features(laid: dict[str, Tensor], config: ProtenixConfig) -> dict[str, dict[str, Any]]:
    """One sample as `plan.plan_sample` laid it out, its features, labels and `basic`."""
    laid["input_feature_dict.msa"].copy_(laid["_msa"])
    if config.templates:
        fill_templates(laid, config)
    features = nested(laid)
    features["input_feature_dict"]["atom_perm_list"] = AtomOrders(laid)
    return features


def fill_templates(laid: Mapping[str, Tensor], config: ProtenixConfig) -> None:
    """Atoms, distances and directions of every slot, written where zeros are."""
    into = {n.partition(".")[2]: one for n, one in laid.items() if ".template_" in n}
    atoms, restype = laid["_template_position"], into["template_aatype"]
    last = atoms[..., :1, :]
    last = last if config.filled_templates else torch.full_like(last, torch.nan)
    slots = into["template_atom_mask"].shape[2]
    atoms = torch.cat([atoms, last.expand(-1, -1, slots - atoms.shape[2], -1)], 2)
    seen = ~atoms.isnan().any(-1)
    glycine = restype == RESTYPES.index("GLY")
    beta = torch.where(glycine[..., None], atoms[..., 1, :], atoms[..., 4, :])
    there = torch.where(glycine, seen[..., 1], seen[..., 4])
    frame = seen[..., :3].all(-1)
    atoms = atoms.nan_to_num()
    into["template_atom_mask"].copy_(seen)
    into["template_atom_positions"].copy_(atoms)
    into["template_pseudo_beta_mask"].copy_(there[:, :, None] & there[:, None])
    into["template_backbone_frame_mask"].copy_(frame[:, :, None] & frame[:, None])
    into["template_distogram"].copy_(template_distogram(beta))
    directions = template_directions(atoms[..., :3, :])
    into["template_unit_vector"].copy_(directions * into["template_backbone_frame_mask"][..., None])


class AtomOrders(Sequence[list[int]]):
    """Of every atom the places it may take in its residue; lists are made as they are asked for.

    Thousands of lists a sample would have Python look for garbage in the loader's thread: all of a
    training process, which stands still for a tenth of a second meanwhile.
    """

    def __init__(self, laid: Mapping[str, Tensor]) -> None:
        counts, sizes = laid["_order_counts"].numpy(), laid["_order_sizes"].numpy()
        ends = np.cumsum(counts * sizes)
        self._first = np.repeat(ends - counts * sizes, sizes) + numbers_within(sizes)
        self._stop, self._step = np.repeat(ends, sizes), np.repeat(sizes, sizes)
        self._places = laid["_orders"].numpy()

    def __len__(self) -> int:
        return len(self._first)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    def __getitem__(self, atom: Any) -> Any:
        """An atom's list; of a slice those of its atoms."""
        if isinstance(atom, slice):
            return [self[number] for number in range(*atom.indices(len(self)))]
        return self._places[self._first[atom] : self._stop[atom] : self._step[atom]].tolist()
