"""Simulated families and complexes: protein-like, reproducible by seed, and valid inputs."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import exit_code
from tests.store.records import published

from evofeed.featurize import FeaturizeConfig, discover, featurize_chain
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.structures.components import read_components
from evofeed.protein.residues import ATOM_ORDER
from evofeed.store import Dataset
from evofeed.synth import evolve, write_synthetic
from evofeed.synth import fold as folds
from evofeed.synth.complexes import STOICHIOMETRIES, read_stoichiometry
from evofeed.synth.docking import dock
from evofeed.synth.entries import COMPONENTS

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"mean_length": 50, "mean_depth": 24, "mean_members": 4}


def tree_digest(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synth") / "raw"
    write_synthetic(folder, 20, seed=1, **SMALL)
    return folder


def test_the_same_seed_writes_the_same_bytes_another_does_not(raw: Path, tmp_path: Path) -> None:
    write_synthetic(tmp_path / "same", 20, seed=1, **SMALL)
    write_synthetic(tmp_path / "other", 4, seed=2, **SMALL)
    assert tree_digest(tmp_path / "same") == tree_digest(raw)
    assert tree_digest(tmp_path / "other") != tree_digest(raw)
    small = {"mean_length": 30, "mean_depth": 16, "stoichiometries": ["A2", "AB"]}
    for name in ("one", "two"):
        write_synthetic(tmp_path / name, 2, 5, **small)
    assert tree_digest(tmp_path / "one") == tree_digest(tmp_path / "two")


def test_every_chain_becomes_a_record_with_structure_msa_and_mostly_templates(raw: Path) -> None:
    records, unresolved = [featurize_chain(source) for source in discover(str(raw))], 0
    assert len(records) == 20
    for record in records:
        assert record.all_atom_mask is not None
        unresolved += int((record.all_atom_mask[:, ATOM_ORDER["CA"]] == 0).sum())
        assert record.num_alignments > 5
        files = ("bfd_uniclust_hits.a3m", "mgnify_hits.sto", "uniref90_hits.sto")
        assert record.msa_sources == files
        assert record.release_date < "2021-10-10"
    for source in discover(str(raw))[:3]:
        assert featurize_chain(source, FeaturizeConfig.openfold()).num_templates > 0
    assert unresolved > 10
    assert np.mean([record.num_templates > 0 for record in records]) > 0.3
    assert any("released too late" in note for record in records for note in record.dropped)


def test_a3m_and_stockholm_of_a_chain_are_of_one_family(raw: Path) -> None:
    folder = sorted((raw / "alignments").iterdir())[0]
    first = parse_a3m((folder / "bfd_uniclust_hits.a3m").read_bytes())
    second = parse_stockholm((folder / "uniref90_hits.sto").read_bytes())
    assert first.query == second.query
    both = {row.tobytes() for row in first.letters} & {row.tobytes() for row in second.letters}
    assert len(both) > 3  # databases overlap, as real ones do


def test_backbones_are_ideal_compact_and_do_not_cross_themselves() -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        fold = folds.random_fold(rng, 90)
        atoms = folds.all_atoms(rng, rng.integers(0, 20, 90), fold)
        ca = atoms[:, 1]
        assert np.allclose(np.linalg.norm(np.diff(ca, axis=0), axis=1), 3.81, atol=0.02)
        assert np.allclose(np.linalg.norm(atoms[1:, 0] - atoms[:-1, 2], axis=1), 1.33, atol=0.06)
        assert np.allclose(np.linalg.norm(atoms[1:, 0] - atoms[:-1, 3], axis=1), 2.25, atol=0.06)
        apart = np.abs(np.subtract.outer(np.arange(90), np.arange(90))) > 2
        distance = np.linalg.norm(ca[:, None] - ca[None], axis=-1)
        assert distance[apart].min() > 3.5
        radius = np.sqrt(((ca - ca.mean(0)) ** 2).sum(1).mean())
        assert radius < 1.5 * 2.2 * 90**0.38  # globular proteins: about 2.2 L^0.38 angstrom


def test_columns_in_contact_covary_more_than_others() -> None:
    enrichment = []
    for seed in range(2):
        (family,), _ = evolve.evolve(np.random.default_rng(seed), [70], 1, 400)
        rows = family.rows[1:, family.core]
        middle = folds.centroids(*folds.frames(family.fold))
        contact = np.linalg.norm(middle[:, None] - middle[None], axis=-1) < 8
        i, j = np.triu_indices(70, 6)
        top = np.argsort(-_covariation(rows)[i, j])[:35]
        enrichment.append(contact[i, j][top].mean() / contact[i, j].mean())
    assert np.mean(enrichment) > 12


def test_docking_makes_no_array_of_all_pairs() -> None:
    """Such an array took minutes and gigabytes for complexes of 1,200 residues."""
    bodies = [np.random.default_rng(0).normal(0, 20, [800, 3]) for _ in range(2)]
    dock(np.random.default_rng(1), [body[:50] for body in bodies], 2)  # imports and compiles
    tracemalloc.start()
    assert len(dock(np.random.default_rng(1), bodies, 2)) == 4
    assert tracemalloc.get_traced_memory()[1] < 4 * 800 * 800
    tracemalloc.stop()


def _covariation(rows: np.ndarray) -> np.ndarray:
    """Largest correlation of hydropathy, charge or volume, background-corrected (APC)."""
    best = np.zeros([rows.shape[1]] * 2)
    for scale in (evolve._HYDROPATHY, evolve._CHARGE, evolve._VOLUME):
        values = np.append(scale - evolve.BACKGROUND @ scale, [0, 0])[rows]
        values -= values.mean(0)
        values /= values.std(0) + 0.3 * values.std()
        score = np.abs(values.T @ values) / len(rows)
        np.fill_diagonal(score, 0)
        best = np.maximum(best, score - score.mean(0)[None] * score.mean(1)[:, None] / score.mean())
    return best


def test_wrong_arguments_are_refused_before_anything_is_written(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="already holds"):
        write_synthetic(raw, 4)
    for wrong in ({"num_chains": 0}, {"mean_length": 5}):
        with pytest.raises(ValueError, match="want"):
            write_synthetic(tmp_path / "raw", **{"num_chains": 4, **wrong})
    assert exit_code("synth", str(tmp_path / "raw"), "--stoichiometry", "A2", "--json") != 0
    assert "--complexes" in capsys.readouterr().err
    assert not (tmp_path / "raw").exists()


def test_what_no_disk_has_room_for_is_written_when_the_command_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("synth", str(tmp_path / "raw"), "--chains", "1", "--mean-length", "30", "--json")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, unlimited[1]))
    try:
        assert exit_code(*arguments) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert "then run it again" in capsys.readouterr().err
    assert exit_code(*arguments) == 0


@pytest.mark.system
def test_a_killed_command_can_be_run_again(tmp_path: Path) -> None:
    def die(_: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    if not (child := os.fork()):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        write_synthetic(tmp_path, 1, **SMALL, progress=die)
    assert os.waitpid(child, 0)[1] == signal.SIGTERM
    write_synthetic(tmp_path, 1, **SMALL)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"alignments", "clusters.txt", "mmcif"}


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


def test_every_kind_takes_the_usual_path_touches_and_has_species_to_pair(data: Dataset) -> None:
    assemblies, ca = [data.assemblies[name] for name in data.assemblies], ATOM_ORDER["CA"]
    assert sorted(record.stoichiometry for record in assemblies) == sorted(2 * STOICHIOMETRIES)
    for record in assemblies:
        assert record.num_interface > 10 and not record.dropped
        is_hetero = len(record.chains) > 1
        assert [rows is not None for rows in record.pairing] == [is_hetero] * len(record.chains)
        species = [set(rows.msa_species) - {""} for rows in record.pairing if rows]
        if species:
            shared = set.intersection(*species)
            assert len(shared) > 0.6 * min(map(len, species)) and len(shared) > 8
        assert record.all_atom_positions is not None and record.all_atom_mask is not None
        resolved = record.all_atom_mask[:, ca] > 0
        positions, chain = record.all_atom_positions[resolved, ca], record.asym_id()[resolved]
        distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
        between = distance[chain[:, None] != chain[None]]
        assert 3.5 < between.min() < 9.0


def test_sites_that_touch_across_chains_covary_between_paired_rows() -> None:
    enrichment = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        families, placed = evolve.evolve(rng, [36, 36], 1, 400)
        middles = [folds.centroids(*folds.frames(family.fold)) for family in families]
        touch = evolve._contacts(middles, placed)[1][:36, 36:]
        rows = np.concatenate([family.rows[1:, family.core] for family in families], axis=1)
        top = np.argsort(-_covariation(rows)[:36, 36:].ravel())[:18]
        enrichment.append(touch.ravel()[top].mean() / touch.mean())
    assert np.mean(enrichment) > 10


@pytest.mark.parametrize("text", ["A", "A2B", "B2", "A0", "A2C2", "A30", "dimer", ""])
def test_stoichiometries_that_cannot_be_simulated_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="stoichiometry"):
        read_stoichiometry(text)


def test_no_atom_of_a_component_has_more_bonds_than_its_element_may() -> None:
    max_bonds = {"C": 4, "N": 4, "O": 2, "P": 5, "S": 6, "SE": 2}
    for component in read_components(COMPONENTS).values():
        counts = np.bincount(np.repeat(component.bond, component.bond_order, axis=0).ravel())
        elements = component.element[: len(counts)].tolist()
        assert (counts <= [max_bonds.get(element, 0) for element in elements]).all(), component.code
