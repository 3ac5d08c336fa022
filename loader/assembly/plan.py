"""A complex's record to what its features are made of: rows side by side, residues that are kept.

Chains come entity by entity, as AlphaFold-Multimer has them. All is decided here, in whole numbers,
so every machine makes the same sample. Runs in reader threads and processes and imports no torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from evofeed.base.errors import ShardCorrupt
from evofeed.base.shapes import Int
from evofeed.loader.assembly.crop import crop_residues
from evofeed.loader.assembly.pairing import RowPlan, plan_rows
from evofeed.loader.config import AssemblyConfig, LoaderConfig
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.entry_view import joined_runs
from evofeed.loader.views.laid import Laid, Sparse
from evofeed.protein.assembly_record import AssemblyRecord, chain_numbers
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP


class Facts(NamedTuple):
    """What is known of a merged complex besides its arrays."""

    num_rows: int
    """Of its MSA, without padding."""
    num_chains: int
    resolution: float
    is_distillation: bool


def plan_complex(
    record: AssemblyRecord, config: LoaderConfig, draws: SampleDraws
) -> tuple[Laid, Facts]:
    """The chains paired and merged, and the residues that a sample keeps."""
    assert config.assemblies is not None
    rules = config.assemblies
    if not config.supervised:
        record = replace(record, all_atom_positions=None, all_atom_mask=None)
    plan = plan_rows(record, rules)
    lengths = [chain.num_res for chain, _ in record.members]
    truth = record.all_atom_positions, record.all_atom_mask
    kept = crop_residues(*truth, lengths, config.crop_size, draws, rules)
    most = rules.max_templates if config.max_templates else 0
    slots = min(most, max(chain.num_templates for chain in record.chains))
    facts = Facts(plan.num_rows, len(lengths), record.resolution, record.is_distillation)
    return {"kept": kept, **merge_chains(record, plan, rules, slots)}, facts


def merge_chains(record: AssemblyRecord, plan: RowPlan, config: AssemblyConfig, slots: int) -> Laid:
    """The chains of a complex side by side: one sequence, one MSA, templates chain by chain.

    Slot t holds the t-th template of every chain; zeros where a chain has fewer.
    """
    members = [chain for chain, _ in record.members]
    copies = [len(names) for names in record.copies]
    lengths = [chain.num_res for chain in members]
    asym, entity, sym = np.repeat(chain_numbers(copies), lengths, axis=1).astype(np.int64)
    residue_index = np.concatenate([chain.residue_index for chain in members])
    laid: Laid = {
        "aatype": record.aatype.astype(np.int64),
        "residue_index": residue_index.astype(np.int64),
        "asym_id": asym,
        "entity_id": entity,
        "sym_id": sym,
        **_merged_rows(record, plan, config.min_rows),
    }
    for name in ("template_aatype", "template_all_atom_positions", "template_all_atom_mask"):
        parts = [_slots(getattr(chain, name), slots) for chain in members]
        value = np.concatenate(parts, axis=1)
        laid[name] = np.minimum(value, GAP) if name == "template_aatype" else value
    if record.all_atom_positions is not None and record.all_atom_mask is not None:
        truth = {"positions": record.all_atom_positions, "mask": record.all_atom_mask}
        for name, value in truth.items():
            laid[name] = _first_copies(record, value) if config.shared_coordinates else value
    return laid


def _merged_rows(record: AssemblyRecord, plan: RowPlan, min_rows: int) -> Laid:
    """MSA and deletions, paired rows above blocks of unpaired ones; and whose block a row is of.

    `row_entity` is 0 for all entities at once, -1 for padding, whose rows are zeros.
    """
    num_paired, total = len(plan.paired), record.num_res
    shape = max(plan.num_rows, min_rows), total
    msa = np.zeros(shape, np.uint8)
    msa[num_paired : plan.num_rows] = GAP
    owner = np.full(shape[0], -1, np.int32)
    owner[:num_paired] = 0
    at, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    column, row = 0, num_paired
    for number, chain in enumerate(record.chains):
        own, pairing = plan.unpaired[number], record.pairing[number]
        owner[row : row + len(own)] = number + 1
        blocks = [(row, chain, own)]
        if num_paired:
            if pairing is None:
                raise ValueError("a complex of several sequences needs rows to pair of each")
            blocks.append((0, pairing, plan.paired[:, number]))
        for first, rows, taken in blocks:
            there = (taken >= 0)[:, None]
            cells = np.where(there, np.minimum(rows.msa[taken], GAP), np.uint8(GAP))
            place, where, number_of = _deletions(rows, taken)
            for copy in range(len(record.copies[number])):
                start = column + copy * chain.num_res
                msa[first : first + len(taken), start : start + chain.num_res] = cells
                at.append((first + place) * total + start + where)
                counts.append(number_of)
        column += chain.num_res * len(record.copies[number])
        row += len(own)
    places = Sparse(shape, np.int32, np.concatenate(at), np.concatenate(counts))
    return {"msa": msa, "deletions": places, "row_entity": owner}


def _deletions(
    record: ChainRecord, taken: Int[np.ndarray, " R"]
) -> tuple[Int[np.ndarray, " d"], Int[np.ndarray, " d"], Int[np.ndarray, " d"]]:
    """Place of the row, column and number of the deletions of these rows; none of a row of -1.

    Raises:
        ShardCorrupt: one is outside the alignment.
    """
    order = np.argsort(record.deletion_row, kind="stable")
    rows, columns = record.deletion_row[order], record.deletion_column[order]
    if len(order) and not 0 <= columns.min() <= columns.max() < record.num_res:
        raise ShardCorrupt("a deletion is outside the alignment", item=record.chain_id)
    there = np.flatnonzero(taken >= 0)
    first = np.searchsorted(rows, taken[there])
    many = np.searchsorted(rows, taken[there], side="right") - first
    chosen = joined_runs(first, many)
    counts = record.deletion_count[order[chosen]]
    return np.repeat(there, many), columns[chosen].astype(np.int64), counts


def _slots(value: np.ndarray, slots: int) -> np.ndarray:
    """The first templates; zeros where there are fewer."""
    whole = np.zeros([slots, *value.shape[1:]], value.dtype)
    whole[: len(value)] = value[:slots]
    return whole


def _first_copies(record: AssemblyRecord, value: np.ndarray) -> np.ndarray:
    """Of every copy of a sequence what the first one has."""
    parts, start = [], 0
    for chain, names in zip(record.chains, record.copies, strict=True):
        parts += [value[start : start + chain.num_res]] * len(names)
        start += chain.num_res * len(names)
    return np.concatenate(parts)
