"""A complex in a slot, already on the device, to the features of one sample of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evofeed.base.shapes import Integer
from evofeed.loader.assembly.features import assembly_constants, assembly_recycle, ground_truth
from evofeed.loader.assembly.merge import AssemblyTensors, DeviceRows, Entity, merge_entities
from evofeed.loader.assembly.reading import AssemblySlab, Member
from evofeed.loader.batch import put
from evofeed.loader.config import AssemblyConfig, LoaderConfig
from evofeed.loader.draws import draw_crop
from evofeed.loader.features import ChainTensors
from evofeed.loader.msa_draws import MsaDraws
from evofeed.loader.unpack import unpack_chain


def unpack_assembly(
    slab: AssemblySlab,
    data: Tensor,
    config: AssemblyConfig,
    *,
    resolution: float,
    is_distillation: bool,
) -> tuple[AssemblyTensors, Integer[Tensor, " C"]]:
    """The merged complex of a slot, and the residues to keep."""

    def unpack(member: Member, templates: int = 0) -> ChainTensors:
        was_read = any(part.name == "template_aatype" for part in member.slab.parts)
        chosen = tuple(range(min(member.sizes[3], templates) if was_read else 0))
        return unpack_chain(
            member.slab._replace(start=slab.start),
            data,
            member.sizes,
            chosen,
            resolution=resolution,
            is_distillation=is_distillation,
        )

    entities = [
        Entity(unpack(chain, config.max_templates), unpack(rows) if rows else None, number)
        for chain, rows, number in zip(slab.chains, slab.pairing, slab.copies, strict=True)
    ]
    atoms = unpack(slab.whole) if slab.whole else entities[0].chain
    numbers = data[slab.at - slab.start : slab.stop - slab.start].view(torch.int32)
    ids, kept, paired, *unpaired = torch.split(numbers.to(torch.int64), list(slab.sizes))
    rows = DeviceRows(paired.view(-1, len(entities)), tuple(unpaired), ids.view(3, -1))
    return merge_entities(entities, rows, atoms.positions, atoms.mask, config), kept


def draw_templates(
    config: LoaderConfig, rules: AssemblyConfig, key: int, num_templates: int
) -> tuple[int, ...]:
    """Slots of templates that a sample keeps, in order; of every chain the same."""
    if rules.lose_templates and config.crop_size is not None:
        return ()
    return draw_crop(config, key, 1, num_templates).templates


def fill_assembly(
    batch: dict[str, Tensor],
    number: int,
    assembly: AssemblyTensors,
    kept: Integer[Tensor, " C"],
    templates: tuple[int, ...],
    draws: Sequence[MsaDraws],
    config: LoaderConfig,
    rules: AssemblyConfig,
    *,
    use_clamped_fape: float,
) -> dict[str, Tensor]:
    """Make a sample's features and write them into its place of a zeroed batch.

    Returns:
        The whole truth (`gt_features`) of this sample; empty without supervision.
    """
    put(batch, assembly_constants(assembly, kept, templates, config), number)
    scalars = {
        "seq_length": len(kept),
        "num_alignments": assembly.num_rows,
        "assembly_num_chains": assembly.num_chains,
        "resolution": assembly.resolution,
        "is_distillation": float(assembly.is_distillation),
        "use_clamped_fape": use_clamped_fape,
    }
    for name, value in scalars.items():
        batch[name][number].fill_(value)
    for recycle, drawn in enumerate(draws):
        gaps = rules.mask_block_gaps
        features = assembly_recycle(assembly, kept, drawn, config, mask_block_gaps=gaps)
        put(batch, features, recycle, number)
    return ground_truth(assembly) if config.supervised else {}


def with_truth(batch: dict[str, Tensor], truths: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """The batch and, in `gt_features`, each sample's whole truth, padded to the longest."""
    if not all(truths):
        return dict(batch)
    if len(truths) == 1:  # thirty copies less
        return {**batch, "gt_features": {name: value[None] for name, value in truths[0].items()}}
    padded = {
        name: pad_sequence([truth[name] for truth in truths], batch_first=True)
        for name in truths[0]
    }
    return {**batch, "gt_features": padded}
