"""mmCIF text -> `Structure`: sequences from the polymer tables, atoms of the first model.

gemmi reads the syntax; the items are interpreted here, as in AF2 SI 1.2.1 and
OpenFold. `atom_table` turns the atom table into arrays. Atoms are placed on the
sequences by their labels, or without labels by the author's ids (`author_chains`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from evofeed.base.errors import MmcifError, NoProtein
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.structures.atom_sites import PlacedRows, place_chain
from evofeed.featurize.structures.atom_table import NO_NUMBER, AtomTable, read_atom_table
from evofeed.featurize.structures.author_chains import FullSequence, author_chains
from evofeed.featurize.structures.cif import RESOLUTIONS, UNSET, read_block, values_of
from evofeed.featurize.structures.other_molecules import other_molecules
from evofeed.featurize.structures.polymers import Polymer, other_polymers, protein_polymers
from evofeed.featurize.structures.structure import Chain, Structure

_BIOPYTHON_ITEMS: Final = (
    "id label_atom_id label_comp_id auth_asym_id Cartn_x Cartn_y Cartn_z label_alt_id "
    "pdbx_PDB_ins_code B_iso_or_equiv occupancy group_PDB"
).split()
"""Items that Biopython's structure builder reads, in its order."""
_NO_CONFIDENCE: Final = "a prediction without B factors or pLDDT: no residue is masked"
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}$")


def parse_mmcif(
    data: bytes,
    *,
    file_id: str,
    path: str = "",
    config: FeaturizeConfig | None = None,
    is_distillation: bool = False,
) -> Structure:
    """The protein chains of an mmCIF file of the entry `file_id`; see `parse_structure`."""
    config = config or FeaturizeConfig()
    block = read_block(data, path)
    masked = is_distillation and config.mask_mmcif
    try:
        for item in _BIOPYTHON_ITEMS if config.require_atom_items else ():
            if not len(block.find_values(f"_atom_site.{item}")):
                raise MmcifError(f"_atom_site.{item} is missing")
        dates = values_of(block, "_pdbx_audit_revision_history.revision_date")
        release_date = min((d for d in dates if _DATE.match(d)), default="")
        if config.require_entry_id and not (release_date or values_of(block, "_entry.id")):
            raise MmcifError("neither revision history nor _entry.id")
        polymers = protein_polymers(block, path, config)
        from_atoms = config.sequence_from_atoms and not values_of(block, "_entity_poly_seq.mon_id")
        if not polymers and not from_atoms:
            raise NoProtein(_no_protein(block))
        table = read_atom_table(block, path, config, b_factor=masked)
        if masked:
            table = _with_local_plddt(block, table)
        if from_atoms or table.unlabelled:
            chains = _by_author(block, path, table, polymers, config)
        else:
            chains = _by_label(table, polymers, config)
        if not chains:
            raise NoProtein(_no_protein(block))
    except MmcifError as error:
        error.path = error.path or path or None
        raise
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        message = f"an item has an invalid value: {type(error).__name__}: {error}"
        raise MmcifError(message, path=path) from None
    notes = (_NO_CONFIDENCE,) if masked and table.b_factor is None else ()
    threshold = config.confidence_threshold if masked else None

    def build_chain(author: str) -> Chain:
        chain = place_chain(table, chains[author], threshold)
        return dataclasses.replace(chain, notes=(*chain.notes, *notes))

    return Structure(
        file_id=file_id,
        method=",".join(value.lower() for value in values_of(block, "_exptl.method")),
        release_date=release_date,
        resolution=_resolution(block),
        sequences={author: placed.sequence for author, placed in chains.items()},
        build_chain=build_chain,
        left_out=other_polymers(block, chains),
        others=other_molecules(table, chains.values()),
    )


def _by_label(
    table: AtomTable, polymers: Mapping[str, Polymer], config: FeaturizeConfig
) -> dict[str, PlacedRows]:
    """Chains whose atoms have labels; polymers of one author's id are one chain, as in AF2."""
    last = np.zeros(len(table.label.names), np.int64)
    last[table.label.codes] = table.chain.codes  # of equal indices numpy keeps the last
    parts: dict[str, list[str]] = {}
    for label in polymers:
        code = table.label.code(label)
        if code >= 0:
            parts.setdefault(table.chain.names[last[code]], []).append(label)
        elif config.require_observed_chains:
            raise MmcifError(f"no atoms of protein chain {label!r}")
    absent = table.absent & (table.number != NO_NUMBER)
    present = (table.number != NO_NUMBER) & ~table.absent
    chains = {}
    for author, labels in parts.items():
        in_chain = table.chain.codes == table.chain.code(author)
        start_of_label = np.full(len(table.label.names), NO_NUMBER, np.int64)
        for label in labels:
            start_of_label[table.label.code(label)] = polymers[label].start
        start = start_of_label[table.label.codes]
        rows = np.flatnonzero(in_chain & present & (start != NO_NUMBER))
        polymer = polymers[labels[-1]]  # the last gives the sequence
        chains[author] = PlacedRows(
            chain_id=author,
            sequence=polymer.sequence,
            rows=rows,
            index=table.number[rows] - start[rows],
            prefer=polymer.prefer,
            absent=int((in_chain & absent).sum()),
        )
    return chains


def _by_author(
    block: Any,
    path: str,
    table: AtomTable,
    polymers: Mapping[str, Polymer],
    config: FeaturizeConfig,
) -> dict[str, PlacedRows]:
    """Chains of a file without labels, or without the polymers' sequences."""
    notes = ["residue labels are missing: the author's ids count"] if table.unlabelled else []
    if any(name in UNSET for name in table.label.names):
        notes = ["chain and residue labels are missing: the author's ids count"]
        polymers = protein_polymers(block, path, config, by_strand=True)
        by_author = dict(polymers)
    else:
        pairs = dict(zip(table.label.codes.tolist(), table.chain.codes.tolist(), strict=True))
        authors = {table.label.names[a]: table.chain.names[b] for a, b in pairs.items()}
        by_author = {authors[label]: p for label, p in polymers.items() if label in authors}
    if not by_author and values_of(block, "_entity_poly_seq.mon_id"):
        notes.append("no chain id in _entity_poly: the sequence is what is seen")
    sequences = {
        author: FullSequence(polymer.names, source="_entity_poly_seq")
        for author, polymer in by_author.items()
    }
    chains, _ = author_chains(table, sequences, config.caps)
    return {
        author: dataclasses.replace(placed, notes=(*placed.notes, *notes))
        for author, placed in chains.items()
    }


def _with_local_plddt(block: Any, table: AtomTable) -> AtomTable:
    """The atoms with pLDDT in place of B factors, where `_ma_qa_metric_local` has it.

    Other residues keep their B factors, or get 0.
    """
    plddt_of = _local_plddt(block)
    if not plddt_of:
        return table
    values = np.zeros(len(table.number)) if table.b_factor is None else table.b_factor.copy()
    number = np.where(table.number == NO_NUMBER, table.author_number, table.number)
    for code, label in enumerate(table.label.names):
        rows = np.flatnonzero(table.label.codes == code)
        numbers, residue = np.unique(number[rows], return_inverse=True)
        by_residue = [plddt_of.get((label, number), np.nan) for number in numbers.tolist()]
        plddt = np.array(by_residue, np.float64)[residue]
        values[rows] = np.where(np.isnan(plddt), values[rows], plddt)
    return dataclasses.replace(table, b_factor=values)


def _local_plddt(block: Any) -> dict[tuple[str, int], float]:
    """pLDDT by chain label and residue number; empty if the file has none."""
    category = "_ma_qa_metric"
    ids = values_of(block, f"{category}.id")
    plddt: set[str] = set()
    for item in ("name", "type"):
        texts = values_of(block, f"{category}.{item}")
        plddt |= {key for key, text in zip(ids, texts, strict=False) if "plddt" in text.lower()}
    modes = dict(zip(ids, values_of(block, f"{category}.mode"), strict=False))
    plddt = {key for key in plddt if modes.get(key, "local") == "local"}
    if not plddt:
        return {}
    items = ("metric_id", "label_asym_id", "label_seq_id", "metric_value")
    columns = [values_of(block, f"{category}_local.{item}") for item in items]
    return {
        (chain, int(number)): float(value)
        for metric, chain, number, value in zip(*columns, strict=False)
        if metric in plddt and number.isdecimal()
    }


def _no_protein(block: Any) -> str:
    kinds = ", ".join(dict.fromkeys(values_of(block, "_entity_poly.type")))
    reason = f"its polymers are {kinds}" if kinds else "no residue of its atoms is an amino acid"
    return f"No protein chains found in this file. To be left out: {reason}"


def _resolution(block: Any) -> float:
    for tag in RESOLUTIONS:
        for value in values_of(block, tag)[:1]:
            try:
                resolution = float(value)
            except ValueError:
                continue
            return resolution if 0 <= resolution < 1e6 else 0.0
    return 0.0
