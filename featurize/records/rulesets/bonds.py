"""Bonds of atoms: within components, along polymers, and links of the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer, Shaped
from evofeed.featurize.records.rulesets.atom_rows import AtomRows, first_rows, segment_ids
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import ALTLOC_NONE, Dropped, EntryRecord

SINGLE, COORDINATION = 1, 8
COVALENT_LINKS: Final = dict.fromkeys(
    "covale covale_base covale_phosphate covale_sugar disulf modres modres_link".split(), SINGLE
)
"""Type of the bond by `Link.kind`."""
_AROMATIC: Final = {1: 5, 2: 6, 3: 7, 5: 9}
BIOTITE_LINKS: Final = {
    **dict.fromkeys(("PEPTIDE LINKING", "L-PEPTIDE LINKING", "D-PEPTIDE LINKING"), 1),
    **dict.fromkeys(("RNA LINKING", "DNA LINKING"), 2),
}
"""Types of components that biotite joins to their neighbours, as `chain_bonds` numbers them."""
_ENDS: Final = {1: ("C", "N"), 2: ("O3'", "P")}
"""Atoms that join neighbours in proteins and in nucleic acids."""


def merged_bonds(*tables: Integer[np.ndarray, "_ 3"]) -> Integer[np.ndarray, "B 3"]:
    """Bonds of all tables, each pair once, lower atom first; a later table decides its type."""
    table = np.concatenate([table.reshape(-1, 3) for table in tables])[::-1].astype(np.int64)
    table[:, :2] = np.sort(table[:, :2], axis=1)
    _pairs, first = np.unique(table[:, :2], axis=0, return_index=True)
    return table[first]


def bond_types(component: Component) -> Integer[np.ndarray, " b"]:
    """Bond types numbered as in biotite: 1 to 4 by order, 5 to 7 and 9 aromatic, 0 any other."""
    order = component.bond_order
    plain = np.where(order <= 4, order, 0)
    ring = np.array([_AROMATIC.get(value, 0) for value in order.tolist()], np.int64)
    return np.where(component.bond_aromatic, ring, plain).astype(np.int64)


def residue_bonds(
    atoms: AtomRows,
    components: ComponentTable,
    starts: Integer[np.ndarray, " r"],
    types: Callable[[Component], Integer[np.ndarray, " b"]] = bond_types,
) -> Integer[np.ndarray, "B 3"]:
    """Bonds within residues, by residue, as the component dictionary lists them."""
    names = atoms.res_name[starts]
    stops = np.append(starts[1:], len(atoms))
    parts = [np.zeros((0, 3), np.int64)]
    for code in np.unique(names).tolist():
        component = components.get(code)
        if component is None or not len(component.bond):
            continue
        residues = np.flatnonzero(names == code)
        row = np.concatenate([np.arange(starts[r], stops[r]) for r in residues])
        residue = np.repeat(np.arange(len(residues)), (stops - starts)[residues])
        column = component_rows(component, atoms.name[row])
        table = np.full((len(residues), len(component.name)), -1, np.int64)
        table[residue[column >= 0], column[column >= 0]] = row[column >= 0]
        pairs = table[:, component.bond].reshape(-1, 2)
        present = (pairs >= 0).all(axis=1)
        kinds = np.tile(types(component), len(residues))
        parts.append(np.column_stack([pairs[present], kinds[present]]))
    bonds = np.concatenate(parts)
    order = np.argsort(segment_ids(starts, len(atoms))[bonds[:, 0]], kind="stable")
    return bonds[order]


def chain_bonds(
    atoms: AtomRows,
    components: ComponentTable,
    starts: Integer[np.ndarray, " r"],
    link_kind: Callable[[Component], int],
) -> Integer[np.ndarray, "B 3"]:
    """Bonds between consecutive residues of a chain, unless a residue number is skipped.

    Args:
        link_kind: 1 for a component linked from C to N (proteins), 2 from O3' to P (nucleic
            acids), 0 if it is not linked.
    """
    names = atoms.res_name[starts].tolist()
    kinds = {
        code: link_kind(component) if (component := components.get(code)) else 0
        for code in set(names)
    }
    kind = np.array([kinds[code] for code in names], np.int64)
    first, second = starts[:-1], starts[1:]
    linked = (
        (atoms.chain[first] == atoms.chain[second])
        & (atoms.res_id[second] - atoms.res_id[first] <= 1)
        & (kind[:-1] == kind[1:])
    )
    number = segment_ids(starts, len(atoms))
    parts = []
    for code, (tail, head) in _ENDS.items():
        tails, heads = (first_rows(atoms.name == end, number, len(starts)) for end in (tail, head))
        pair = np.column_stack([tails[:-1], heads[1:]])[linked & (kind[1:] == code)]
        pair = pair[(pair >= 0).all(axis=1)]
        parts.append(np.column_stack([pair, np.full(len(pair), SINGLE)]))
    return np.concatenate(parts)


def component_rows(
    component: Component, names: Shaped[np.ndarray, " n"]
) -> Integer[np.ndarray, " n"]:
    """Row of every name among a component's atoms; -1 if it has no such atom."""
    return np.array([component.rows.get(name, -1) for name in names.tolist()], np.int64)


def molecule_labels(size: int, bonds: Integer[np.ndarray, "B w"]) -> Integer[np.ndarray, " size"]:
    """Label of every atom's molecule: its lowest atom. Molecules are what bonds join."""
    label = np.arange(size)
    first, second = bonds[:, 0], bonds[:, 1]
    while True:
        low = np.minimum(label[first], label[second])
        before = label.copy()
        np.minimum.at(label, label[first], low)
        np.minimum.at(label, label[second], low)
        np.minimum.at(label, first, low)
        np.minimum.at(label, second, low)
        label = label[label]
        if np.array_equal(label, before):
            return label


def linked_bonds(
    record: EntryRecord,
    rows: Integer[np.ndarray, " A"],
    kinds: Mapping[str, int],
    dropped: list[Dropped],
) -> Integer[np.ndarray, "b 3"]:
    """Links of the file within one copy, with the bond type of their kind in `kinds`; links with
    an end that is not among these atoms are added to `dropped`."""
    new_row = np.full(record.num_atoms, -1, np.int64)
    new_row[rows] = np.arange(len(rows))
    bonds = []
    for link in record.links:
        kind = kinds.get(link.kind)
        if kind is None or any(end.symmetry not in ("", "1_555") for end in link.ends):
            continue
        atoms = []
        for end in link.ends:
            if end.residue < 0:
                continue
            low, high = record.residue_atom[end.residue : end.residue + 2]
            altloc = ord(end.altloc[0]) if end.altloc else ALTLOC_NONE
            matches = (record.atom_name[low:high] == end.atom) & (
                record.atom_altloc[low:high] == altloc
            )
            atoms += new_row[low:high][matches][:1].tolist()
        if len(atoms) == 2 and min(atoms) >= 0:
            bonds.append((*atoms, kind))
        else:
            ends = "-".join(f"{end.component}.{end.atom}" for end in link.ends)
            reason = "an end is not in the structure"
            dropped.append(Dropped("link", link.ends[0].asym, ends, reason))
    return np.array(bonds, np.int64).reshape(-1, 3)
