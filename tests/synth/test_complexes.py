"""Simulated complexes: they touch without clashes, remember it, and take the usual path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conftest import exit_code
from tests.store.records import published
from tests.synth.test_synth import _covariation, tree_digest

from evofeed.featurize import discover, featurize_chain
from evofeed.protein.residues import ATOM_ORDER
from evofeed.store import Dataset
from evofeed.synth import evolve, write_synthetic
from evofeed.synth import fold as folds
from evofeed.synth.complexes import STOICHIOMETRIES, read_stoichiometry

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two complexes of each kind, from raw files by the usual commands."""
    home = tmp_path_factory.mktemp("complexes")
    raw, out = str(home / "raw"), str(home / "data")
    sizes = ("--mean-length", "30", "--mean-depth", "40", "--mean-members", "1")
    assert exit_code("synth", raw, "--complexes", "8", "--seed", "3", *sizes, "--json") == 0
    published(out, map(featurize_chain, discover(raw)))
    assert exit_code("assemblies", raw, out, "--json") == 0
    return Dataset.open(out)


def test_every_kind_takes_the_usual_path(data: Dataset) -> None:
    made = [data.assemblies[name] for name in data.assemblies]
    assert sorted(record.stoichiometry for record in made) == sorted(2 * STOICHIOMETRIES)
    for record in made:
        assert record.num_interface > 10 and not record.dropped
        several = len(record.chains) > 1
        assert [rows is not None for rows in record.pairing] == [several] * len(record.chains)


def test_rows_to_pair_share_their_species(data: Dataset) -> None:
    for record in (data.assemblies[name] for name in data.assemblies):
        named = [set(rows.msa_species) - {""} for rows in record.pairing if rows]
        if named:
            shared = set.intersection(*named)
            assert len(shared) > 0.6 * min(map(len, named)) and len(shared) > 8


def test_chains_touch_and_do_not_clash(data: Dataset) -> None:
    ca = ATOM_ORDER["CA"]
    for record in (data.assemblies[name] for name in data.assemblies):
        assert record.all_atom_positions is not None and record.all_atom_mask is not None
        known = record.all_atom_mask[:, ca] > 0
        place, chain = record.all_atom_positions[known, ca], record.asym_id()[known]
        distance = np.linalg.norm(place[:, None] - place[None], axis=-1)
        between = distance[chain[:, None] != chain[None]]
        assert 3.5 < between.min() < 9.0


def test_sites_that_touch_across_chains_covary_between_paired_rows() -> None:
    enrichment = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        families, placed = evolve.evolve_complex(rng, [36, 36], 1, 400)
        middles = [folds.centroids(*folds.frames(family.fold)) for family in families]
        touch = evolve._contacts(middles, placed)[1][:36, 36:]
        rows = np.concatenate([family.rows[1:, family.core] for family in families], axis=1)
        top = np.argsort(-_covariation(rows)[:36, 36:].ravel())[:18]
        enrichment.append(touch.ravel()[top].mean() / touch.mean())
    assert np.mean(enrichment) > 10


def test_the_same_seed_writes_the_same_complexes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_synthetic(
            tmp_path / name, 2, 5, mean_length=30, mean_depth=16, stoichiometries=["A2", "AB"]
        )
    assert tree_digest(tmp_path / "one") == tree_digest(tmp_path / "two")


@pytest.mark.parametrize("text", ["A", "A2B", "B2", "A0", "A2C2", "A30", "dimer", ""])
def test_stoichiometries_that_cannot_be_simulated_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="stoichiometry"):
        read_stoichiometry(text)


def test_a_stoichiometry_without_complexes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("synth", str(tmp_path / "raw"), "--stoichiometry", "A2", "--json") != 0
    assert "--complexes" in capsys.readouterr().err
