"""What we do otherwise than OpenFold, a field each, and what no recording holds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evofeed.loader.assembly.crop import ComplexDraws, contiguous_crop, crop_residues, spatial_crop
from evofeed.loader.assembly.pairing import (
    EntityRows,
    pair_rows,
    plan_rows,
    similarity,
    species_keys,
)
from evofeed.loader.config import AssemblyConfig
from evofeed.protein.interfaces import interface_residues
from evofeed.protein.residues import GAP

OURS = AssemblyConfig()


class Chosen(ComplexDraws):
    """Says what it is told to, and keeps what it was asked."""

    def __init__(self, seed: int = 0, *, spatial: bool = True) -> None:
        self.random, self.is_spatial = np.random.default_rng(seed), spatial
        self.asked: list[int] = []

    def spatial(self, probability: float) -> bool:
        return self.is_spatial

    def interface(self, count: int) -> int:
        self.asked.append(count)
        return 0

    def chain_order(self, count: int) -> Sequence[int]:
        return [int(i) for i in self.random.permutation(count)]

    def between(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))


def residues(*places: tuple[float, float, float], atom: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Residues with one atom each."""
    positions = np.zeros([len(places), 37, 3], np.float32)
    mask = np.zeros([len(places), 37], np.float32)
    positions[:, atom], mask[:, atom] = places, 1
    return positions, mask


def test_an_interface_is_of_all_atoms_and_openfolds_of_equal_ones() -> None:
    positions, mask = residues((0, 0, 0), (3, 0, 0))
    mask[1] = 0
    mask[1, 4], positions[1, 4] = 1, (3, 0, 0)
    chains = np.array([0, 1])
    assert interface_residues(positions, mask, chains).tolist() == [0, 1]
    assert interface_residues(positions, mask, chains, same_atom=True).tolist() == []


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_the_interface_is_that_of_all_pairs_of_atoms(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 12))
    positions = random.integers(-20_000, 20_000, [count, 37, 3]).astype(np.float32) / 1000
    mask = (random.random([count, 37]) < 0.1).astype(np.float32)
    chains = np.sort(random.integers(0, 3, count))
    fixed = np.rint(positions.astype(np.float64) * 1000)
    square = ((fixed[:, None, :, None] - fixed[None, :, None, :]) ** 2).sum(-1)
    there = (mask[:, None, :, None] * mask[None, :, None, :]) > 0
    other = (chains[:, None] != chains[None, :])[..., None, None]
    near = (there & other & (square < 10_000**2)).any((1, 2, 3))
    got = interface_residues(positions, mask, chains)
    assert got.tolist() == np.flatnonzero(near).tolist()


def test_a_lone_first_interface_residue_is_cropped_around() -> None:
    # Chain 1 is far from all but residue 0, and has no atom that would be near itself.
    positions, mask = residues((0, 0, 0), (100, 0, 0), (200, 0, 0), (5, 0, 0))
    lengths = [3, 1]
    draws = Chosen()
    kept = crop_residues(positions, mask, lengths, 2, draws, OURS)
    assert kept.tolist() == [0, 3] and draws.asked == [2]
    found = interface_residues(positions, mask, np.array([0, 0, 0, 1]))
    assert found.tolist() == [0, 3]


def test_a_residue_without_ca_is_cropped_around_where_its_atoms_are() -> None:
    positions, mask = residues((0, 0, 0), (1, 0, 0), (100, 0, 0), (101, 0, 0))
    mask[3, 1], mask[3, 2], positions[3, 1], positions[3, 2] = 0, 1, 0, (101, 0, 0)
    assert spatial_crop(positions, mask, 3, 1, OURS).tolist() == [2]
    assert spatial_crop(positions, mask, 3, 1, AssemblyConfig.openfold()).tolist() == [0]


def test_near_equal_distances_are_not_reordered() -> None:
    places = [(0.0, 0, 0), *[(500.0, 0, 0)] * 100, (1.0, 0, 0), (0.95, 0, 0)]
    positions, mask = residues(*[(x, 0.0, 0.0) for x, _, _ in places])
    assert spatial_crop(positions, mask, 0, 2, OURS).tolist() == [0, 102]
    positions[1, 1] = (1.0, 0, 0)
    biased = spatial_crop(positions, mask, 0, 2, OURS.replace(biased_distances=True))
    assert biased.tolist() == [0, 1]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
    st.integers(1, 60),
    st.integers(0, 2**32 - 1),
)
def test_runs_fill_the_crop(lengths: list[int], size: int, seed: int) -> None:
    if sum(lengths) < size:
        return
    kept = contiguous_crop(lengths, size, Chosen(seed))
    assert len(kept) == size == len(set(kept.tolist()))
    starts = np.cumsum([0, *lengths])
    for start, stop in itertools.pairwise(starts):
        own = kept[(kept >= start) & (kept < stop)]
        assert (np.diff(own) == 1).all()  # one run a chain


def slow_pairs(
    species: list[np.ndarray], alike: list[np.ndarray], copies: list[int]
) -> list[list[int]]:
    """Pairing by its definition, a species at a time."""
    found = [(-sum(copies), 0, -1, [0] * len(species))]
    for kind in sorted(set(np.concatenate(species).tolist()) - {0}):
        rows = [
            sorted(np.flatnonzero(s == kind).tolist(), key=lambda row, a=a: (-a[row], row))
            for s, a in zip(species, alike, strict=True)
        ]
        chains = sum(c for r, c in zip(rows, copies, strict=True) if r)
        if chains < 2 or max(map(len, rows)) > OURS.max_species_rows:
            continue
        for rank in range(min(len(r) for r in rows if r)):
            own = [r[rank] if r else -1 for r in rows]
            product = 1
            for row, number in zip(own, copies, strict=True):
                product *= abs(row) ** number
            found.append((-chains, product, len(found), own))
    return [own for *_, own in sorted(found)]


@given(st.integers(0, 2**32 - 1))
def test_pairs_are_those_of_the_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 4))
    copies = [int(c) for c in random.integers(1, 9, count)]
    rows = [int(n) for n in random.integers(1, 40, count)]
    species = [random.integers(0, 6, n) for n in rows]
    alike = [random.integers(0, 4, n) for n in rows]
    got = pair_rows(species, alike, copies, OURS)
    assert got.tolist() == slow_pairs(species, alike, copies)


def test_products_of_many_chains_do_not_wrap_round() -> None:
    species = [np.array([0, *range(1, 3000)])] * 2
    alike = [np.zeros(3000, np.int64)] * 2
    got = pair_rows(species, alike, [6, 6], OURS)
    assert got[:, 0].tolist() == list(range(3000))
    wrapped = pair_rows(species, alike, [6, 6], OURS.replace(wrapped_products=True))
    assert wrapped[:, 0].tolist() != list(range(3000))


def test_species_keys_keep_the_order_of_names() -> None:
    names = ["", "9606", "A", "AB", "HUMAN", "MOUSE", "YEAST"]
    keys = species_keys(names)
    assert keys[0] == 0 and (np.diff(keys) > 0).all()
    assert len(set(species_keys(["metagenome1", "metagenome2x", "é"]).tolist())) == 3


def test_a_chain_of_gaps_only_where_it_has_no_partner_brings_no_row_twice() -> None:
    query = np.array([[0, 1, 2]], np.uint8)
    other = np.array([[3, 4, 5]], np.uint8)
    one = EntityRows(
        np.concatenate([query, other]), np.concatenate([query, other]), np.array([0, 7]), 2
    )
    two = EntityRows(
        np.concatenate([query, np.full([1, 3], GAP, np.uint8)]), query, np.array([0]), 1
    )
    plan = plan_rows([one, two], OURS)
    assert plan.paired.tolist() == [[0, 0], [1, -1]]  # copies pair with each other
    assert [rows.tolist() for rows in plan.unpaired] == [[], []]
    assert similarity(one.pair_msa).tolist() == [3, 0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("msa_rows", 0),
        ("paired_rows", -1),
        ("spatial_crop_prob", 1.5),
        ("interface_threshold", 0.0),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        AssemblyConfig(**{field: value})
