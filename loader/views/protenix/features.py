"""Features of a Protenix sample that are computed on the device: plain torch."""

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
    """Features, labels and `basic` of one sample, completed in the arrays of `plan.plan_sample`."""
    laid["input_feature_dict.msa"].copy_(laid["_msa"])
    if config.templates:
        fill_templates(laid, config)
    features = nested(laid)
    features["input_feature_dict"]["atom_perm_list"] = AtomOrders(laid)
    return features


def fill_templates(laid: Mapping[str, Tensor], config: ProtenixConfig) -> None:
    """Writes atoms, distances and directions of every template slot."""
    templates = {k.partition(".template_")[2]: v for k, v in laid.items() if ".template_" in k}
    atoms, restype = laid["_template_position"], templates["aatype"]
    filler = atoms[..., :1, :]
    filler = filler if config.filled_templates else torch.full_like(filler, torch.nan)
    slots = templates["atom_mask"].shape[2]
    atoms = torch.cat([atoms, filler.expand(-1, -1, slots - atoms.shape[2], -1)], 2)
    present = ~atoms.isnan().any(-1)
    glycine = restype == RESTYPES.index("GLY")
    pseudo_beta = torch.where(glycine[..., None], atoms[..., 1, :], atoms[..., 4, :])
    has_beta = torch.where(glycine, present[..., 1], present[..., 4])
    frame = present[..., :3].all(-1)
    atoms = atoms.nan_to_num()
    templates["atom_mask"].copy_(present)
    templates["atom_positions"].copy_(atoms)
    templates["pseudo_beta_mask"].copy_(has_beta[:, :, None] & has_beta[:, None])
    templates["backbone_frame_mask"].copy_(frame[:, :, None] & frame[:, None])
    templates["distogram"].copy_(template_distogram(pseudo_beta))
    directions = template_directions(atoms[..., :3, :])
    templates["unit_vector"].copy_(directions * templates["backbone_frame_mask"][..., None])


class AtomOrders(Sequence[list[int]]):
    """Lists, for every atom, of the indices in its residue that it may take; built on access.

    Thousands of lists per sample would start Python's garbage collection in the loader's thread,
    which stops the training process for a tenth of a second.
    """

    def __init__(self, laid: Mapping[str, Tensor]) -> None:
        counts, sizes = laid["_order_counts"].numpy(), laid["_order_sizes"].numpy()
        ends = np.cumsum(counts * sizes)
        self._first = np.repeat(ends - counts * sizes, sizes) + numbers_within(sizes)
        self._stop, self._step = np.repeat(ends, sizes), np.repeat(sizes, sizes)
        self._indices = laid["_orders"].numpy()

    def __len__(self) -> int:
        return len(self._first)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    def __getitem__(self, atom: Any) -> Any:
        """The list of an atom, or the lists of a slice of atoms."""
        if isinstance(atom, slice):
            return [self[row] for row in range(*atom.indices(len(self)))]
        return self._indices[self._first[atom] : self._stop[atom] : self._step[atom]].tolist()
