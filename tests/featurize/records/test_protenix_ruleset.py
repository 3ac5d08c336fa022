"""Protenix's atoms, bonds, molecules and tokens against structures that it prepared itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.featurize.records.allatom import (
    components,
    differing,
    protenix_molecules,
    record,
    sorted_bonds,
)
from tests.loader.views.packs import alignments_of, entry_view, read, recordings

from evofeed.featurize.records.rulesets.protenix import ProtenixRules, protenix_section
from evofeed.loader.views.protenix.tables import canonical_sequences, protenix_view

RECORDED = recordings("protenix/structure/*.npz")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_view_of_a_record_is_the_view_of_protenixs_own_tables(path: Path) -> None:
    pack = path.parent.parent.parent
    entry, table = record(pack, path.stem), components(pack)
    section = protenix_section(entry, table)
    sequences = canonical_sequences(entry, section, table)
    theirs = entry_view("protenix", pack, path.stem)
    names = alignments_of(theirs)
    told = read(path).meta["other"]["sequences"]
    assert {names[entity]: text for entity, text in sequences.items()} == {
        name: told[name] for name in set(names.values())
    }
    ours = protenix_view(entry, section, protenix_molecules(pack), names, table)
    skipped = ("molecule_", "component_", "atom_reference", "bond_", "interface_chain")
    assert differing(ours, theirs, skipped=skipped) == []
    assert sorted_bonds(ours.bond_atom) == sorted_bonds(theirs.bond_atom)
    assert sorted_bonds(ours.interface_chain) == sorted_bonds(theirs.interface_chain)
    position = theirs.molecule_position[0][theirs.atom_reference]
    mask = theirs.molecule_mask[theirs.atom_reference]
    mine = ours.molecule_position[0][ours.atom_reference]
    np.testing.assert_array_equal(ours.molecule_mask[ours.atom_reference], mask)
    np.testing.assert_allclose(mine[mask], position[mask], atol=1e-6)


def test_the_selenium_of_a_polymer_is_found_where_the_fault_is_mended() -> None:
    lost = kept = entries = 0
    for path in RECORDED:
        pack = path.parent.parent.parent
        entry = record(pack, path.stem)
        if not (entry.atom_element == "SE").any():
            continue
        entries += 1
        for rules in (ProtenixRules(), ProtenixRules.right()):
            section = protenix_section(entry, components(pack), rules)
            sulfur = (section.atom_name == "SD") & (section.atom_row >= 0)
            seen = int((entry.atom_element[section.atom_row[sulfur]] == "SE").sum())
            lost, kept = (lost + seen, kept) if rules.selenium_lost else (lost, kept + seen)
    assert lost == 0
    assert kept > 0 or not entries
