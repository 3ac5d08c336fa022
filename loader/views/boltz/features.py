"""The last of a Boltz sample's features, made on the device: plain torch."""

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
    """The features of one sample, as `plan.plan_sample` laid them out, written where zeros are."""
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
    """The MSA's codes, masks and profile."""
    drawn, codes = int(laid["_num_rows"]), laid["_codes"]
    count = codes.shape[1]
    here = slice(drawn), slice(count)
    msa, profile = laid["msa"], laid["profile"][:count]
    shown = msa[here].scatter_(-1, codes[:drawn].long()[..., None], 1)
    if config.profile_of_kept:
        torch.sum(shown, 0, dtype=torch.float32, out=profile).div_(drawn)
    else:
        every = codes.long().T
        profile.scatter_add_(1, every, torch.ones_like(every, dtype=torch.float32))
        profile.div_(len(codes))
    if config.padding_of_ones:
        msa[drawn:].fill_(GAP_CODE)
        msa[:drawn, count:].fill_(GAP_CODE)
    paired = laid["_is_paired"][:drawn].index_select(1, laid["_token_chain"])
    laid["msa_paired"][here].copy_(paired)
    torch.gt(laid["deletion_value"], 0, out=laid["has_deletion"])
    laid["msa_mask"][here].fill_(1)
