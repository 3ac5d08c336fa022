"""Recorded structures as `EntryView`: its columns fit each other, for every project and entry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.loader.views.packs import entry_view, recordings

from evofeed.loader.views.entry_view import EntryView

CASES = [
    (project, path)
    for project in ("openfold3", "boltz", "protenix")
    for path in recordings(f"{project}/structure/*.npz")
]


@pytest.mark.parametrize(("project", "path"), CASES, ids=lambda one: getattr(one, "stem", one))
def test_the_columns_of_a_recorded_structure_fit_each_other(project: str, path: Path) -> None:
    view = entry_view(project, path.parent.parent.parent, path.stem)
    for offsets, total in (
        (view.chain_residue, view.num_residues),
        (view.residue_atom, view.num_atoms),
        (view.molecule_atom, len(view.molecule_mask)),
    ):
        assert offsets[0] == 0
        assert offsets[-1] == total
        assert (np.diff(offsets) > 0).all()
    assert_rows_in_range(view)
    stop = view.token_atom + view.token_atoms
    assert (view.token_atom <= view.token_centre).all()
    assert (view.token_centre < stop).all()
    assert (stop[:-1] <= view.token_atom[1:]).all()
    assert (view.token_resolved <= view.atom_present[view.token_centre]).all()
    assert view.token_atoms[view.token_atomized].max(initial=1) == 1


def assert_rows_in_range(view: EntryView) -> None:
    assert view.bond_atom.max(initial=0) < view.num_atoms
    assert view.interface_chain.max(initial=0) < view.num_chains
    assert view.residue_component[-1] == len(view.component_molecule) - 1
    assert view.component_molecule.max() < len(view.molecule_name)
    for name, orders, size in zip(
        view.molecule_name, view.molecule_orders, np.diff(view.molecule_atom), strict=True
    ):
        assert orders.shape[1] == size, name
        assert (np.sort(orders, 1) == np.arange(size)).all(), name
        assert (orders == np.arange(size)).all(1).any(), name
    molecule = view.component_molecule[view.residue_component[view.atom_residue()]]
    assert (view.atom_reference >= view.molecule_atom[molecule]).all()
    assert (view.atom_reference < view.molecule_atom[molecule + 1]).all()
