"""One complex as a batch of one, without a dataset or a loader around it."""

from __future__ import annotations

from typing import Any

import torch

from evofeed.loader.assembly.batch import with_truth
from evofeed.loader.assembly.make import fill_assembly
from evofeed.loader.assembly.merge import AssemblyTensors, Entity, merge_entities
from evofeed.loader.assembly.pairing import EntityRows, plan_rows
from evofeed.loader.assembly_config import AssemblyConfig
from evofeed.loader.batch import empty_batch
from evofeed.loader.config import LoaderConfig
from evofeed.loader.draws import sample_key
from evofeed.loader.from_record import chain_tensors
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.features import ASSEMBLY_BATCH

_CPU = torch.device("cpu")


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
        record: the complex.
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
    recycles = no_recycling_iters + 1
    batch = empty_batch(
        config,
        num_res=merged.num_res,
        batch_size=1,
        recycles=recycles,
        device=_CPU,
        table=ASSEMBLY_BATCH,
    )
    key = sample_key(seed, 0, 0)
    truth = fill_assembly(
        batch,
        0,
        merged,
        torch.arange(merged.num_res),
        tuple(range(min(merged.num_templates, config.max_templates))),
        [RecycleDraws(config, key, recycle, _CPU) for recycle in range(recycles)],
        config,
        rules,
        use_clamped_fape=0.0,
    )
    return with_truth(batch, [truth])


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
