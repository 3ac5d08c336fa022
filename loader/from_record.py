"""Batches of a single record of a chain or a complex, without a dataset or a loader."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.loader.assembly.batch import complex_batch
from evofeed.loader.assembly.features import AssemblyTensors
from evofeed.loader.assembly.plan import AssemblyInfo, plan_complex
from evofeed.loader.batch import empty_batch, fill_sample
from evofeed.loader.config import LoaderConfig
from evofeed.loader.draws import Crop, draw_crop, sample_key
from evofeed.loader.features import ChainTensors
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.loader.packed import PackedSlab
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.unpack import overflow_tensor, unpack_sample
from evofeed.loader.views.laid import Laid
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord

_CPU = torch.device("cpu")


def record_batch(
    record: ChainRecord, *, no_recycling_iters: int = 3, seed: int = 0, **sizes: int
) -> dict[str, Tensor]:
    """The full chain for prediction: not cropped, with the first templates, without structure.

    Args:
        no_recycling_iters: recycles before the last pass.
        seed: of the rows drawn from its MSA.
        sizes: `max_msa_clusters` and others, if not OpenFold's. A model that was always trained
            with extra sequences fails without any: AF2's outer product mean then divides its
            bias by 1e-3.
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

    `draws` has the decisions about the MSA, one for each recycle (R).
    """
    chain = chain_tensors(record, crop.templates, supervised=config.supervised)
    num_res = config.crop_size or record.num_res
    batch = empty_batch(config, num_res=num_res, batch_size=1, recycles=len(draws), device=_CPU)
    fill_sample(batch, 0, chain, crop, draws, config, use_clamped_fape=1.0)
    return batch


def chain_tensors(
    record: ChainRecord, templates: tuple[int, ...], *, supervised: bool
) -> ChainTensors:
    """A record as tensors on the CPU, with these templates."""
    has_structure = record.all_atom_positions is not None and record.all_atom_mask is not None
    return ChainTensors.of(
        functools.partial(getattr, record),
        record.deletion_matrix(),
        templates,
        with_structure=supervised and has_structure,
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
    """The full complex for prediction: not cropped, with the first templates.

    Args:
        no_recycling_iters: recycles before the last pass.
        seed: of the rows drawn from its MSA.
        supervised: add the true structure and `gt_features`.
        sizes: `max_msa_clusters` and others, if not AlphaFold-Multimer's.
    """
    config = LoaderConfig.multimer_prediction(
        max_recycling_iters=no_recycling_iters, supervised=supervised, **sizes
    )
    key = sample_key(seed, 0, 0)
    sample = complex_tensors(*plan_complex(record, config, SampleDraws(key))), key
    return complex_batch([sample], no_recycling_iters + 1, config)


def complex_tensors(laid: Laid, info: AssemblyInfo) -> AssemblyTensors:
    """A planned complex on the CPU."""
    slab = PackedSlab.of(laid, info, memoryview(b""))
    return AssemblyTensors(info, **unpack_sample(slab.layout, overflow_tensor(slab))[0])
