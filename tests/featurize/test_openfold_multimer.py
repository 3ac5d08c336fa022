"""Assemblies of identical chains as OpenFold's multimer pipeline merges them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.featurize.golden import RAW, assert_same, openfold_record, recorded, sources

from evofeed.featurize.openfold_multimer import to_openfold_multimer

ASSEMBLIES = [path for path in RAW if "multimer" in path.name]


@pytest.mark.parametrize("path", ASSEMBLIES, ids=lambda path: path.name)
def test_an_assembly_equals_openfolds_its_shared_coordinates_included(
    path: Path, golden: Path
) -> None:
    entry = path.name.partition(".")[0]
    chains = [openfold_record(name) for name in sources() if name.startswith(f"{entry}_")]
    # With its own alignments but no template hits, as recorded.
    want = recorded(path)
    got = to_openfold_multimer(chains, shared_coordinates=True)
    assert got.keys() == want.keys()
    assert_same(got, want)
    own = to_openfold_multimer(chains)
    second = slice(chains[0].num_res, 2 * chains[0].num_res)
    positions = chains[1].all_atom_positions
    assert positions is not None
    assert np.array_equal(own["all_atom_positions"][second], positions)
    assert not np.array_equal(own["all_atom_positions"], got["all_atom_positions"])


def test_different_sequences_are_a_wrong_call(golden: Path) -> None:
    records = {record.sequence: record for record in map(openfold_record, sources())}
    with pytest.raises(ValueError, match="same sequence"):
        to_openfold_multimer(list(records.values())[:2])
