"""Prediction jobs from records: molecules with copies, alignments and templates."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evofeed.featurize.export.rows import Rows, rows_of_record
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_files import assembly_structure
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import RESTYPES
from evofeed.protein.structure_text import Structure, chain_name, polymer_head, to_mmcif

Kind = Literal["protein", "rna", "dna", "ligand"]
Bond = tuple[tuple[str, int, str], tuple[str, int, str]]
"""Two atoms: chain, residue from 1, name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A template: its structure, one chain A, and the aligned residues of the query."""

    mmcif: str
    query: tuple[int, ...]
    """Residues of the query from 0; the template's are those of `mmcif`, one after the other."""
    letters: str
    date: str
    """Release date, ISO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Molecule:
    """A molecule and its copies."""

    kind: Kind
    ids: tuple[str, ...]
    """Chain ids of its copies."""
    sequence: str = ""
    modifications: tuple[tuple[int, str], ...] = ()
    """Residue from 1, and its component."""
    components: tuple[str, ...] = ()
    """Of a ligand, residue by residue."""
    alignments: tuple[Rows, ...] = ()
    pairing: Rows | None = None
    """Rows to pair by species."""
    templates: tuple[Template, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Molecules that are predicted together."""

    name: str
    molecules: tuple[Molecule, ...]
    bonds: tuple[Bond, ...] = ()
    structure: str = ""
    """The known structure, as mmCIF with the names of the job's chains."""
    left_out: tuple[str, ...] = ()

    @property
    def proteins(self) -> tuple[Molecule, ...]:
        """The proteins, whose rows may be paired."""
        return tuple(molecule for molecule in self.molecules if molecule.kind == "protein")


def chain_ids() -> Iterator[str]:
    """A, B, ... in the order of a job's chains."""
    number = 0
    while True:
        yield chain_name(number := number + 1)


def job_of_chain(record: ChainRecord) -> Job:
    """A single chain, named as in its id if all programs accept that name."""
    letters = record.chain_id.rpartition("_")[2]
    assembly = AssemblyRecord.of_chain(record)
    is_valid = re.fullmatch("[A-Z]{1,4}", letters)
    return job_of_complex(assembly, iter([letters]) if is_valid else chain_ids())


def job_of_complex(record: AssemblyRecord, ids: Iterator[str] | None = None) -> Job:
    """The chains of a complex, each distinct sequence once."""
    ids = ids or chain_ids()
    molecules = tuple(
        Molecule(
            kind="protein",
            ids=tuple(next(ids) for _ in copies),
            sequence=chain.sequence,
            alignments=tuple(_rows_by_source(chain)),
            pairing=_pairing(chain, pairing),
            templates=tuple(templates_of(chain)),
        )
        for chain, pairing, copies in zip(record.chains, record.pairing, record.copies, strict=True)
    )
    return Job(
        name=record.assembly_id,
        molecules=molecules,
        structure=_structure(record, tuple(itertools.chain(*(m.ids for m in molecules)))),
    )


def _rows_by_source(chain: ChainRecord) -> Iterator[Rows]:
    """Rows of a record by source file, the query first in each."""
    table = rows_of_record(chain)
    for number, name in enumerate(chain.msa_sources):
        rows = np.flatnonzero(chain.msa_source == number)
        rows = np.concatenate([[0], rows[rows > 0]])
        if len(rows) > 1 or number == 0:
            yield _selected_rows(table, rows, name.partition(".")[0])


def _selected_rows(table: Rows, rows: np.ndarray, name: str) -> Rows:
    cells = np.isin(table.deletion_row, rows)
    return dataclasses.replace(
        table,
        name=name,
        letters=table.letters[rows],
        deletion_row=np.searchsorted(rows, table.deletion_row[cells]),
        deletion_column=table.deletion_column[cells],
        deletion_count=table.deletion_count[cells],
        species=tuple(table.species[row] for row in rows.tolist()),
    )


def _pairing(chain: ChainRecord, pairing: ChainRecord | None) -> Rows | None:
    """The alignment to pair; without one, the chain's own rows, if species are known."""
    rows = rows_of_record(pairing or chain, "uniprot_hits")
    return rows if any(rows.species[1:]) else None


def templates_of(chain: ChainRecord) -> Iterator[Template]:
    """Templates of a record, each with the aligned residues that have atoms."""
    for number, name in enumerate(chain.template_domain_names):
        mask = chain.template_all_atom_mask[number]
        query = np.flatnonzero(mask.any(1))
        if not len(query):
            continue
        aatype = chain.template_aatype[number][query]
        structure = Structure(
            name=name,
            aatype=aatype,
            residue_index=np.arange(len(query)),
            positions=chain.template_all_atom_positions[number][query],
            mask=mask[query],
            confidence=np.zeros(len(query)),
        )
        date = chain.template_release_date[number]
        text = to_mmcif(structure, head=polymer_head(structure, date))
        letters = "".join(f"{RESTYPES}X"[code] for code in aatype.tolist())
        yield Template(mmcif=text, query=tuple(query.tolist()), letters=letters, date=date)


def _structure(record: AssemblyRecord, names: tuple[str, ...]) -> str:
    if record.all_atom_positions is None or record.all_atom_mask is None:
        return ""
    structure = dataclasses.replace(assembly_structure(record), chain_names=names)
    return to_mmcif(structure, head=polymer_head(structure, record.release_date))
