"""The last of a Protenix sample's features, made on the device: plain torch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from torch import Tensor

from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.laid import nested


def protenix_features(laid: dict[str, Tensor], config: ProtenixConfig) -> dict[str, dict[str, Any]]:
    """One sample as `plan.plan_sample` laid it out, its features, labels and `basic`."""
    laid["input_feature_dict.msa"].copy_(laid["_msa"])
    features = nested(laid)
    features["input_feature_dict"]["atom_perm_list"] = _orders(laid)
    return features


def _orders(laid: Mapping[str, Tensor]) -> list[list[int]]:
    """Of every atom the places it may take in its residue.

    Lists are made for all atoms of a run of residues of as many orders: most have one.
    """
    counts, sizes = laid["_order_counts"].tolist(), laid["_order_sizes"].tolist()
    out: list[list[int]] = []
    at = 0
    for count, run in groupby(zip(counts, sizes, strict=True), lambda pair: pair[0]):
        stop = at + count * sum(size for _, size in run)
        out += laid["_orders"][at:stop].view(-1, count).tolist()
        at = stop
    return out
