"""What the projects' prepared sets have in common: a section of a project's own tables, the record
that lies under it, and its conformers.

Chains of the assembly stand as chains of the file; what a project left out is not in its tables.
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
    """A folder that a project has prepared."""

    project: str
    items: list[tuple[str, ...]]
    """Name, structure, what the set's list says of it (JSON) and alignments, of every entry."""
    alignments: str
    """Folder of its alignments; empty if there is none."""
    left_out: Sequence[tuple[str, str]] = ()
    """Entries that the project itself has not prepared, and why."""
    molecules: Mapping[str, Molecule] = {}
    """Reference molecules that are taken as they are."""
    templates: str = ""
    """Folder of its templates: OpenFold3's caches of them, Protenix's mmCIF files."""


class Target(NamedTuple):
    """What a prepared structure gives."""

    entry: PreparedEntry
    molecules: dict[str, Molecule]
    """Conformers by component, of the atoms that the entry has."""
    clusters: dict[str, str]
    """The project's cluster of every polymer, by `ENTRY_entity`."""


def representative(file: str) -> str:
    """Whose alignment it is, by a file's name or its folder's."""
    path = Path(file)
    return path.stem if path.suffix == ".npz" and path.stem != "alignment" else path.parent.name


def array_section(
    project: str,
    notes: Mapping[str, Any],
    bonds: Any,
    seen: np.ndarray,
    near: Iterable[Sequence[str]],
    **of_atoms: np.ndarray,
) -> RulesetSection:
    """The section of an array of atoms as biotite has them.

    Args:
        seen: atoms with coordinates.
        near: names of chains in contact.
        of_atoms: `chain_type` and further columns of chains, given for every atom.

    Raises:
        ValueError: columns differ in length, or a bond has no such atom.
    """
    size = len(seen)
    chain, name, insertion = (_text(notes[n]) for n in ("chain_id", "res_name", "ins_code"))
    number = np.asarray(notes["res_id"]).astype(np.int64)
    atom, element = _text(notes["atom_name"]), np.char.upper(_text(notes["element"]))
    charge = np.asarray(notes["charge"]).astype(np.int64)
    hetero = np.asarray(notes["hetero"]).astype(bool)
    columns = (chain, name, insertion, number, atom, element, charge, hetero, *of_atoms.values())
    table = np.asarray(bonds).astype(np.int64).reshape(-1, 3)
    if {len(one) for one in columns} != {size} or not size:
        raise ValueError("columns of atoms differ in length")
    if len(table) and not 0 <= table[:, :2].min() <= table[:, :2].max() < size:
        raise ValueError("a bond names an atom that does not exist")
    starts, residues = run_starts(chain), run_starts(chain, number, insertion, name)
    rank = {text: row for row, text in enumerate(chain[starts].tolist())}
    if len(rank) != len(starts):
        raise ValueError("a chain that stands in two places")
    count = np.arange(len(starts))
    fixed = {"chain_copy": 0 * count, "chain_number": count}
    return RulesetSection(
        project=project,
        chain_name=chain[starts],
        chain_asym=count,
        chain_operator=np.full(len(starts), -1),
        chain_valid=np.ones(len(starts), bool),
        **(fixed | {key: column[starts].astype(np.int64) for key, column in of_atoms.items()}),
        chain_residue=np.append(np.searchsorted(residues, starts), len(residues)),
        residue_name=name[residues],
        residue_index=number[residues],
        residue_insertion=insertion[residues],
        residue_hetero=hetero[residues],
        residue_atom=np.append(residues, size),
        atom_name=atom,
        atom_element=element,
        atom_charge=charge,
        atom_row=np.where(seen, np.cumsum(seen) - 1, -1),
        bond_atom=table[:, :2],
        bond_type=table[:, 2],
        interface=np.array([[rank[a], rank[b]] for a, b in near], np.int64).reshape(-1, 2),
        dropped=(),
    )


def _text(column: Any) -> np.ndarray:
    text: np.ndarray = np.asarray(column).astype(np.str_)
    return text


def target_of(
    section: RulesetSection,
    entry: str,
    position: np.ndarray,
    facts: Mapping[str, Any],
    chains: Sequence[tuple[str | None, Any]],
    *,
    names: Mapping[int, str] | None = None,
    polymers: Mapping[int, str] | None = None,
    occupancy: np.ndarray | None = None,
    before: int = 0,
    molecules: dict[str, Molecule] | None = None,
) -> Target:
    """A section with the record of the atoms that were seen.

    Args:
        facts: dates, resolution and method, by the projects' own names.
        chains: sequence and cluster of every chain, as far as the set has them; letters of the
            residues stand for a sequence.
        names, polymers: of entities, where they are not the number and the type of the chain.
        before: number before the first residue.

    Raises:
        ValueError: a coordinate is missing or not finite.
    """
    seen = section.atom_row >= 0
    if position.shape != (len(seen), 3) or not np.isfinite(position[seen]).all():
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
                sequence=sequence or "".join(ONE_LETTER.get(one, "X") for one in monomers),
            )
        )
        if polymer and cluster is not None:
            clusters[f"{entry.upper()}_{name}"] = str(cluster)
    counts = np.add.reduceat(seen, section.residue_atom[:-1], dtype=np.int64)
    residues, size = np.flatnonzero(counts), int(seen.sum())
    number = section.residue_index[residues] - before
    known, method = facts.get("resolution"), facts.get("method") or facts.get("experimental_method")
    dates = [facts.get(name) for name in ("release_date", "released", "revised")]
    record = EntryRecord(
        entry=entry,
        assembly="",
        deposit_date=facts.get("deposited") or "",
        release_dates=tuple(str(one) for one in dates if one),
        resolutions=(("_refine.ls_d_res_high", str(known)),) if known and known > 0 else (),
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
        atom_name=section.atom_name[seen],
        atom_element=section.atom_element[seen],
        atom_charge=section.atom_charge[seen].astype(np.int32),
        atom_altloc=np.full(size, ALTLOC_NONE, np.int32),
        atom_occupancy=np.ones(size) if occupancy is None else occupancy[seen].astype(float),
        atom_b_factor=np.full(size, np.nan),
        atom_position=position[seen].astype(np.float64),
        links=(),
        dropped=(),
    )
    made = PreparedEntry(record=record, sections={section.project: section}, refused={})
    return Target(made, molecules or {}, clusters)


def conformers_of(
    section: RulesetSection,
    element: np.ndarray,
    charge: np.ndarray,
    position: np.ndarray,
    mask: np.ndarray | None = None,
) -> dict[str, Molecule]:
    """Reference molecules by component, of what the set has for every atom."""
    found: dict[str, Molecule] = {}
    bounds = section.residue_atom.tolist()
    there = np.ones(len(element), bool) if mask is None else mask.astype(bool)
    for name, low, high in zip(section.residue_name.tolist(), bounds, bounds[1:], strict=False):
        known = found.get(name)
        mine = section.atom_name[low:high]
        if known is None or not np.isin(mine, known.name).all():
            one = Molecule(
                name=mine,
                element=element[low:high].astype(np.int64),
                charge=charge[low:high].astype(np.int64),
                position=position[None, low:high].astype(np.float32),
                mask=there[low:high],
                bond=np.zeros((0, 2), np.int64),
                orders=np.arange(high - low)[None],
            )
            found[name] = one if known is None else known.overlaid(one)
    return found
