"""A merged complex to AlphaFold-Multimer's features: once a sample, and once a recycle.

The names and values are OpenFold's, without batch and recycling axes and without padding. The
device is never asked for anything: every shape is known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.assembly.plan import Facts
from evofeed.loader.config import LoaderConfig
from evofeed.loader.features import known_structure
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.loader.transforms import clusters, structure
from evofeed.loader.transforms import msa as msa_transforms
from evofeed.protein.residues import GAP

_PROFILE_EPS: Final = 1e-4
"""Added to the number of rows a profile is of, as upstream's masked mean does."""


@dataclass(frozen=True, slots=True)
class AssemblyTensors:
    """A whole complex on one device: `L` residues of all chains, `R` rows, `T` template slots.

    `kept` are residues of the sample. The last `R - facts.num_rows` rows are padding: zeros.
    """

    facts: Facts
    kept: Integer[Tensor, " C"]
    aatype: Integer[Tensor, " L"]
    residue_index: Integer[Tensor, " L"]
    asym_id: Integer[Tensor, " L"]
    entity_id: Integer[Tensor, " L"]
    sym_id: Integer[Tensor, " L"]
    msa: Integer[Tensor, "R L"]
    deletions: Integer[Tensor, "R L"]
    row_entity: Integer[Tensor, " R"]
    template_aatype: Integer[Tensor, "T L"]
    template_all_atom_positions: Float[Tensor, "T L 37 3"]
    template_all_atom_mask: Integer[Tensor, "T L 37"]
    positions: Float[Tensor, "L 37 3"] | None = None
    mask: Integer[Tensor, "L 37"] | None = None

    @property
    def num_res(self) -> int:
        """Residues of all chains (L)."""
        return self.aatype.shape[0]

    def own_cells(self, rows: Integer[Tensor, " n"]) -> Bool[Tensor, "n L"]:
        """Cells of a chain's own rows; others are gaps beside unpaired rows of other chains."""
        entity = self.row_entity[rows][:, None]
        return (entity == 0) | (entity == self.entity_id)


_IDS: Final = ("aatype", "residue_index", "asym_id", "entity_id", "sym_id")


def assembly_constants(
    assembly: AssemblyTensors, templates: tuple[int, ...], config: LoaderConfig
) -> dict[str, Tensor]:
    """Features that are the same in every recycle, of the residues that are kept."""
    crop = assembly.kept
    features = {name: getattr(assembly, name)[crop] for name in _IDS}
    aatype = features["aatype"]
    features |= {
        "seq_mask": torch.ones(len(crop), device=aatype.device),
        "target_feat": msa_transforms.one_hot(aatype, GAP),
        "msa_profile": msa_profile(assembly),
        **structure.make_atom14_masks(structure.ResidueTables(aatype)),
    }
    for name in ("template_aatype", "template_all_atom_positions", "template_all_atom_mask"):
        value = getattr(assembly, name)
        # Views, not an index tensor: that would have to cross to the device.
        kept = [value[number][crop] for number in templates]
        features[name] = torch.stack(kept) if kept else value[:0, crop]
    features["template_mask"] = torch.ones(len(templates), device=aatype.device)
    if config.supervised:
        positions, mask = known_structure(assembly.positions, assembly.mask, assembly.aatype)
        features |= {"all_atom_positions": positions[crop], "all_atom_mask": mask[crop]}
    return features


def ground_truth(assembly: AssemblyTensors) -> dict[str, Tensor]:
    """The whole, uncropped truth that a permutation of chains chooses from (`gt_features`)."""
    positions, mask = known_structure(assembly.positions, assembly.mask, assembly.aatype)
    tables = structure.ResidueTables(assembly.aatype)
    return {
        **{name: getattr(assembly, name) for name in _IDS},
        **structure.make_atom14_masks(tables),
        **structure.structure_features(assembly.aatype, tables, positions, mask),
        **structure.atom37_to_torsion_angles(tables, positions, mask),
    }


def profile_counts(assembly: AssemblyTensors) -> Integer[Tensor, "L 22"]:
    """How many rows have each code in each column."""
    msa = assembly.msa[: assembly.facts.num_rows].to(torch.int64).T
    counts = torch.zeros(assembly.num_res, GAP + 1, dtype=torch.int64, device=msa.device)
    return counts.scatter_add_(1, msa, torch.ones_like(msa))


def msa_profile(assembly: AssemblyTensors) -> Float[Tensor, "C 22"]:
    """Share of each code in each column that is kept, over all rows of the merged MSA."""
    counts = profile_counts(assembly)[assembly.kept].to(torch.float32)
    return counts / (assembly.facts.num_rows + _PROFILE_EPS)


def assembly_recycle(
    assembly: AssemblyTensors, draws: RecycleDraws, config: LoaderConfig
) -> dict[str, Tensor]:
    """Features of one recycle, of the residues that are kept.

    Rows are chosen, masked and clustered at full length.
    """
    device, count, crop = assembly.msa.device, assembly.facts.num_rows, assembly.kept
    first = torch.zeros(1, dtype=torch.int64, device=device)
    padding = torch.arange(count, assembly.msa.shape[0], device=device)
    rows = torch.cat([first, draws.row_order(count - 1) + 1, padding])
    num_clusters = config.max_msa_clusters
    centres = rows[:num_clusters]
    extra = rows[num_clusters : num_clusters + config.max_extra_msa]
    real, real_extra = min(count, num_clusters), max(min(count - num_clusters, len(extra)), 0)
    true_msa = assembly.msa[centres]
    position = draws.mask_position(*true_msa.shape)
    position = position & (torch.arange(len(centres), device=device) < real)[:, None]
    replacement = draws.replacement(true_msa, profile_counts(assembly))
    masked, bert_mask = msa_transforms.mask_msa(true_msa, position, replacement)
    assert config.assemblies is not None
    if not config.assemblies.mask_block_gaps:
        bert_mask = bert_mask * assembly.own_cells(centres)
    share = soft_clusters(masked[:real], assembly.msa[extra[:real_extra]], len(centres) - real)
    extra_msa, extra_deletions = assembly.msa[extra][:, crop], assembly.deletions[extra][:, crop]
    masked, deletions = masked[:, crop], assembly.deletions[centres][:, crop]
    profile, deletion_mean = summarize(
        masked, deletions, extra_msa[:real_extra], extra_deletions[:real_extra], share,
        assembly.num_res, real,
    )  # fmt: skip
    mask = torch.zeros(len(centres), len(crop), device=device)
    extra_mask = torch.zeros(len(extra), len(crop), device=device)
    mask[:real], extra_mask[:real_extra] = 1, 1
    return {
        "msa": masked,
        "true_msa": true_msa[:, crop],
        "bert_mask": bert_mask[:, crop],
        "msa_mask": mask,
        "msa_feat": msa_transforms.make_msa_feat(masked, deletions, profile, deletion_mean),
        "cluster_deletion_mean": deletion_mean,
        "extra_msa": extra_msa,
        "extra_deletion_matrix": extra_deletions.to(torch.float32),
        "extra_msa_mask": extra_mask,
    }


def soft_clusters(
    centres: Integer[Tensor, "M L"], extra: Integer[Tensor, "E L"], padding: int
) -> Float[Tensor, "M E"]:
    """Each extra row's share in each centre: one, or equal shares of all it agrees with most.

    `padding` further centres agree with nothing and share in rows that do so, too.
    """
    counts = clusters.agreements(centres, extra)
    best = counts.amax(1, keepdim=True)
    ties = counts == best
    among = ties.sum(1, keepdim=True) + padding * (best == 0)
    return (ties / among).to(torch.float32).T


def summarize(
    centres: Integer[Tensor, "M C"],
    deletions: Tensor,
    extra: Integer[Tensor, "E C"],
    extra_deletions: Tensor,
    share: Float[Tensor, "K E"],
    num_res: int,
    real: int,
) -> tuple[Float[Tensor, "M C 23"], Float[Tensor, "M C"]]:
    """`cluster_profile` and `cluster_deletion_mean` of the kept columns.

    Each member weighs as much as the complex has residues and the centre one, as
    AlphaFold-Multimer has it. Padded centres have neither.
    """
    size = share.sum(1) * num_res + 1
    hot = msa_transforms.one_hot(extra, msa_transforms.NUM_CODES).flatten(1)
    members = (share @ hot).view(real, -1, msa_transforms.NUM_CODES)
    own = msa_transforms.one_hot(centres[:real], msa_transforms.NUM_CODES)
    profile = torch.zeros(*centres.shape, msa_transforms.NUM_CODES, device=centres.device)
    profile[:real] = (members * num_res + own) / size[:, None, None]
    mean = torch.zeros(centres.shape, device=centres.device)
    total = (share @ extra_deletions.to(torch.float32)) * num_res
    mean[:real] = (total + deletions[:real]) / size[:, None]
    return profile, mean
