"""Features of one sample from a decoded chain, on any device.

`constant_features` is called once a sample, `recycle_features` once for each
recycle that will run. All shapes are known on the host, so that neither
synchronizes with a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evofeed.base.shapes import Float, Integer, Shaped
from evofeed.loader.config import LoaderConfig
from evofeed.loader.draws import Crop
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.loader.transforms import clusters, structure
from evofeed.loader.transforms import msa as msa_transforms


@dataclass(frozen=True, slots=True)
class ChainTensors:
    """A full-length chain record as tensors on one device, with the selected templates.

    Shapes: `L` residues, `N` rows in the record's order, `T` templates.
    """

    aatype: Integer[Tensor, " L"]
    residue_index: Integer[Tensor, " L"]
    msa: Integer[Tensor, "N L"]
    deletions: Shaped[Tensor, "N L"]
    profile_counts: Integer[Tensor, "L 22"]
    template_aatype: Integer[Tensor, "T L"]
    template_positions: Float[Tensor, "T L 37 3"]
    template_mask: Float[Tensor, "T L 37"]
    template_sum_probs: Float[Tensor, " T"]
    positions: Float[Tensor, "L 37 3"] | None
    mask: Float[Tensor, "L 37"] | None
    resolution: float
    is_distillation: bool

    @classmethod
    def of(
        cls,
        array: Callable[[str], np.ndarray],
        deletions: Integer[np.ndarray, "N L"],
        templates: tuple[int, ...],
        *,
        with_structure: bool,
        device: torch.device,
        resolution: float,
        is_distillation: bool,
    ) -> ChainTensors:
        """Tensors of a record's arrays, which `array` returns by name, with these templates."""

        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        num_res = len(array("aatype"))
        empty: dict[str, np.ndarray] = {
            "template_aatype": np.zeros([0, num_res], np.uint8),
            "template_all_atom_positions": np.zeros([0, num_res, 37, 3], np.float32),
            "template_all_atom_mask": np.zeros([0, num_res, 37], np.float32),
            "template_sum_probs": np.zeros(0, np.float32),
        }
        codes, xyz, atom_mask, probs = (
            tensor(array(name)[list(templates)] if templates else default)
            for name, default in empty.items()
        )
        return cls(
            aatype=tensor(array("aatype")),
            residue_index=tensor(array("residue_index")),
            msa=tensor(array("msa")),
            deletions=tensor(deletions),
            profile_counts=tensor(array("hhblits_profile_counts")),
            template_aatype=codes,
            template_positions=xyz,
            template_mask=atom_mask.float(),
            template_sum_probs=probs,
            positions=tensor(array("all_atom_positions")) if with_structure else None,
            mask=tensor(array("all_atom_mask")).float() if with_structure else None,
            resolution=resolution,
            is_distillation=is_distillation,
        )

    @property
    def num_res(self) -> int:
        """Residues (L)."""
        return self.aatype.shape[0]


def constant_features(chain: ChainTensors, crop: Crop, config: LoaderConfig) -> dict[str, Tensor]:
    """Features that are the same in every recycle, cropped but not padded."""
    aatype = chain.aatype.to(torch.int64)
    tables = structure.ResidueTables(aatype)
    full = {
        "aatype": aatype,
        "residue_index": chain.residue_index.to(torch.int64),
        "seq_mask": torch.ones(chain.num_res, device=aatype.device),
        "target_feat": msa_transforms.make_target_feat(aatype),
        **structure.make_atom14_masks(tables),
    }
    if config.supervised:
        truth = structure_or_zeros(chain.positions, chain.mask, aatype)
        full |= structure.structure_features(aatype, tables, *truth)
    cut = slice(crop.start, crop.stop)
    features = {name: value[cut] for name, value in full.items()}
    templates = structure.template_features(
        chain.template_aatype.to(torch.int64),
        chain.template_positions,
        chain.template_mask,
        chain.template_sum_probs,
    )
    for name, value in templates.items():
        per_residue = value.dim() > 1 and name != "template_sum_probs"
        features[name] = value[:, cut] if per_residue else value
    return features


def structure_or_zeros(
    positions: Tensor | None, mask: Tensor | None, aatype: Tensor
) -> tuple[Tensor, Tensor]:
    """The true structure; zeros if there is none, masked in every loss."""
    if positions is not None and mask is not None:
        return positions, mask.to(torch.float32)
    shape, device = (len(aatype), 37), aatype.device
    return torch.zeros(*shape, 3, device=device), torch.zeros(shape, device=device)


def _sample_rows(chain: ChainTensors, draws: RecycleDraws, config: LoaderConfig) -> Tensor:
    """Rows after block deletion (and distillation's sampling), shuffled behind the query."""
    device = chain.msa.device
    spans = row_spans(chain.msa.shape[0], draws, config)
    rows = torch.cat([torch.arange(start, stop, device=device) for start, stop in spans])
    if chain.is_distillation:
        order = draws.distillation_order(len(rows) - 1)
        rows = _query_first(rows, order)[: config.max_distillation_msa_clusters]
    return _query_first(rows, draws.row_order(len(rows) - 1))


def row_spans(num_rows: int, draws: RecycleDraws, config: LoaderConfig) -> list[tuple[int, int]]:
    """Spans `[from, to)` of rows after block deletion."""
    size = msa_transforms.block_size(num_rows, config.block_fraction)
    if not config.num_blocks or not size or num_rows == 1:
        return [(0, num_rows)]
    return msa_transforms.remaining_spans(num_rows, draws.block_starts(num_rows), size)


def _query_first(rows: Tensor, order: Tensor) -> Tensor:
    return torch.cat([rows[:1], rows[1:][order]])


def recycle_features(
    chain: ChainTensors, crop: Crop, draws: RecycleDraws, config: LoaderConfig
) -> dict[str, Tensor]:
    """Features of one recycle, cropped but not padded.

    Rows are sampled, masked and clustered at full length (AF2 SI 1.2.6-1.2.7).
    """
    rows = _sample_rows(chain, draws, config)
    centres, extra = rows[: config.max_msa_clusters], rows[config.max_msa_clusters :]
    true_msa, extra_msa = chain.msa[centres], chain.msa[extra]
    position = draws.mask_position(true_msa.shape[0], chain.num_res)
    replacement = draws.replacement(true_msa, chain.profile_counts)
    masked, bert_mask = msa_transforms.mask_msa(true_msa, position, replacement)
    cluster = clusters.nearest_clusters(masked, extra_msa)
    cut = slice(crop.start, crop.stop)
    masked, deletions = masked[:, cut], chain.deletions[centres][:, cut]
    extra_msa, extra_deletions = extra_msa[:, cut], chain.deletions[extra][:, cut]
    profile, deletion_mean = clusters.summarize_clusters(
        masked, deletions, extra_msa, extra_deletions, cluster
    )
    selected = draws.extra_order(extra_msa.shape[0])[: config.max_extra_msa]
    extra_msa, extra_deletions = extra_msa[selected], extra_deletions[selected]
    ones = torch.ones(max(masked.shape[0], len(selected)), crop.length, device=masked.device)
    return {
        "msa_feat": msa_transforms.make_msa_feat(masked, deletions, profile, deletion_mean),
        "msa_mask": ones[: masked.shape[0]],
        "msa_row_mask": ones[: masked.shape[0], 0],
        "bert_mask": bert_mask[:, cut],
        "true_msa": true_msa[:, cut],
        "extra_msa": extra_msa,
        "extra_msa_mask": ones[: len(selected)],
        "extra_msa_row_mask": ones[: len(selected), 0],
        "extra_has_deletion": msa_transforms.has_deletion(extra_deletions),
        "extra_deletion_value": msa_transforms.deletion_value(extra_deletions),
    }
