"""One chain record as a batch of one, without a dataset or a loader around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evofeed.loader.batch import empty_batch, fill_sample
from evofeed.loader.config import LoaderConfig
from evofeed.loader.draws import draw_crop, sample_key
from evofeed.loader.features import ChainTensors
from evofeed.loader.msa_draws import MsaDraws, RecycleDraws
from evofeed.loader.transforms.crop import Crop
from evofeed.protein.chain_record import ChainRecord

_CPU = torch.device("cpu")


def record_batch(
    record: ChainRecord, *, no_recycling_iters: int = 3, seed: int = 0, **sizes: int
) -> dict[str, Tensor]:
    """The whole chain for prediction: nothing cropped, the first templates, no true structure.

    Args:
        record: the chain.
        no_recycling_iters: recycles before the last pass.
        seed: of the rows drawn from its MSA.
        sizes: `max_msa_clusters` and others, if not OpenFold's. A model that always had extra
            sequences in training is lost without: with none, AF2's outer product mean divides
            its bias by 1e-3.
    """
    config = LoaderConfig.prediction(max_recycling_iters=no_recycling_iters, **sizes)
    key = sample_key(seed, 0, 0)
    crop = draw_crop(config, key, record.num_res, record.num_templates)
    recycles = range(no_recycling_iters + 1)
    return sample_batch(
        record, config, crop, [RecycleDraws(config, key, r, _CPU) for r in recycles]
    )


def sample_batch(
    record: ChainRecord, config: LoaderConfig, crop: Crop, draws: Sequence[MsaDraws]
) -> dict[str, Tensor]:
    """The chain's features from explicit random decisions, FAPE clamped.

    Args:
        record: the chain.
        config: sizes; whether the true structure is wanted.
        crop: residues and templates to keep.
        draws: the decisions about the MSA, one for each recycle (R).
    """
    chain = chain_tensors(record, crop.templates, supervised=config.supervised)
    num_res = config.crop_size or record.num_res
    batch = empty_batch(config, num_res=num_res, batch_size=1, recycles=len(draws), device=_CPU)
    fill_sample(batch, 0, chain, crop, draws, config, use_clamped_fape=1.0)
    return batch


def chain_tensors(
    record: ChainRecord, templates: tuple[int, ...], *, supervised: bool
) -> ChainTensors:
    """A record as tensors on the CPU, with these of its templates."""
    chosen = list(templates)
    positions, mask = record.all_atom_positions, record.all_atom_mask
    known = supervised and positions is not None and mask is not None
    return ChainTensors(
        aatype=torch.from_numpy(record.aatype),
        residue_index=torch.from_numpy(record.residue_index),
        msa=torch.from_numpy(record.msa),
        deletions=torch.from_numpy(record.deletion_matrix()),
        profile_counts=torch.from_numpy(record.hhblits_profile_counts),
        template_aatype=torch.from_numpy(record.template_aatype[chosen]),
        template_positions=torch.from_numpy(record.template_all_atom_positions[chosen]),
        template_mask=torch.from_numpy(record.template_all_atom_mask[chosen]).float(),
        template_sum_probs=torch.from_numpy(record.template_sum_probs[chosen]),
        positions=torch.from_numpy(positions) if known else None,
        mask=torch.from_numpy(mask).float() if known else None,
        resolution=record.resolution,
        is_distillation=record.is_distillation,
    )
