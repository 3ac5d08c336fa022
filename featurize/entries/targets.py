"""Shared by the readers of prepared sets: section, record and conformers of a project's tables.

Chains of the assembly are chains of the file; what a project left out is not in its tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.featurize.entries.prepare import PreparedEntry
from evofeed.protein.datapoints import RESTYPES
from evofeed.protein.entry_record import (
    ALTLOC_NONE,
    POLYMERS,
    Entity,
    EntryRecord,
    offsets,
    run_starts,
)
from evofeed.protein.molecules import Molecule
from evofeed.protein.ruleset_section import RulesetSection

ONE_LETTER: Final = dict(zip(RESTYPES, "ARNDCQEGHILKMFPSTWYVXAGCUNAGCTN", strict=True))


class PreparedSet(NamedTuple):
    """A folder that a project prepared."""

    project: str
    items: list[tuple[str, ...]]
    """Name, structure file, item of the set's list (JSON) and alignments of every entry."""
    alignments: str
    """Folder of its alignments; '' if there is none."""
    left_out: Sequence[tuple[str, str]] = ()
    """Entries that the project did not prepare, and the reasons."""
    molecules: Mapping[str, Molecule] = {}
    """Reference molecules that are used unchanged."""
    templates: str = ""
    """Folder of its templates: OpenFold3's caches of them, Protenix's mmCIF files."""


class Target(NamedTuple):
    """The entry, molecules and clusters of a prepared structure."""

    entry: PreparedEntry
    molecules: dict[str, Molecule]
    """Conformers by component, with the atoms that the entry has."""
    clusters: dict[str, str]
    """Cluster of every polymer in the project's list, by `ENTRY_entity`."""


def representative(file: str) -> str:
    """The id of an alignment's representative, from the name of its file or folder."""
    path = Path(file)
    return path.stem if path.suffix == ".npz" and path.stem != "alignment" else path.parent.name


def array_section(
    project: str,
    atoms: Mapping[str, Any],
    bonds: Any,
    resolved: np.ndarray,
    contacts: Iterable[Sequence[str]],
    **chain_columns: np.ndarray,
) -> RulesetSection:
    """The section of an array of atoms in biotite's layout.

    Args:
        resolved: mask of atoms with coordinates.
        contacts: names of chains in contact.
        chain_columns: `chain_type` and further columns of chains, with a value for every atom.

    Raises:
        ValueError: columns differ in length, or a bond has no such atom.
    """
    size = len(resolved)
    chain, name, insertion = (_text(atoms[n]) for n in ("chain_id", "res_name", "ins_code"))
    number = np.asarray(atoms["res_id"]).astype(np.int64)
    atom_name, element = _text(atoms["atom_name"]), np.char.upper(_text(atoms["element"]))
    charge = np.asarray(atoms["charge"]).astype(np.int64)
    hetero = np.asarray(atoms["hetero"]).astype(bool)
    columns = (chain, name, insertion, number, atom_name, element, charge, hetero)
    table = np.asarray(bonds).astype(np.int64).reshape(-1, 3)
    if {*map(len, (*columns, *chain_columns.values()))} != {size} or not size:
        raise ValueError("columns of atoms differ in length")
    if len(table) and not 0 <= table[:, :2].min() <= table[:, :2].max() < size:
        raise ValueError("a bond names an atom that does not exist")
    starts, residues = run_starts(chain), run_starts(chain, number, insertion, name)
    rank = {text: row for row, text in enumerate(chain[starts].tolist())}
    if len(rank) != len(starts):
        raise ValueError("the atoms of a chain are not contiguous")
    numbers = np.arange(len(starts))
    of_chains = {"chain_copy": 0 * numbers, "chain_number": numbers}
    of_chains |= {key: column[starts].astype(np.int64) for key, column in chain_columns.items()}
    return RulesetSection(
        project=project,
        chain_name=chain[starts],
        chain_asym=numbers,
        chain_operator=np.full(len(starts), -1),
        chain_valid=np.ones(len(starts), bool),
        **of_chains,
        chain_residue=np.append(np.searchsorted(residues, starts), len(residues)),
        residue_name=name[residues],
        residue_index=number[residues],
        residue_insertion=insertion[residues],
        residue_hetero=hetero[residues],
        residue_atom=np.append(residues, size),
        atom_name=atom_name,
        atom_element=element,
        atom_charge=charge,
        atom_row=np.where(resolved, np.cumsum(resolved) - 1, -1),
        bond_atom=table[:, :2],
        bond_type=table[:, 2],
        interface=np.array([[rank[a], rank[b]] for a, b in contacts], np.int64).reshape(-1, 2),
        dropped=(),
    )


def _text(column: Any) -> np.ndarray:
    text: np.ndarray = np.asarray(column).astype(np.str_)
    return text


def build_target(
    section: RulesetSection,
    entry: str,
    position: np.ndarray,
    metadata: Mapping[str, Any],
    chains: Sequence[tuple[str | None, Any]],
    *,
    names: Mapping[int, str] | None = None,
    polymers: Mapping[int, str] | None = None,
    occupancy: np.ndarray | None = None,
    offset: int = 0,
    molecules: dict[str, Molecule] | None = None,
) -> Target:
    """A section with the record of its resolved atoms.

    Args:
        metadata: dates, resolution and method, by the projects' own names.
        chains: sequence and cluster of every chain, or None; a missing sequence is made of the
            residues' letters.
        names, polymers: of entities, unless they are the number and the type of the chain.
        offset: number before the first residue.

    Raises:
        ValueError: a coordinate is missing or not finite.
    """
    resolved = section.atom_row >= 0
    if position.shape != (len(resolved), 3) or not np.isfinite(position[resolved]).all():
        raise ValueError("coordinates that are not three finite numbers an atom")
    numbers, first = np.unique(section.chain_entity, return_index=True)
    entities, clusters = [], {}
    for number, row in zip(numbers.tolist(), first.tolist(), strict=True):
        low, high = section.chain_residue[row : row + 2]
        kind = [*POLYMERS, ""][int(section.chain_type[row])]
        polymer = kind if polymers is None else polymers.get(number, "")
        monomers = tuple(section.residue_name[low:high].tolist()) if polymer else ()
        name = str(number) if names is None else names[number]
        sequence, cluster = chains[row]
        entities.append(
            Entity(
                name=name,
                kind="polymer" if polymer else "non-polymer",
                polymer=polymer,
                monomers=monomers,
                rivals=(),
                sequence=sequence or "".join(ONE_LETTER.get(value, "X") for value in monomers),
            )
        )
        if polymer and cluster is not None:
            clusters[f"{entry.upper()}_{name}"] = str(cluster)
    counts = np.add.reduceat(resolved, section.residue_atom[:-1], dtype=np.int64)
    residues, size = np.flatnonzero(counts), int(resolved.sum())
    number = section.residue_index[residues] - offset
    resolution = metadata.get("resolution") or 0
    method = metadata.get("method") or metadata.get("experimental_method")
    dates = [metadata.get(name) for name in ("release_date", "released", "revised")]
    record = EntryRecord(
        entry=entry,
        assembly="",
        deposit_date=metadata.get("deposited") or "",
        release_dates=tuple(str(value) for value in dates if value),
        resolutions=(("_refine.ls_d_res_high", str(resolution)),) if resolution > 0 else (),
        methods=(method.upper(),) if method else (),
        oligomeric_count="",
        entities=tuple(entities),
        copies=(),
        operators=np.eye(3, 4)[None],
        component_types={},
        chain_label=tuple(section.chain_name.tolist()),
        chain_author=tuple(section.chain_name.tolist()),
        chain_entity=np.searchsorted(numbers, section.chain_entity),
        chain_residue=np.searchsorted(residues, section.chain_residue),
        residue_name=section.residue_name[residues],
        residue_seq=number,
        residue_author=number,
        residue_insertion=section.residue_insertion[residues],
        residue_hetero=section.residue_hetero[residues],
        residue_atom=offsets(counts[residues]),
        atom_name=section.atom_name[resolved],
        atom_element=section.atom_element[resolved],
        atom_charge=section.atom_charge[resolved].astype(np.int32),
        atom_altloc=np.full(size, ALTLOC_NONE, np.int32),
        atom_occupancy=np.ones(size) if occupancy is None else occupancy[resolved].astype(float),
        atom_b_factor=np.full(size, np.nan),
        atom_position=position[resolved].astype(np.float64),
        links=(),
        dropped=(),
    )
    prepared = PreparedEntry(record=record, sections={section.project: section}, refused={})
    return Target(prepared, molecules or {}, clusters)


def reference_molecules(
    section: RulesetSection,
    element: np.ndarray,
    charge: np.ndarray,
    position: np.ndarray,
    mask: np.ndarray | None = None,
) -> dict[str, Molecule]:
    """Reference molecules by component, from the set's columns of every atom."""
    molecules: dict[str, Molecule] = {}
    bounds = section.residue_atom.tolist()
    present = np.ones(len(element), bool) if mask is None else mask.astype(bool)
    for name, low, high in zip(section.residue_name.tolist(), bounds, bounds[1:], strict=False):
        earlier = molecules.get(name)
        names = section.atom_name[low:high]
        if earlier is None or not np.isin(names, earlier.name).all():
            molecule = Molecule(
                name=names,
                element=element[low:high].astype(np.int64),
                charge=charge[low:high].astype(np.int64),
                position=position[None, low:high].astype(np.float32),
                mask=present[low:high],
                bond=np.zeros((0, 2), np.int64),
                orders=np.arange(high - low)[None],
            )
            molecules[name] = molecule if earlier is None else earlier.overlaid(molecule)
    return molecules
