"""The chains of a complex side by side: one sequence, one MSA, templates chain by chain.

Pure functions of tensors on any device; which rows stand where was decided before
(`evofeed.loader.assembly.pairing`). Chains come entity by entity, as AlphaFold-Multimer has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evofeed.base.shapes import Bool, Float, Integer, Shaped
from evofeed.loader.assembly.pairing import RowPlan
from evofeed.loader.config import AssemblyConfig
from evofeed.loader.features import ChainTensors
from evofeed.protein.assembly_record import chain_numbers
from evofeed.protein.residues import GAP


@dataclass(frozen=True, slots=True)
class Entity:
    """One distinct sequence of a complex: its chain, its rows to pair, and how often it is there.

    `pairing` has no structure and no templates; None where nothing is paired.
    """

    chain: ChainTensors
    pairing: ChainTensors | None
    copies: int


@dataclass(frozen=True, slots=True)
class AssemblyTensors:
    """A whole complex on one device: `L` residues of all chains, `R` rows, `T` template slots.

    `block` marks the cells of a chain's own rows; the others are gaps that stand beside unpaired
    rows of other chains. The last `msa.shape[0] - num_rows` rows are padding: zeros.
    """

    aatype: Integer[Tensor, " L"]
    residue_index: Integer[Tensor, " L"]
    asym_id: Integer[Tensor, " L"]
    entity_id: Integer[Tensor, " L"]
    sym_id: Integer[Tensor, " L"]
    msa: Integer[Tensor, "R L"]
    deletions: Shaped[Tensor, "R L"]
    block: Bool[Tensor, "R L"]
    deletion_mean: Float[Tensor, " L"]
    template_aatype: Integer[Tensor, "T L"]
    template_positions: Float[Tensor, "T L 37 3"]
    template_mask: Float[Tensor, "T L 37"]
    positions: Float[Tensor, "L 37 3"] | None
    mask: Float[Tensor, "L 37"] | None
    num_rows: int
    num_templates: int
    num_chains: int
    resolution: float
    is_distillation: bool

    @property
    def num_res(self) -> int:
        """Residues of all chains (L)."""
        return self.aatype.shape[0]


def merge_entities(
    entities: Sequence[Entity],
    plan: RowPlan,
    positions: Float[Tensor, "L 37 3"] | None,
    mask: Float[Tensor, "L 37"] | None,
    config: AssemblyConfig,
) -> AssemblyTensors:
    """The complex of these chains.

    `positions` are of all chains, entity by entity.
    """
    device = entities[0].chain.aatype.device
    chains = [entity.chain for entity in entities for _ in range(entity.copies)]
    if config.shared_coordinates and positions is not None and mask is not None:
        positions, mask = (_first_copies(entities, value) for value in (positions, mask))
    msa, deletions, block = _merged_rows(entities, plan, config.min_rows)
    templates = _merged_templates(entities, config.max_templates)
    copies = [entity.copies for entity in entities]
    lengths = [chain.num_res for chain in chains]
    ids = torch.from_numpy(np.repeat(chain_numbers(copies), lengths, axis=1))
    asym, entity, sym = ids.to(device, torch.int64).unbind(0)
    return AssemblyTensors(
        aatype=torch.cat([chain.aatype for chain in chains]).to(torch.int64),
        residue_index=torch.cat([chain.residue_index for chain in chains]).to(torch.int64),
        asym_id=asym,
        entity_id=entity,
        sym_id=sym,
        msa=msa,
        deletions=deletions,
        block=block,
        deletion_mean=torch.cat([c.deletions.to(torch.float32).mean(0) for c in chains]),
        template_aatype=templates[0],
        template_positions=templates[1],
        template_mask=templates[2],
        positions=positions,
        mask=mask,
        num_rows=plan.num_rows,
        num_templates=min(config.max_templates, max(c.template_aatype.shape[0] for c in chains)),
        num_chains=len(chains),
        resolution=chains[0].resolution,
        is_distillation=chains[0].is_distillation,
    )


def _first_copies(entities: Sequence[Entity], value: Tensor) -> Tensor:
    parts, start = [], 0
    for entity in entities:
        length = entity.chain.num_res
        parts += [value[start : start + length]] * entity.copies
        start += length * entity.copies
    return torch.cat(parts)


def _merged_rows(
    entities: Sequence[Entity], plan: RowPlan, min_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """MSA, deletions and the cells of own rows, paired rows above blocks of unpaired ones."""
    device = entities[0].chain.msa.device
    total = sum(e.chain.num_res * e.copies for e in entities)
    rows = max(plan.num_rows, min_rows)
    msa = torch.zeros(rows, total, dtype=torch.uint8, device=device)
    deletions = torch.zeros(rows, total, dtype=torch.int32, device=device)
    block = torch.zeros(rows, total, dtype=torch.bool, device=device)
    num_paired = len(plan.paired)
    paired = torch.tensor(plan.paired, dtype=torch.int64, device=device)
    msa[num_paired : plan.num_rows] = GAP
    block[:num_paired] = True
    column, row = 0, num_paired
    for number, entity in enumerate(entities):
        chain, wide = entity.chain, entity.chain.num_res * entity.copies
        cut = slice(column, column + wide)
        if num_paired:
            taken = _paired_rows(entity, paired[:, number])
            msa[:num_paired, cut] = taken[0].repeat(1, entity.copies)
            deletions[:num_paired, cut] = taken[1].repeat(1, entity.copies)
        own = torch.tensor(plan.unpaired[number], dtype=torch.int64, device=device)
        here = slice(row, row + len(own))
        msa[here, cut] = chain.msa[own].repeat(1, entity.copies)
        deletions[here, cut] = chain.deletions[own].to(torch.int32).repeat(1, entity.copies)
        block[here, cut] = True
        column, row = cut.stop, here.stop
    return msa, deletions, block


def _paired_rows(entity: Entity, rows: Integer[Tensor, " R"]) -> tuple[Tensor, Tensor]:
    """Rows to pair of one chain, and their deletions; gaps for a row of -1."""
    if entity.pairing is None:
        raise ValueError("a complex of several sequences needs rows to pair of each")
    there = (rows >= 0)[:, None]
    taken = rows.clamp(min=0)
    msa = torch.where(there, entity.pairing.msa[taken], GAP)
    deletions = torch.where(there, entity.pairing.deletions[taken].to(torch.int32), 0)
    return msa.to(torch.uint8), deletions


def _merged_templates(entities: Sequence[Entity], slots: int) -> tuple[Tensor, Tensor, Tensor]:
    """Slot t holds the t-th template of every chain; zeros where a chain has fewer."""
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for entity in entities:
        chain = entity.chain
        values = (chain.template_aatype, chain.template_positions, chain.template_mask)
        for found, value in zip(parts, values, strict=True):
            whole = value.new_zeros(slots, *value.shape[1:])
            whole[: min(slots, value.shape[0])] = value[:slots]
            found += [whole] * entity.copies
    aatype, positions, mask = (torch.cat(found, dim=1) for found in parts)
    return aatype.to(torch.int64), positions, mask
