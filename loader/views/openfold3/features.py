"""Features of an OpenFold3 sample that are computed on the device: plain torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from evofeed.loader.transforms.msa import one_hot
from evofeed.loader.views.columns import GAP_TYPE, NUM_RESTYPES
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.laid import nested
from evofeed.loader.views.openfold3.templates import BINS
from evofeed.protein.residues import GAP

_NEAREST, _FARTHEST, _BEYOND = 3.25, 50.75, 1e8
"""Edges of the template distogram, ångström, and the square of its last bin's upper edge."""


def openfold3_features(laid: dict[str, Tensor], config: OpenFold3Config) -> dict[str, Any]:
    """The features of one sample, completed in place in the arrays of `plan.plan_sample`."""
    laid["msa"].scatter_(-1, laid["_msa"].long()[..., None], 1)
    depth = laid["_depth"]
    mask = laid["msa_mask"][:, : len(depth)]
    if config.unmasked_padding:
        mask.fill_(1)
    else:
        mask.copy_(torch.arange(len(mask), device=depth.device)[:, None] < depth)
    if "_template_restype" in laid:
        fill_templates(laid)
    return nested(laid) | {"ref_space_uid_to_perm": _orders(laid)}


def _orders(laid: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Atom orders of every component, `i32[P, a]`."""
    counts, sizes = laid["_order_counts"].tolist(), laid["_order_sizes"].tolist()
    lengths = [count * size for count, size in zip(counts, sizes, strict=True)]
    parts = torch.split(laid["_orders"][None], lengths, dim=1)  # most components have one order
    return {
        number: part if count == 1 else part.view(count, size)
        for number, (part, count, size) in enumerate(zip(parts, counts, sizes, strict=True))
    }


def fill_templates(laid: Mapping[str, Tensor]) -> None:
    """Writes residues, distances and directions within the chains of each template.

    The arrays, of slots by tokens of the crop, hold the features of empty slots before.
    """
    restype, atoms = laid["_template_restype"].long(), laid["_template_position"]
    num_tokens = restype.shape[1]
    asym = laid["asym_id"][:num_tokens]
    same_chain = (asym[:, None] == asym).float()
    present = ~atoms.isnan().any(-1)
    beta, frame = present[..., 3].float(), present[..., :3].all(-1).float()
    restype = torch.where(restype == GAP, GAP_TYPE, restype)
    laid["template_restype"][:, :num_tokens] = one_hot(restype, NUM_RESTYPES, torch.int32)
    laid["template_pseudo_beta_mask"][:, :num_tokens] = beta
    laid["template_backbone_frame_mask"][:, :num_tokens] = frame
    laid["template_distogram"][:, :num_tokens, :num_tokens] = (
        template_distogram(atoms[..., 3, :]) * same_chain[..., None]
    )
    pair_mask = frame[:, :, None] * frame[:, None] * same_chain
    directions = template_directions(atoms[..., :3, :].nan_to_num()) * pair_mask[..., None]
    laid["template_unit_vector"][:, :num_tokens, :num_tokens] = directions


def template_distogram(position: Tensor) -> Tensor:
    """One-hot bins of the distances between a template's residues: `[T, n, 3]` to
    `[T, n, n, 39]`; zeros where a position is NaN."""
    position = position.double()
    square = (position[:, :, None] - position[:, None]).square().sum(-1, keepdim=True)
    edges = torch.linspace(_NEAREST, _FARTHEST, BINS, dtype=torch.float64, device=position.device)
    edges = edges**2
    return ((square > edges) & (square < pad(edges[1:], (0, 1), value=_BEYOND))).float()


def template_directions(backbone: Tensor) -> Tensor:
    """Unit vectors from each residue's CA to the others, in its frame: `[T, n, 3, 3]` (N, CA and
    C) to `[T, n, n, 3]`."""
    n, ca, c = backbone.unbind(-2)
    x = _unit(c - ca)
    y = _unit((n - ca) - ((n - ca) * x).sum(-1, keepdim=True) * x)
    axes = torch.stack([x, y, torch.linalg.cross(x, y)], -2)
    return _unit(torch.einsum("tixc,tijc->tijx", axes, ca[:, None] - ca[:, :, None]))


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
