"""A planned Protenix sample to what its data set returns: plain torch, on any device.

Every shape is known to the host. Names and values are those of Protenix's featurizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from evofeed.loader.transforms.msa import one_hot
from evofeed.loader.views.columns import GAP_TYPE, NUM_RESTYPES
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.entry_view import IS_KIND
from evofeed.loader.views.tensors import symmetric

NUM_ELEMENTS: Final = 128
_CHARACTERS: Final = 64
_ATOM37: Final = 37
_FLAGS: Final = (
    "pae_rep_atom_mask",
    "plddt_m_rep_atom_mask",
    "distogram_rep_atom_mask",
    "modified_res_mask",
)
_MOLECULES: Final = ("entity_mol_id", "mol_id", "mol_atom_index")
_ROWS: Final = (
    "rna_pair_num_alignments",
    "prot_pair_num_alignments",
    "prot_unpair_num_alignments",
    "rna_unpair_num_alignments",
)


def protenix_features(
    packed: Mapping[str, Tensor], config: ProtenixConfig
) -> dict[str, dict[str, Any]]:
    """One sample: `input_feature_dict`, `label_dict`, `label_full_dict` and `basic`.

    What the host reads, `plan.ON_HOST`, is on the host.
    """
    features = {
        **_tokens(packed),
        **_atoms(packed),
        **_rows(packed, config),
        **no_templates(config, packed["msa"]),
        "atom_perm_list": _orders(packed),
    }
    return {
        "input_feature_dict": features,
        "label_dict": {
            "coordinate": packed["position"],
            "coordinate_mask": packed["present"].long(),
        },
        "label_full_dict": {
            "coordinate": packed["full_position"],
            "coordinate_mask": packed["full_present"].long(),
            **{name: packed[f"full_{name}"].long() for name in _MOLECULES},
            "pae_rep_atom_mask": packed["full_centre"].long(),
        },
        "basic": _basic(packed),
    }


def _tokens(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    size = len(packed["restype"])
    device = packed["restype"].device
    numbers = ("residue_index", "asym_id", "entity_id", "sym_id")
    return {
        "token_index": torch.arange(size, device=device),
        **{name: packed[name].long() for name in numbers},
        "restype": one_hot(packed["restype"], NUM_RESTYPES),
        "token_bonds": symmetric(packed["bonds"], size, torch.float32),
        "has_frame": packed["has_frame"].long(),
        "frame_atom_index": packed["frames"].long(),
    }


def _atoms(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    atoms = packed["num_atoms"].long()
    count = len(packed["ref_pos"])
    kind = packed["chain_type"]
    names = packed["atom_name"].clamp(max=_CHARACTERS - 1)
    return {
        "ref_pos": packed["ref_pos"],
        "ref_mask": packed["ref_mask"].long(),
        "ref_element": one_hot(packed["element"].long() - 1, NUM_ELEMENTS, torch.int64),
        "ref_charge": packed["charge"].long(),
        "ref_atom_name_chars": one_hot(names, _CHARACTERS, torch.int64),
        "ref_space_uid": packed["space_uid"].long(),
        "atom_to_token_idx": torch.repeat_interleave(
            torch.arange(len(atoms), device=atoms.device), atoms, output_size=count
        ),
        "atom_to_tokatom_idx": packed["tokatom"].long(),
        **{name: (kind == number).long() for name, number in IS_KIND.items()},
        "resolution": packed["resolution"],
        **{name: packed[name].long() for name in _MOLECULES},
        **dict(zip(_FLAGS, packed["flags"].long().unbind(0), strict=True)),
        "bond_mask": symmetric(packed["bond_mask"], count, torch.int64),
        "is_distillation": torch.zeros(1, dtype=torch.bool, device=atoms.device),
    }


def _rows(packed: Mapping[str, Tensor], config: ProtenixConfig) -> dict[str, Tensor]:
    msa = packed["msa"]
    row, token, number = packed["deletions"].long().T
    number = number.clamp(max=127) if config.clip_127 else number
    values = (torch.arctan(number.double() / 3.0) * (2.0 / math.pi)).float()
    empty = torch.zeros(msa.shape, device=msa.device)
    return {
        "msa": msa.long(),
        "has_deletion": empty.index_put((row, token), torch.ones_like(values)),
        "deletion_value": empty.index_put((row, token), values),
        "profile": packed["profile"],
        "deletion_mean": packed["deletion_mean"],
        **dict(zip(_ROWS, packed["num_alignments"].long().unbind(0), strict=True)),
    }


def no_templates(config: ProtenixConfig, like: Tensor) -> dict[str, Tensor]:
    """Empty slots of templates, on the device of a tensor `[rows, tokens]`."""
    shape = (config.max_templates, like.shape[1])
    return {
        "template_restype": torch.full(shape, GAP_TYPE, device=like.device),
        "template_all_atom_mask": torch.zeros(*shape, _ATOM37, device=like.device),
        "template_all_atom_positions": torch.zeros(*shape, _ATOM37, 3, device=like.device),
    }


def _orders(packed: Mapping[str, Tensor]) -> list[list[int]]:
    """Of every atom the places it may take in its residue."""
    counts, sizes = packed["order_counts"].tolist(), packed["order_sizes"].tolist()
    values = packed["orders"].tolist()
    out: list[list[int]] = []
    at = 0
    for count, size in zip(counts, sizes, strict=True):
        out.extend(values[at + count * atom : at + count * (atom + 1)] for atom in range(size))
        at += count * size
    return out


def _basic(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = ["N_asym"]
    for kind in ("prot", "lig", "rna", "dna"):
        names += [f"N_{kind}_atom", f"N_{kind}_token"]
    rna, pair, single, deep = packed["num_alignments"].long()[:, None]
    return {
        **dict(zip(names, packed["basic"][:, None], strict=True)),
        "N_token": torch.tensor([len(packed["restype"])]),
        "N_atom": torch.tensor([len(packed["ref_pos"])]),
        "N_msa": torch.tensor([len(packed["msa"])]),
        "N_msa_prot_pair": pair,
        "N_msa_prot_unpair": single,
        "N_msa_rna_pair": rna,
        "N_msa_rna_unpair": deep,
    }
