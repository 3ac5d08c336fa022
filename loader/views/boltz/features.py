"""A planned Boltz sample to the tensors its model takes: plain torch, on any device.

Every shape is known to the host. Names and values are those of Boltz 1's featurizer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from evofeed.loader.views.boltz.rows import GAP_CODE
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.tensors import longer, stacked_longer, symmetric

NUM_TOKENS: Final = 33
"""Residue types: padding, gap, 20 amino acids, unknown, 5 of RNA, 5 of DNA."""
NUM_ELEMENTS: Final = 128
_CHARACTERS: Final = 64
_POCKET: Final = 4


def boltz_features(packed: Mapping[str, Tensor], config: BoltzConfig) -> dict[str, Any]:
    """The features of one sample, padded to the config's tokens, atoms and rows."""
    features = _tokens(packed, config) | _atoms(packed, config) | _rows(packed, config)
    if not config.symmetries:
        return features
    return features | {
        "all_coords": packed["all_coords"].clone(),
        "all_resolved_mask": packed["all_present"].float(),
        "crop_to_all_atom_map": packed["crop_atoms"].float(),
        **json.loads(packed["symmetries"].numpy().tobytes()),
    }


def _hot(codes: Tensor, classes: int, *sizes: int) -> Tensor:
    """`i64[..., classes]`, the first axes `sizes` long, with zeros behind the codes."""
    shape = *sizes, *codes.shape[len(sizes) :], classes
    hot = torch.zeros(shape, dtype=torch.int64, device=codes.device)
    hot[tuple(map(slice, codes.shape))].scatter_(-1, codes.long()[..., None], 1)
    return hot


def _tokens(packed: Mapping[str, Tensor], config: BoltzConfig) -> dict[str, Tensor]:
    size = config.max_tokens
    count = len(packed["resolved"])
    device = packed["resolved"].device
    numbers = {"token_index": torch.arange(count, device=device)} | {
        name: packed[name]
        for name in ("residue_index", "asym_id", "entity_id", "sym_id", "mol_type")
    }
    masks = {
        "token_pad_mask": torch.ones(count, device=device),
        "token_resolved_mask": packed["resolved"],
        "token_disto_mask": packed["disto_resolved"],
    }
    return {
        **stacked_longer(numbers, size, torch.int64),
        **stacked_longer(masks, size, torch.float32),
        "res_type": _hot(packed["res_type"], NUM_TOKENS, size),
        "disto_center": longer(packed["disto_center"], size),
        "token_bonds": symmetric(packed["bonds"], size, torch.float32)[..., None],
        "pocket_feature": _hot(packed["pocket"], _POCKET, size),
        "cyclic_period": torch.zeros(size, dtype=torch.int32, device=device),
    }


def _atoms(packed: Mapping[str, Tensor], config: BoltzConfig) -> dict[str, Tensor]:
    size, tokens = config.max_atoms, config.max_tokens
    count, present = len(packed["present"]), packed["present"]
    coords = packed["coords"]
    center = (coords * present[:, None]).sum(0) / present.sum().clamp(min=1)
    padding = tokens - len(packed["resolved"])
    return {
        "ref_pos": longer(_moved(packed, config), size),
        "atom_resolved_mask": longer(present, size),
        "ref_element": _hot(packed["element"], NUM_ELEMENTS, size),
        "ref_charge": longer(packed["charge"].to(torch.int8), size),
        "ref_atom_name_chars": _hot(packed["atom_name"] % _CHARACTERS, _CHARACTERS, size),
        "ref_space_uid": longer(packed["space_uid"].long(), size),
        "coords": longer(coords - center, size)[None],
        "atom_pad_mask": longer(torch.ones(count, device=present.device), size),
        "atom_to_token": _hot(packed["atom_token"], tokens, size),
        "token_to_rep_atom": _hot(packed["rep_atom"], size, tokens),
        "r_set_to_rep_atom": _hot(packed["r_set"], size, len(packed["r_set"]) + padding),
        "disto_target": distogram(packed["disto_center"], config),
        "frames_idx": longer(packed["frames"].long(), tokens),
        "frame_resolved_mask": longer(packed["frame_mask"], tokens),
    }


def _moved(packed: Mapping[str, Tensor], config: BoltzConfig) -> Tensor:
    """Conformers turned and moved: all as one, or each about its centre."""
    conformer, rotation, shift = (packed[n] for n in ("conformer", "rotation", "translation"))
    if config.one_move:
        return conformer @ rotation[0] + shift[0]
    uid = packed["space_uid"].long()
    sums = conformer.new_zeros(len(rotation), 4)
    ones = torch.ones_like(conformer[:, :1])
    sums.index_add_(0, uid, torch.cat([conformer, ones], 1))
    centered = conformer - (sums[:, :3] / sums[:, 3:])[uid]
    return torch.einsum("ad,ads->as", centered, rotation[uid]) + shift[uid]


def distogram(coords: Tensor, config: BoltzConfig) -> Tensor:
    """`i64[N, N, bins]`: one-hot number of boundaries below each distance."""
    bounds = torch.linspace(
        config.min_dist, config.max_dist, config.num_bins - 1, device=coords.device
    )
    distance = torch.cdist(coords, coords)
    bins = torch.searchsorted(bounds, distance)
    return _hot(bins, config.num_bins, config.max_tokens, config.max_tokens)


def _rows(packed: Mapping[str, Tensor], config: BoltzConfig) -> dict[str, Tensor]:
    every = packed["codes"].long()
    deletions = torch.zeros(every.shape, device=every.device)
    row, token, count = packed["deletions"].long().T
    deletions[row, token] = count.float()
    factor = math.pi / 2 if config.pi_half else 2 / math.pi
    values = factor * torch.arctan(deletions / 3)
    drawn = int(packed["num_rows"]) if not config.profile_of_kept else len(every)
    hot = _hot(every[:drawn], NUM_TOKENS)
    if config.profile_of_kept:
        profile = hot.sum(0) / drawn
    else:
        profile = torch.stack([(every == code).sum(0) for code in range(NUM_TOKENS)], -1)
        profile = profile / len(every)
    rows, tokens = config.max_seqs, config.max_tokens
    rest = (rows - drawn, tokens - every.shape[1])
    fill = GAP_CODE if config.padding_of_ones else 0
    paired = packed["is_paired"][:drawn].float()[:, packed["token_chain"].long()]

    def padded(value: Tensor) -> Tensor:
        return pad(value, (0, rest[1], 0, rest[0]))

    return {
        "msa": pad(hot, (0, 0, 0, rest[1], 0, rest[0]), value=fill),
        "msa_paired": padded(paired),
        "deletion_value": padded(values[:drawn]),
        "has_deletion": padded(deletions[:drawn] > 0),
        "deletion_mean": longer(values.mean(0), tokens),
        "profile": longer(profile, tokens),
        "msa_mask": padded(torch.ones_like(every[:drawn])),
    }
