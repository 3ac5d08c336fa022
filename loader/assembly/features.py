"""A merged complex to AlphaFold-Multimer's features: once a sample, and once a recycle.

The names and values are OpenFold's, without batch and recycling axes and without padding. All
shapes are known on the host, so nothing here synchronizes with the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.assembly.plan import AssemblyInfo
from evofeed.loader.config import LoaderConfig
from evofeed.loader.features import structure_or_zeros
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.loader.transforms import clusters, structure
from evofeed.loader.transforms import msa as msa_transforms
from evofeed.protein.residues import GAP

_PROFILE_EPS: Final = 1e-4
"""Added to the number of rows in a profile, as in upstream's masked mean."""


@dataclass(frozen=True, slots=True)
class AssemblyTensors:
    """A full complex on one device: `L` residues of all chains, `R` rows, `T` template slots.

    `crop` indexes the residues of the sample. The last `R - info.num_rows` rows are padding: zeros.
    """

    info: AssemblyInfo
    crop: Integer[Tensor, " C"]
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

    def entity_cells(self, rows: Integer[Tensor, " n"]) -> Bool[Tensor, "n L"]:
        """True in paired rows and in the columns of a row's own entity; others are block gaps."""
        entity = self.row_entity[rows][:, None]
        return (entity == 0) | (entity == self.entity_id)


_IDS: Final = ("aatype", "residue_index", "asym_id", "entity_id", "sym_id")


def assembly_constants(
    assembly: AssemblyTensors, templates: tuple[int, ...], config: LoaderConfig
) -> dict[str, Tensor]:
    """Features that are the same in every recycle, of the cropped residues."""
    crop = assembly.crop
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
        # Views, not an index tensor, which would have to be copied to the device.
        selected = [value[number][crop] for number in templates]
        features[name] = torch.stack(selected) if selected else value[:0, crop]
    features["template_mask"] = torch.ones(len(templates), device=aatype.device)
    if config.supervised:
        positions, mask = structure_or_zeros(assembly.positions, assembly.mask, assembly.aatype)
        features |= {"all_atom_positions": positions[crop], "all_atom_mask": mask[crop]}
    return features


def ground_truth(assembly: AssemblyTensors) -> dict[str, Tensor]:
    """The uncropped ground truth for the permutation of chains (`gt_features`)."""
    positions, mask = structure_or_zeros(assembly.positions, assembly.mask, assembly.aatype)
    tables = structure.ResidueTables(assembly.aatype)
    return {
        **{name: getattr(assembly, name) for name in _IDS},
        **structure.make_atom14_masks(tables),
        **structure.structure_features(assembly.aatype, tables, positions, mask),
        **structure.atom37_to_torsion_angles(tables, positions, mask),
    }


def profile_counts(assembly: AssemblyTensors) -> Integer[Tensor, "L 22"]:
    """Number of rows with each code in each column."""
    msa = assembly.msa[: assembly.info.num_rows].to(torch.int64).T
    counts = torch.zeros(assembly.num_res, GAP + 1, dtype=torch.int64, device=msa.device)
    return counts.scatter_add_(1, msa, torch.ones_like(msa))


def msa_profile(assembly: AssemblyTensors) -> Float[Tensor, "C 22"]:
    """Frequency of each code in each cropped column, over all rows of the merged MSA."""
    counts = profile_counts(assembly)[assembly.crop].to(torch.float32)
    return counts / (assembly.info.num_rows + _PROFILE_EPS)


def assembly_recycle(
    assembly: AssemblyTensors, draws: RecycleDraws, config: LoaderConfig
) -> dict[str, Tensor]:
    """Features of one recycle, of the cropped residues.

    Rows are sampled, masked and clustered at full length.
    """
    device, num_rows, crop = assembly.msa.device, assembly.info.num_rows, assembly.crop
    query = torch.zeros(1, dtype=torch.int64, device=device)
    padding = torch.arange(num_rows, assembly.msa.shape[0], device=device)
    rows = torch.cat([query, draws.row_order(num_rows - 1) + 1, padding])
    num_clusters = config.max_msa_clusters
    centres = rows[:num_clusters]
    extra = rows[num_clusters : num_clusters + config.max_extra_msa]
    num_real = min(num_rows, num_clusters)
    num_extra = max(min(num_rows - num_clusters, len(extra)), 0)
    true_msa = assembly.msa[centres]
    position = draws.mask_position(*true_msa.shape)
    position = position & (torch.arange(len(centres), device=device) < num_real)[:, None]
    replacement = draws.replacement(true_msa, profile_counts(assembly))
    masked, bert_mask = msa_transforms.mask_msa(true_msa, position, replacement)
    assert config.assemblies is not None
    if not config.assemblies.mask_block_gaps:
        bert_mask = bert_mask * assembly.entity_cells(centres)
    num_padding = len(centres) - num_real
    weights = soft_clusters(masked[:num_real], assembly.msa[extra[:num_extra]], num_padding)
    extra_msa, extra_deletions = assembly.msa[extra][:, crop], assembly.deletions[extra][:, crop]
    masked, deletions = masked[:, crop], assembly.deletions[centres][:, crop]
    profile, deletion_mean = summarize_clusters(
        masked, deletions, extra_msa[:num_extra], extra_deletions[:num_extra], weights,
        assembly.num_res, num_real,
    )  # fmt: skip
    mask = torch.zeros(len(centres), len(crop), device=device)
    extra_mask = torch.zeros(len(extra), len(crop), device=device)
    mask[:num_real], extra_mask[:num_extra] = 1, 1
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
    """Weight of each extra row in each centre: equal over the centres it agrees with most.

    `padding` more centres agree with nothing; they count as ties of rows without any agreement.
    """
    counts = clusters.agreements(centres, extra)
    best = counts.amax(1, keepdim=True)
    ties = counts == best
    num_ties = ties.sum(1, keepdim=True) + padding * (best == 0)
    return (ties / num_ties).to(torch.float32).T


def summarize_clusters(
    centres: Integer[Tensor, "M C"],
    deletions: Tensor,
    extra: Integer[Tensor, "E C"],
    extra_deletions: Tensor,
    weights: Float[Tensor, "K E"],
    num_res: int,
    num_real: int,
) -> tuple[Float[Tensor, "M C 23"], Float[Tensor, "M C"]]:
    """`cluster_profile` and `cluster_deletion_mean` of the cropped columns.

    Each member has the number of residues of the complex as its weight and the centre one, as in
    AlphaFold-Multimer. Padded centres are zeros.
    """
    size = weights.sum(1) * num_res + 1
    codes = msa_transforms.one_hot(extra, msa_transforms.NUM_CODES).flatten(1)
    members = (weights @ codes).view(num_real, -1, msa_transforms.NUM_CODES)
    centre_codes = msa_transforms.one_hot(centres[:num_real], msa_transforms.NUM_CODES)
    profile = torch.zeros(*centres.shape, msa_transforms.NUM_CODES, device=centres.device)
    profile[:num_real] = (members * num_res + centre_codes) / size[:, None, None]
    mean = torch.zeros(centres.shape, device=centres.device)
    total = (weights @ extra_deletions.to(torch.float32)) * num_res
    mean[:num_real] = (total + deletions[:num_real]) / size[:, None]
    return profile, mean
