"""Boltz's chains, residues, atoms, links and filters against structures that it prepared itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.featurize.records.allatom import (
    boltz_alignments,
    boltz_molecules,
    components,
    differing,
    record,
    sorted_bonds,
)
from tests.loader.views.boltz_recorded import boltz_view as recorded_view
from tests.loader.views.packs import packs, recordings, some_recordings

from evofeed.featurize.records.rulesets.boltz import BoltzRules, boltz_section
from evofeed.loader.views.boltz.tables import boltz_view
from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.ruleset_section import EntryRefused

RECORDED = recordings("boltz/structure/*.npz")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_view_of_a_record_is_the_view_of_boltzs_own_tables(path: Path) -> None:
    pack = path.parent.parent.parent
    entry = record(pack, path.stem)
    section = boltz_section(entry, components(pack))
    ours = boltz_view(entry, section, boltz_molecules(pack), boltz_alignments(path, section))
    theirs = recorded_view(pack, path.stem)
    # Of a ring's two Kekulé forms Boltz has the one that RDKit chose; nothing reads it.
    skipped = ("molecule_", "component_", "atom_reference", "bond_")
    assert differing(ours, theirs, skipped=skipped, unordered=("interface_chain",)) == []
    assert sorted_bonds(ours.bond_atom) == sorted_bonds(theirs.bond_atom)
    theirs_at = theirs.molecule_position[0][theirs.atom_reference]
    np.testing.assert_allclose(ours.molecule_position[0][ours.atom_reference], theirs_at, atol=1e-6)


@pytest.mark.parametrize("pack", packs(), ids=lambda pack: pack.name)
def test_an_entry_that_boltz_loses_is_refused_with_a_reason(pack: Path) -> None:
    inputs = {path.name.split(".")[0] for path in (pack / "inputs" / "mmcif").glob("*.cif.gz")}
    for name in inputs - {path.stem for path in (pack / "boltz" / "structure").glob("*.npz")}:
        with pytest.raises(EntryRefused, match=name):
            boltz_section(record(pack, name), components(pack))
        right = boltz_section(record(pack, name), components(pack), BoltzRules.right())
        assert right.chain_valid.any()


def protein_with_gaps(path: Path) -> tuple[EntryRecord, int, int]:
    """An entry whose first protein has its last residue alone, the residue and its entity."""
    entry = record(path.parent.parent.parent, path.stem)
    kinds = [entry.entities[row].polymer for row in entry.chain_entity]
    chain = kinds.index("polypeptide(L)")
    low, high = entry.chain_residue[chain : chain + 2]
    keep = np.ones(entry.num_residues, bool)
    keep[low : high - 1] = False
    number = int(entry.residue_seq[high - 1])
    short = dataclasses.replace(entry, links=(), copies=()).taking(keep[entry.atom_residue()])
    return short, number - 1, int(entry.chain_entity[chain])


@pytest.mark.parametrize("path", some_recordings("boltz/structure/*.npz", 3), ids=lambda p: p.stem)
def test_a_residue_without_neighbours_stands_at_the_first_place_of_its_name(path: Path) -> None:
    # As gemmi aligns it for Boltz, seen on 2x1f with one residue left of a chain.
    entry, index, entity = protein_with_gaps(path)
    entry = dataclasses.replace(entry, oligomeric_count="")
    table = components(path.parent.parent.parent)
    monomers = entry.entities[entity].monomers
    places = []
    for rules in (BoltzRules(), BoltzRules.right()):
        section = boltz_section(entry, table, rules)
        chain = section.chain_entity.tolist().index(entity)
        low, high = section.chain_residue[chain : chain + 2]
        seen = [
            bool((section.atom_row[slice(*section.residue_atom[row : row + 2])] >= 0).any())
            for row in range(low, high)
        ]
        places.append(np.flatnonzero(seen).tolist())
    assert places == [[monomers.index(monomers[index])], [index]]


@pytest.mark.parametrize("path", some_recordings("boltz/structure/*.npz", 3), ids=lambda p: p.stem)
def test_a_residue_that_the_sequence_lacks_fails_the_entry_unless_mended(path: Path) -> None:
    entry = record(path.parent.parent.parent, path.stem)
    table = components(path.parent.parent.parent)
    row = [entity.polymer for entity in entry.entities].index("polypeptide(L)")
    chain = entry.chain_entity.tolist().index(row)
    low, high = entry.chain_residue[chain : chain + 2]
    number = int(entry.residue_seq[(low + high) // 2])
    monomers = list(entry.entities[row].monomers)
    monomers[number - 1] = "TRP" if monomers[number - 1] != "TRP" else "GLY"
    other = dataclasses.replace(entry.entities[row], monomers=tuple(monomers))
    entities = tuple(other if one == row else e for one, e in enumerate(entry.entities))
    wrong = dataclasses.replace(entry, entities=entities, links=())
    with pytest.raises(EntryRefused, match="of the sequence"):
        boltz_section(wrong, table)
    assert len(boltz_section(wrong, table, BoltzRules.right()).chain_name)


def test_a_link_to_a_symmetry_mate_leaves_the_atoms_that_a_bond_displaces() -> None:
    for path in RECORDED:
        pack = path.parent.parent.parent
        entry = record(pack, path.stem)
        moved = tuple(
            dataclasses.replace(
                link, ends=(link.ends[0], dataclasses.replace(link.ends[1], symmetry="2_555"))
            )
            for link in entry.links
        )
        section = boltz_section(entry, components(pack))
        linked = section.bond_atom[section.bond_type == 0].ravel()
        entities = entry.chain_entity[section.chain_asym[section.atom_chain()[linked]]]
        if "non-polymer" not in {entry.entities[entity].kind for entity in entities}:
            continue
        apart = boltz_section(dataclasses.replace(entry, links=moved), components(pack))
        assert len(apart.atom_name) > len(section.atom_name), path.stem
        return
    pytest.skip("no entry has a ligand that a link joins")
