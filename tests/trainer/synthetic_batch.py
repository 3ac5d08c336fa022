"""A batch out of thin air: right names, shapes and masks, and a self-consistent structure.

For benchmarks and tests that need the model's input but not a dataset. The chain
is a smooth random walk with ideal residues, so every structural loss has a
reachable zero. Letters as in `evofeed.protein.features`: L residues, S and E MSA rows.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.protein.features import BATCH, Feature
from evofeed.protein.pseudo_beta import pseudo_beta
from evofeed.protein.residues import GAP
from evofeed.trainer.model.constants import table
from evofeed.trainer.model.primitives import one_hot
from evofeed.trainer.model.rigid import Rigid, quaternion_to_matrix, to_4x4
from evofeed.trainer.model.torsion import (
    atom14_to_atom37,
    frames_to_atom14,
    torsion_angles_to_frames,
)

__all__ = ["synthetic_batch", "synthetic_complex"]

_CA_CA = 3.8  # ångström between neighbouring CA atoms


def synthetic_batch(
    *,
    num_res: int,
    num_seq: int,
    num_extra_seq: int,
    num_templates: int,
    no_recycling_iters: int = 0,
    batch_size: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """All features of `protein.features.BATCH` in the loader's form, float32, on `device`."""
    generator = torch.Generator().manual_seed(seed)
    lead = [batch_size]
    aatype = torch.randint(0, 20, [*lead, num_res], generator=generator)
    batch = _structure(aatype, generator)
    batch |= {
        "residue_index": torch.arange(num_res).expand(*lead, -1),
        "seq_length": torch.full(lead, num_res),
        "seq_mask": torch.ones(*lead, num_res),
        "target_feat": one_hot(aatype + 1, 22, torch.float32),
        "resolution": torch.full(lead, 1.5),
        "is_distillation": torch.zeros(lead),
        "use_clamped_fape": torch.ones(lead),
    }
    batch |= _templates(batch, num_templates, generator)
    cycles = [
        _msa(aatype, num_seq, num_extra_seq, generator) for _ in range(no_recycling_iters + 1)
    ]
    batch |= {name: torch.stack([cycle[name] for cycle in cycles]) for name in cycles[0]}
    for feature in BATCH:
        _check(feature, batch[feature.name])
    return {name: value.contiguous().to(device) for name, value in batch.items()}


def synthetic_complex(
    *, num_chains: int, batch_size: int = 1, **sizes: int | torch.device | str
) -> dict[str, Tensor]:
    """`synthetic_batch` cut into chains of equal length, in the features of complexes.

    Half of the chains, rounded up, are copies of one sequence in name: they share its entity.
    """
    batch = synthetic_batch(batch_size=batch_size, **sizes)  # type: ignore[arg-type]
    num_res = batch["aatype"].shape[-1]
    chain = torch.arange(num_res) * num_chains // num_res
    first = torch.searchsorted(chain, torch.arange(num_chains))
    copies = (num_chains + 1) // 2
    ids = {
        "asym_id": chain + 1,
        "entity_id": (chain - copies).clamp(min=-1) + 2,
        "sym_id": torch.where(chain < copies, chain + 1, 1),
        "residue_index": torch.arange(num_res) - first[chain],
    }
    device = batch["aatype"].device
    batch |= {n: v.expand(batch_size, -1).contiguous().to(device) for n, v in ids.items()}
    deletions = 3 * torch.tan(batch.pop("extra_deletion_value") * (math.pi / 2))
    del batch["extra_has_deletion"]
    batch["extra_deletion_matrix"] = deletions.round()
    batch["target_feat"] = batch["target_feat"][..., 1:].contiguous()
    return batch


def _check(feature: Feature, value: Tensor) -> None:
    extra = 2 if feature.stage == "recycle" else 1
    assert value.dim() == len(feature.dims) + extra, (feature.name, value.shape)
    assert str(value.dtype).endswith(feature.dtype), (feature.name, value.dtype)


def _structure(aatype: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Atoms, frames and angles of a smooth random chain of ideal residues."""
    shape = aatype.shape
    turns = 0.4 * torch.randn([*shape, 4], generator=generator)
    quaternion = F.normalize(torch.cumsum(turns, dim=-2) + turns[..., :1, :], dim=-1)
    rots = quaternion_to_matrix(quaternion)
    trans = torch.cumsum(_CA_CA * rots[..., 0], dim=-2)
    angles = F.normalize(torch.randn([*shape, 7, 2], generator=generator), dim=-1)
    frames = torsion_angles_to_frames(Rigid(rots, trans), angles, aatype)
    atom14 = frames_to_atom14(frames, aatype)
    look = {
        name: table(name, aatype.device)[aatype]
        for name in (
            "ATOM14_MASK", "ATOM37_MASK", "ATOM14_TO_ATOM37", "ATOM37_TO_ATOM14",
            "ATOM14_AMBIGUOUS", "ATOM14_SWAP", "CHI_MASK", "CHI_PI_PERIODIC",
        )
    }  # fmt: skip
    atom37 = atom14_to_atom37(atom14, look["ATOM37_TO_ATOM14"], look["ATOM37_MASK"])
    exists = torch.cat([torch.ones([*shape, 4]), look["CHI_MASK"]], dim=-1)
    exists[..., 1:3] = 0  # pre-omega and phi carry no atoms
    ambiguous = torch.cat([torch.zeros([*shape, 4]), look["CHI_PI_PERIODIC"]], dim=-1)
    gt_frames = to_4x4(frames)
    half_turn = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0]))
    is_ambiguous = ambiguous[..., None, None]
    swap = look["ATOM14_SWAP"][..., None].expand(*shape, 14, 3)
    return {
        "aatype": aatype,
        "all_atom_positions": atom37,
        "all_atom_mask": look["ATOM37_MASK"],
        "atom37_atom_exists": look["ATOM37_MASK"],
        "atom14_atom_exists": look["ATOM14_MASK"],
        "residx_atom14_to_atom37": look["ATOM14_TO_ATOM37"],
        "residx_atom37_to_atom14": look["ATOM37_TO_ATOM14"],
        "atom14_gt_exists": look["ATOM14_MASK"],
        "atom14_gt_positions": atom14,
        "atom14_alt_gt_positions": torch.gather(atom14, -2, swap),
        "atom14_alt_gt_exists": look["ATOM14_MASK"],
        "atom14_atom_is_ambiguous": look["ATOM14_AMBIGUOUS"],
        "rigidgroups_gt_frames": gt_frames,
        "rigidgroups_gt_exists": exists,
        "rigidgroups_group_exists": exists,
        "rigidgroups_group_is_ambiguous": ambiguous,
        "rigidgroups_alt_gt_frames": torch.where(
            is_ambiguous > 0, gt_frames @ half_turn, gt_frames
        ),
        "pseudo_beta": pseudo_beta(aatype, atom37),
        "pseudo_beta_mask": torch.ones(shape),
        "backbone_rigid_tensor": gt_frames[..., 0, :, :],
        "backbone_rigid_mask": torch.ones(shape),
        "chi_angles_sin_cos": angles[..., 3:, :] * look["CHI_MASK"][..., None],
        "chi_mask": look["CHI_MASK"],
    }


def _templates(
    batch: dict[str, Tensor], num_templates: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Copies of the chain, each with its own noise of half an ångström."""

    def copies(value: Tensor) -> Tensor:
        return (
            torch.stack([value] * num_templates, dim=1) if num_templates else value[:, None][:, :0]
        )

    positions = copies(batch["all_atom_positions"])
    noise = 0.5 * torch.randn(positions.shape, generator=generator)
    mask = copies(batch["all_atom_mask"])
    aatype = copies(batch["aatype"])
    angles = torch.randn([*aatype.shape, 7, 2], generator=generator)
    angles = F.normalize(angles, dim=-1)
    noisy = (positions + noise) * mask[..., None]
    lead = aatype.shape[:-1]
    return {
        "template_aatype": aatype,
        "template_all_atom_positions": noisy,
        "template_all_atom_mask": mask,
        "template_sum_probs": torch.ones([*lead, 1]),
        "template_mask": torch.ones(lead),
        "template_pseudo_beta": pseudo_beta(aatype, noisy),
        "template_pseudo_beta_mask": torch.ones(aatype.shape),
        "template_torsion_angles_sin_cos": angles,
        "template_alt_torsion_angles_sin_cos": angles,
        "template_torsion_angles_mask": torch.ones([*aatype.shape, 7]),
    }


def _msa(
    aatype: Tensor, num_seq: int, num_extra_seq: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """A query mutated at random, 15 % of it asked for by the masked-MSA loss."""
    rows = aatype[..., None, :].expand(*aatype.shape[:-1], num_seq + num_extra_seq, -1)
    mutated = torch.randint(0, GAP + 1, rows.shape, generator=generator)
    keep = torch.rand(rows.shape, generator=generator) < 0.5
    rows = torch.where(keep, rows, mutated)
    deletions = torch.floor(10 * torch.rand(rows.shape, generator=generator) ** 8)
    value = torch.atan(deletions / 3) * (2 / math.pi)
    true_msa, extra = rows[..., :num_seq, :], rows[..., num_seq:, :]
    asked = (torch.rand(true_msa.shape, generator=generator) < 0.15).float()
    shown = torch.where(asked > 0, torch.full_like(true_msa, 22), true_msa)
    profile = torch.rand([*true_msa.shape, 23], generator=generator)
    has_deletion = (deletions > 0).float()
    clustered = slice(None, num_seq)
    per_cell = [x[..., clustered, :][..., None] for x in (has_deletion, value)]
    feat = [one_hot(shown, 23, torch.float32), *per_cell, profile / profile.sum(-1, keepdim=True)]
    return {
        "msa_feat": torch.cat([*feat, per_cell[1]], dim=-1),
        "msa_mask": torch.ones(true_msa.shape),
        "msa_row_mask": torch.ones(true_msa.shape[:-1]),
        "bert_mask": asked,
        "true_msa": true_msa,
        "extra_msa": extra,
        "extra_msa_mask": torch.ones(extra.shape),
        "extra_msa_row_mask": torch.ones(extra.shape[:-1]),
        "extra_has_deletion": has_deletion[..., num_seq:, :],
        "extra_deletion_value": value[..., num_seq:, :],
    }
