"""Features of a Boltz sample that are computed on the device: plain torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from evofeed.loader.views.boltz.rows import GAP_CODE
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.laid import nested


def boltz_features(laid: dict[str, Tensor], config: BoltzConfig) -> dict[str, Any]:
    """The features of one sample, completed in place in the arrays of `plan.plan_sample`."""
    centers = laid["disto_center"][: len(laid["_token_chain"])]
    bins = distogram(centers, config)
    laid["disto_target"][tuple(map(slice, bins.shape))].scatter_(-1, bins[..., None], 1)
    _fill_rows(laid, config)
    features = nested(laid)
    if config.symmetries:
        features |= json.loads(laid["_symmetries"].numpy().tobytes())
    return features


def distogram(coords: Tensor, config: BoltzConfig) -> Tensor:
    """`i64[N, N]`: number of boundaries below each distance."""
    bounds = torch.linspace(
        config.min_dist, config.max_dist, config.num_bins - 1, device=coords.device
    )
    return torch.searchsorted(bounds, torch.cdist(coords, coords))


def _fill_rows(laid: Mapping[str, Tensor], config: BoltzConfig) -> None:
    """Fills in the MSA, its masks and its profile."""
    num_rows, codes = int(laid["_num_rows"]), laid["_codes"]
    num_tokens = codes.shape[1]
    window = slice(num_rows), slice(num_tokens)
    msa, profile = laid["msa"], laid["profile"][:num_tokens]
    rows = msa[window].scatter_(-1, codes[:num_rows].long()[..., None], 1)
    if config.profile_of_kept:
        torch.sum(rows, 0, dtype=torch.float32, out=profile).div_(num_rows)
    else:
        all_codes = codes.long().T
        profile.scatter_add_(1, all_codes, torch.ones_like(all_codes, dtype=torch.float32))
        profile.div_(len(codes))
    if config.padding_of_ones:
        msa[num_rows:].fill_(GAP_CODE)
        msa[:num_rows, num_tokens:].fill_(GAP_CODE)
    paired = laid["_is_paired"][:num_rows].index_select(1, laid["_token_chain"])
    laid["msa_paired"][window].copy_(paired)
    torch.gt(laid["deletion_value"], 0, out=laid["has_deletion"])
    laid["msa_mask"][window].fill_(1)
