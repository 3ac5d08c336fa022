"""A complex in a slot, already on the device, to the features of one sample of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evofeed.base.shapes import Integer
from evofeed.loader.assembly.catalog import AssemblyPlace
from evofeed.loader.assembly.features import assembly_constants, assembly_recycle, ground_truth
from evofeed.loader.assembly.merge import AssemblyTensors, Entity, merge_entities
from evofeed.loader.assembly.reading import AssemblySlab
from evofeed.loader.batch import empty_batch, put, stack_padded
from evofeed.loader.catalog import ChainPlace
from evofeed.loader.config import AssemblyConfig, LoaderConfig
from evofeed.loader.draws import draw_crop, use_clamped_fape
from evofeed.loader.features import ChainTensors
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.loader.unpack import unpack_chain
from evofeed.protein.features import ASSEMBLY_BATCH


def unpack_assembly(
    slab: AssemblySlab, of: AssemblyPlace, slot: np.ndarray, config: AssemblyConfig, **about: Any
) -> tuple[AssemblyTensors, Integer[Tensor, " C"]]:
    """The merged complex of a slot, and the residues to keep.

    `of` is where it was read, `about` what else `unpack_chain` takes.
    """
    slabs = iter(slab.slabs)

    def unpack(member: ChainPlace, templates: int = 0) -> ChainTensors:
        mine = next(slabs)
        was_read = any(part.name == "template_aatype" for part in mine.parts)
        chosen = tuple(range(min(member.sizes[3], templates) if was_read else 0))
        return unpack_chain(mine, slot, member.sizes, chosen, **about)

    chains = [unpack(chain, config.max_templates) for chain in of.chains]
    pairing = [unpack(rows) if rows else None for rows in of.pairing]
    atoms = unpack(of.whole) if of.whole else chains[0]
    entities = [Entity(*parts) for parts in zip(chains, pairing, of.copies, strict=True)]
    merged = merge_entities(entities, slab.plan, atoms.positions, atoms.mask, config)
    return merged, torch.from_numpy(slab.kept).to(merged.aatype.device)


def fill_assembly(
    batch: dict[str, Tensor],
    number: int,
    assembly: AssemblyTensors,
    kept: Integer[Tensor, " C"],
    key: int,
    recycles: int,
    config: LoaderConfig,
) -> dict[str, Tensor]:
    """Make a sample's features and write them into its place of a zeroed batch.

    `key` is of everything random about it; of every chain the same slots of templates are kept.

    Returns:
        The whole truth (`gt_features`) of this sample; empty without supervision.
    """
    rules, device = config.assemblies, assembly.aatype.device
    assert rules is not None
    lost = rules.lose_templates and config.crop_size is not None
    templates = () if lost else draw_crop(config, key, 1, assembly.num_templates).templates
    put(batch, assembly_constants(assembly, kept, templates, config), number)
    scalars = {
        "seq_length": len(kept),
        "num_alignments": assembly.num_rows,
        "assembly_num_chains": assembly.num_chains,
        "resolution": assembly.resolution,
        "is_distillation": float(assembly.is_distillation),
        "use_clamped_fape": use_clamped_fape(config, key),
    }
    for name, value in scalars.items():
        batch[name][number].fill_(value)
    for recycle in range(recycles):
        draws = RecycleDraws(config, key, recycle, device)
        put(batch, assembly_recycle(assembly, kept, draws, config), recycle, number)
    return ground_truth(assembly) if config.supervised else {}


def complex_batch(
    samples: Sequence[tuple[AssemblyTensors, Integer[Tensor, " C"], int]],
    recycles: int,
    config: LoaderConfig,
) -> dict[str, Any]:
    """A batch of complexes: each merged, the residues to keep, and the key of its random draws.

    `gt_features` has each sample's whole truth, padded to the longest; none without supervision.
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
    truths = [
        fill_assembly(batch, number, *sample, recycles, config)
        for number, sample in enumerate(samples)
    ]
    if not all(truths):
        return dict(batch)
    padded = {name: stack_padded([truth[name] for truth in truths]) for name in truths[0]}
    return {**batch, "gt_features": padded}
