"""Batches of complexes: the features of every sample, and its uncropped ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from evofeed.loader.assembly.features import (
    AssemblyTensors,
    assembly_constants,
    assembly_recycle,
    ground_truth,
)
from evofeed.loader.batch import empty_batch, put, stack_padded
from evofeed.loader.config import LoaderConfig
from evofeed.loader.draws import draw_crop, use_clamped_fape
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.protein.features import ASSEMBLY_BATCH


def complex_batch(
    samples: Sequence[tuple[AssemblyTensors, int]], recycles: int, config: LoaderConfig
) -> dict[str, Any]:
    """A batch of complexes; a sample is its tensors and the key of its random draws.

    `gt_features` has each sample's uncropped truth, padded to the longest; none without
    supervision.
    """
    first = samples[0][0]
    batch = empty_batch(
        config,
        num_res=config.crop_size or first.num_res,
        batch_size=len(samples),
        recycles=recycles,
        device=first.aatype.device,
        table=ASSEMBLY_BATCH,
    )
    for number, (assembly, key) in enumerate(samples):
        _fill(batch, number, assembly, key, recycles, config)
    if not config.supervised:
        return dict(batch)
    truths = [ground_truth(assembly) for assembly, _ in samples]
    padded = {name: stack_padded([truth[name] for truth in truths]) for name in truths[0]}
    return {**batch, "gt_features": padded}


def _fill(
    batch: dict[str, Tensor],
    number: int,
    assembly: AssemblyTensors,
    key: int,
    recycles: int,
    config: LoaderConfig,
) -> None:
    """Writes a sample's features into its slice of a zeroed batch.

    All chains get templates from the same slots.
    """
    rules, info, slots = config.assemblies, assembly.info, assembly.template_aatype.shape[0]
    no_templates = rules is not None and rules.lose_templates and config.crop_size is not None
    templates = () if no_templates else draw_crop(config, key, 1, slots).templates
    put(batch, assembly_constants(assembly, templates, config), number)
    scalars = {
        "seq_length": len(assembly.crop),
        "num_alignments": info.num_rows,
        "assembly_num_chains": info.num_chains,
        "resolution": info.resolution,
        "is_distillation": float(info.is_distillation),
        "use_clamped_fape": use_clamped_fape(config, key),
    }
    for name, value in scalars.items():
        batch[name][number].fill_(value)
    for recycle in range(recycles):
        draws = RecycleDraws(config, key, recycle, assembly.aatype.device)
        put(batch, assembly_recycle(assembly, draws, config), recycle, number)
