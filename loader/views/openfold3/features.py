"""A planned OpenFold3 sample to the tensors its model takes: plain torch, on any device.

Every shape is known to the host. Names and values are those of OpenFold3's featurizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from evofeed.loader.transforms.msa import one_hot
from evofeed.loader.views.columns import GAP_TYPE, NUM_RESTYPES
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.entry_view import IS_KIND
from evofeed.loader.views.tensors import longer, stacked_longer, symmetric
from evofeed.protein.residues import GAP

NUM_ELEMENTS: Final = 119
"""Atomic numbers from 1, the last one for what is unknown."""
_CHARACTERS: Final = 64
_BINS: Final = 39
_NEAREST, _FARTHEST, _BEYOND = 3.25, 50.75, 1e8
"""Edges of the template distogram, ångström, and the end of its last bin, squared."""
_NUMBERS: Final = (
    "token_index",
    "mol_entity_id",
    "mol_sym_id",
    "mol_sym_token_index",
    "mol_sym_component_id",
)


def openfold3_features(packed: Mapping[str, Tensor], config: OpenFold3Config) -> dict[str, Any]:
    """The features of one sample, padded to the config's tokens; atoms and rows as they are.

    What the host reads, `plan.ON_HOST`, is on the host.
    """
    size = config.token_budget
    return {
        **_structure(packed, "", size),
        **_chains(packed, size),
        "ground_truth": {
            **_structure(packed, "label_", len(packed["label_token_index"])),
            "atom_positions": packed["label_position"],
            "atom_resolved_mask": packed["label_resolved"].float(),
        },
        **_conformers(packed),
        "ref_space_uid_to_perm": _orders(packed),
        **_rows(packed, config),
        **template_features(packed, config),
        "loss_weights": {
            name: value
            for (name, _), value in zip(
                config.loss_weights, torch.split(packed["loss_weights"], 1), strict=True
            )
        },
    }


def _structure(packed: Mapping[str, Tensor], prefix: str, size: int) -> dict[str, Tensor]:
    """Features that the tokens of the crop and those of the labels have alike."""
    kind = packed[f"{prefix}chain_type"]
    atoms = packed[f"{prefix}num_atoms"]
    total = len(packed["label_position" if prefix else "conformer"])
    numbers = {name: packed[prefix + name] for name in _NUMBERS}
    numbers |= {name: kind == number for name, number in IS_KIND.items()}
    numbers["is_atomized"] = packed[f"{prefix}is_atomized"]
    numbers["num_atoms_per_token"] = atoms
    numbers["start_atom_index"] = atoms.cumsum(0, dtype=torch.int32) - atoms
    mask = torch.zeros(size, device=kind.device)
    mask[: len(kind)].fill_(1)
    return {
        **stacked_longer(numbers, size, torch.int32),
        "restype": longer(one_hot(packed[f"{prefix}restype"], NUM_RESTYPES, torch.int32), size),
        "token_mask": mask,
        "atom_mask": torch.ones(total, device=kind.device),
    }


def _chains(packed: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
    device = packed["asym_id"].device
    atoms = packed["num_atoms"]
    names = ("residue_index", "asym_id", "entity_id", "sym_id")
    return {
        **stacked_longer({name: packed[name] for name in names}, size, torch.int32),
        "token_bonds": symmetric(packed["bonds"], size, torch.int32),
        "atom_to_token_index": torch.repeat_interleave(
            torch.arange(len(atoms), dtype=torch.int32, device=device),
            atoms,
            output_size=len(packed["conformer"]),
        ),
        "cyclic_mask": torch.zeros(size, dtype=torch.bool, device=device),
    }


def _conformers(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    element = packed["element"].long()
    unknown = torch.full_like(element, NUM_ELEMENTS)
    return {
        "ref_pos": moved_conformers(packed),
        "ref_mask": packed["ref_mask"].to(torch.int32),
        "ref_element": one_hot(
            torch.where(element > 0, element, unknown) - 1, NUM_ELEMENTS, torch.int32
        ),
        "ref_charge": packed["charge"].float(),
        "ref_atom_name_chars": one_hot(packed["atom_name"], _CHARACTERS, torch.int32),
        "ref_space_uid": packed["space_uid"],
    }


def moved_conformers(packed: Mapping[str, Tensor]) -> Tensor:
    """Every component centred, turned and shifted, `f32[A, 3]`; zeros where masked.

    Source: AF3 SI, algorithm 19.
    """
    uid, mask = packed["space_uid"].long(), packed["ref_mask"].float()
    position, shift = packed["conformer"], packed["shift"]
    sums = torch.zeros_like(shift).index_add_(0, uid, position * mask[:, None])
    counts = torch.zeros_like(shift[:, 0]).index_add_(0, uid, mask)
    mean = sums / counts.clamp(min=1)[:, None]
    turned = torch.einsum("aij,aj->ai", packed["rotation"][uid], position - mean[uid])
    return (turned + shift[uid]) * mask[:, None]


def _orders(packed: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Atom orders of every component, `i32[P, a]`."""
    counts, sizes = packed["order_counts"].tolist(), packed["order_sizes"].tolist()
    lengths = [count * size for count, size in zip(counts, sizes, strict=True)]
    parts = torch.split(packed["orders"][None], lengths, dim=1)  # most have one order
    return {
        number: part if count == 1 else part.view(count, size)
        for number, (part, count, size) in enumerate(zip(parts, counts, sizes, strict=True))
    }


def _rows(packed: Mapping[str, Tensor], config: OpenFold3Config) -> dict[str, Tensor]:
    size = config.token_budget
    msa, depth = packed["msa"], packed["depth"]
    count, tokens = msa.shape
    msa = pad(msa, (0, size - tokens), value=GAP_TYPE)
    row, token, number = packed["deletions"].long().T
    value = torch.atan(number / 3.0) * (2.0 / math.pi)
    has = torch.zeros(count, size, device=msa.device)
    has.index_put_((row, token), torch.ones_like(value))
    values = torch.zeros(count, size, device=msa.device)
    values.index_put_((row, token), value)
    mask = torch.zeros(count, size, device=msa.device)
    if config.unmasked_padding:
        mask[:, :tokens] = 1
    else:
        mask[:, :tokens] = (torch.arange(count, device=msa.device)[:, None] < depth).float()
    return {
        "msa": one_hot(msa, NUM_RESTYPES, torch.int32),
        "has_deletion": has,
        "deletion_value": values,
        "deletion_mean": longer(packed["deletion_mean"], size),
        "profile": longer(packed["profile"], size),
        "num_paired_seqs": packed["num_paired"],
        "msa_mask": mask,
    }


def template_features(packed: Mapping[str, Tensor], config: OpenFold3Config) -> dict[str, Tensor]:
    """Residues, distances and directions within each chain of each template."""
    features = no_templates(config, packed["asym_id"].device)
    if "template_restype" not in packed:
        return features
    restype, atoms = packed["template_restype"].long(), packed["template_position"]
    count = restype.shape[1]
    asym = packed["asym_id"]
    together = (asym[:, None] == asym).float()
    known = ~atoms.isnan().any(-1)
    beta, frame = known[..., 3].float(), known[..., :3].all(-1).float()
    places = atoms[..., 3, :].double()
    square = (places[:, :, None] - places[:, None]).square().sum(-1, keepdim=True)
    edges = (
        torch.linspace(_NEAREST, _FARTHEST, _BINS, dtype=torch.float64, device=atoms.device) ** 2
    )
    inside = (square > edges) & (square < pad(edges[1:], (0, 1), value=_BEYOND))
    restype = torch.where(restype == GAP, GAP_TYPE, restype)
    features["template_restype"][:, :count] = one_hot(restype, NUM_RESTYPES, torch.int32)
    features["template_pseudo_beta_mask"][:, :count] = beta
    features["template_backbone_frame_mask"][:, :count] = frame
    features["template_distogram"][:, :count, :count] = inside.float() * together[..., None]
    both = frame[:, :, None] * frame[:, None] * together
    directions = _directions(atoms[..., :3, :].nan_to_num()) * both[..., None]
    features["template_unit_vector"][:, :count, :count] = directions
    return features


def _directions(backbone: Tensor) -> Tensor:
    """Unit vectors from each residue's CA to the others', in its frame: `[T, n, 3, 3]` of N, CA
    and C to `[T, n, n, 3]`."""
    n, ca, c = backbone.unbind(-2)
    x = _unit(c - ca)
    y = _unit((n - ca) - ((n - ca) * x).sum(-1, keepdim=True) * x)
    axes = torch.stack([x, y, torch.linalg.cross(x, y)], -2)
    return _unit(torch.einsum("tixc,tijc->tijx", axes, ca[:, None] - ca[:, :, None]))


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()


def no_templates(config: OpenFold3Config, device: torch.device) -> dict[str, Tensor]:
    """Empty slots of templates."""
    slots, size = config.max_templates, config.token_budget
    restype = torch.full([slots, size], GAP_TYPE, device=device)
    return {
        "template_pseudo_beta_mask": torch.zeros(slots, size, device=device),
        "template_backbone_frame_mask": torch.zeros(slots, size, device=device),
        "template_restype": one_hot(restype, NUM_RESTYPES, torch.int32),
        "template_distogram": torch.zeros(slots, size, size, _BINS, device=device),
        "template_unit_vector": torch.zeros(slots, size, size, 3, device=device),
    }


def stacked(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Samples padded with zeros to the longest along their first axis, and stacked.

    A last axis of one element goes, as in OpenFold3; texts and atom orders stay lists.
    """
    batch: dict[str, Any] = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        if isinstance(first, Tensor):
            batch[name] = pad_sequence(values, batch_first=True).squeeze(-1)
        elif isinstance(first, dict) and name != "ref_space_uid_to_perm":
            batch[name] = stacked(values)
        else:
            batch[name] = values
    return batch
