"""One record of a chain or a complex as a batch of one, without a dataset or a loader."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.loader.assembly.make import complex_batch
from evofeed.loader.assembly.merge import AssemblyTensors, Entity, merge_entities
from evofeed.loader.assembly.pairing import EntityRows, plan_rows
from evofeed.loader.batch import empty_batch, fill_sample
from evofeed.loader.config import AssemblyConfig, LoaderConfig
from evofeed.loader.draws import Crop, draw_crop, sample_key
from evofeed.loader.features import ChainTensors
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord

_CPU = torch.device("cpu")


def record_batch(
    record: ChainRecord, *, no_recycling_iters: int = 3, seed: int = 0, **sizes: int
) -> dict[str, Tensor]:
    """The whole chain for prediction: nothing cropped, the first templates, no true structure.

    Args:
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
    record: ChainRecord, config: LoaderConfig, crop: Crop, draws: Sequence[RecycleDraws]
) -> dict[str, Tensor]:
    """The chain's features from explicit random decisions, FAPE clamped.

    `draws` has those about the MSA, one for each recycle (R).
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
    known = record.all_atom_positions is not None and record.all_atom_mask is not None
    return ChainTensors.of(
        functools.partial(getattr, record),
        record.deletion_matrix(),
        templates,
        with_structure=supervised and known,
        device=_CPU,
        resolution=record.resolution,
        is_distillation=record.is_distillation,
    )


def assembly_batch(
    record: AssemblyRecord,
    *,
    no_recycling_iters: int = 3,
    seed: int = 0,
    supervised: bool = False,
    **sizes: int,
) -> dict[str, Any]:
    """The whole complex for prediction: nothing cropped, the first templates.

    Args:
        no_recycling_iters: recycles before the last pass.
        seed: of the rows drawn from its MSA.
        supervised: with the true structure, and `gt_features`.
        sizes: `max_msa_clusters` and others, if not AlphaFold-Multimer's.
    """
    config = LoaderConfig.multimer_prediction(
        max_recycling_iters=no_recycling_iters, supervised=supervised, **sizes
    )
    rules = config.assemblies or AssemblyConfig()
    merged = merged_record(record, rules)
    sample = merged, torch.arange(merged.num_res), sample_key(seed, 0, 0)
    return complex_batch([sample], no_recycling_iters + 1, config)


def merged_record(record: AssemblyRecord, rules: AssemblyConfig) -> AssemblyTensors:
    """The chains of a complex paired and merged, on the CPU."""
    entities, rows = [], []
    for chain, pairing, names in zip(record.chains, record.pairing, record.copies, strict=True):
        first = tuple(range(min(chain.num_templates, rules.max_templates)))
        own = chain_tensors(chain, first, supervised=False)
        others = chain_tensors(pairing, (), supervised=False) if pairing else None
        entities.append(Entity(own, others, len(names)))
        pairs = (pairing.msa, pairing.msa_species) if pairing else (None,)
        rows.append(EntityRows.of(chain.msa, len(names), *pairs))
    positions = mask = None
    if record.all_atom_positions is not None and record.all_atom_mask is not None:
        positions = torch.from_numpy(record.all_atom_positions)
        mask = torch.from_numpy(record.all_atom_mask).to(torch.float32)
    return merge_entities(entities, plan_rows(rows, rules), positions, mask, rules)
