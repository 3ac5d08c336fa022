"""A complex's record to the inputs of its features: merged chains and the residues of the crop.

Chains come entity by entity, as in AlphaFold-Multimer. All decisions are made here, in integers,
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
from evofeed.loader.views.laid import Laid, Sparse, pad
from evofeed.protein.assembly_record import AssemblyRecord, chain_numbers
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP


class AssemblyInfo(NamedTuple):
    """Scalars of a merged complex."""

    num_rows: int
    """Rows of the merged MSA, without padding."""
    num_chains: int
    resolution: float
    is_distillation: bool


def plan_complex(
    record: AssemblyRecord, config: LoaderConfig, draws: SampleDraws
) -> tuple[Laid, AssemblyInfo]:
    """The paired and merged chains with the residues of the crop, and the complex's scalars."""
    assert config.assemblies is not None
    rules = config.assemblies
    if not config.supervised:
        record = replace(record, all_atom_positions=None, all_atom_mask=None)
    plan = plan_rows(record, rules)
    lengths = [chain.num_res for chain, _ in record.members]
    truth = record.all_atom_positions, record.all_atom_mask
    crop = crop_residues(*truth, lengths, config.crop_size, draws, rules)
    max_templates = rules.max_templates if config.max_templates else 0
    slots = min(max_templates, max(chain.num_templates for chain in record.chains))
    info = AssemblyInfo(plan.num_rows, len(lengths), record.resolution, record.is_distillation)
    return {"crop": crop, **merge_chains(record, plan, rules, slots)}, info


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
        parts = [pad(getattr(chain, name)[:slots], slots) for chain in members]
        value = np.concatenate(parts, axis=1)
        laid[name] = np.minimum(value, GAP) if name == "template_aatype" else value
    if record.all_atom_positions is not None and record.all_atom_mask is not None:
        truth = {"positions": record.all_atom_positions, "mask": record.all_atom_mask}
        for name, value in truth.items():
            laid[name] = _first_copies(record, value) if config.shared_coordinates else value
    return laid


def _merged_rows(record: AssemblyRecord, plan: RowPlan, min_rows: int) -> Laid:
    """MSA and deletions, paired rows above blocks of unpaired ones, and the entity of each row.

    `row_entity` is 0 for paired rows, -1 for padding, whose rows are zeros.
    """
    num_paired, num_res = len(plan.paired), record.num_res
    shape = max(plan.num_rows, min_rows), num_res
    msa = np.zeros(shape, np.uint8)
    msa[num_paired : plan.num_rows] = GAP
    row_entity = np.full(shape[0], -1, np.int32)
    row_entity[:num_paired] = 0
    cells, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    column, row = 0, num_paired
    for number, chain in enumerate(record.chains):
        unpaired, pairing = plan.unpaired[number], record.pairing[number]
        row_entity[row : row + len(unpaired)] = number + 1
        blocks = [(row, chain, unpaired)]
        if num_paired:
            if pairing is None:
                raise ValueError("a complex of several sequences needs rows to pair of each")
            blocks.append((0, pairing, plan.paired[:, number]))
        for first, alignment, rows in blocks:
            codes = np.minimum(alignment.msa[rows], GAP)
            codes[rows < 0] = GAP
            deletion_row, deletion_column, deletion_count = _deletions(alignment, rows)
            for copy in range(len(record.copies[number])):
                start = column + copy * chain.num_res
                msa[first : first + len(rows), start : start + chain.num_res] = codes
                cells.append((first + deletion_row) * num_res + start + deletion_column)
                counts.append(deletion_count)
        column += chain.num_res * len(record.copies[number])
        row += len(unpaired)
    deletions = Sparse(shape, np.int32, np.concatenate(cells), np.concatenate(counts))
    return {"msa": msa, "deletions": deletions, "row_entity": row_entity}


def _deletions(
    record: ChainRecord, rows: Int[np.ndarray, " R"]
) -> tuple[Int[np.ndarray, " d"], Int[np.ndarray, " d"], Int[np.ndarray, " d"]]:
    """Index into `rows`, column and count of each deletion of these rows; none for rows of -1.

    Raises:
        ShardCorrupt: a deletion is outside the alignment.
    """
    order = np.argsort(record.deletion_row, kind="stable")
    sorted_rows, columns = record.deletion_row[order], record.deletion_column[order]
    if len(order) and not 0 <= columns.min() <= columns.max() < record.num_res:
        raise ShardCorrupt("a deletion is outside the alignment", item=record.chain_id)
    index = np.flatnonzero(rows >= 0)
    first = np.searchsorted(sorted_rows, rows[index])
    lengths = np.searchsorted(sorted_rows, rows[index], side="right") - first
    selected = joined_runs(first, lengths)
    counts = record.deletion_count[order[selected]]
    return np.repeat(index, lengths), columns[selected].astype(np.int64), counts


def _first_copies(record: AssemblyRecord, value: np.ndarray) -> np.ndarray:
    """Values of every chain, those of further copies replaced by the first copy's."""
    parts, start = [], 0
    for chain, names in zip(record.chains, record.copies, strict=True):
        parts += [value[start : start + chain.num_res]] * len(names)
        start += chain.num_res * len(names)
    return np.concatenate(parts)
