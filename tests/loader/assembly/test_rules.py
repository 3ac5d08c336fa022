"""Differences from OpenFold, one field each, and cases that no recording has."""

from __future__ import annotations

import numpy as np

from evofeed.loader.assembly.crop import crop_residues, spatial_crop
from evofeed.loader.assembly.pairing import pair_rows, plan_rows, similarity
from evofeed.loader.config import AssemblyConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.interfaces import interface_residues
from evofeed.protein.residues import GAP

OURS = AssemblyConfig()


class Chosen(SampleDraws):
    """Draws a spatial crop around the first interface residue; records the number of choices."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def bernoulli(self, purpose: Purpose, probability: float) -> bool:
        return True

    def integer(self, purpose: Purpose, count: int, *, per_call: bool = False) -> int:
        self.counts.append(count)
        return 0


def aligned(msa: np.ndarray, *species: str) -> ChainRecord:
    query = ChainRecord.of_query("A", "A" * msa.shape[1], msa[0], np.arange(msa.shape[1]))
    return query.replace(msa=msa, msa_species=species)


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


def test_a_lone_first_interface_residue_is_cropped_around() -> None:
    # Chain 1 is far from all but residue 0, and has no atom that would be near itself.
    positions, mask = residues((0, 0, 0), (100, 0, 0), (200, 0, 0), (5, 0, 0))
    draws = Chosen()
    crop = crop_residues(positions, mask, [3, 1], 2, draws, OURS)
    assert crop.tolist() == [0, 3] and draws.counts == [2]
    interface = interface_residues(positions, mask, np.array([0, 0, 0, 1]))
    assert interface.tolist() == [0, 3]


def test_a_residue_without_ca_is_cropped_around_where_its_atoms_are() -> None:
    positions, mask = residues((0, 0, 0), (1, 0, 0), (100, 0, 0), (101, 0, 0))
    mask[3, 1], mask[3, 2], positions[3, 1], positions[3, 2] = 0, 1, 0, (101, 0, 0)
    assert spatial_crop(positions, mask, 3, 1, OURS).tolist() == [2]
    assert spatial_crop(positions, mask, 3, 1, AssemblyConfig.openfold()).tolist() == [0]


def test_near_equal_distances_are_not_reordered() -> None:
    positions, mask = residues((0, 0, 0), *[(500, 0, 0)] * 100, (1, 0, 0), (0.95, 0, 0))
    assert spatial_crop(positions, mask, 0, 2, OURS).tolist() == [0, 102]
    positions[1, 1] = (1.0, 0, 0)
    biased = spatial_crop(positions, mask, 0, 2, OURS.replace(biased_distances=True))
    assert biased.tolist() == [0, 1]


def test_products_of_many_chains_do_not_wrap_round() -> None:
    msa = np.zeros([3000, 1], np.uint8)
    chains = (aligned(msa, "", *(f"{number:04}" for number in range(1, 3000))),) * 2
    record = AssemblyRecord(
        assembly_id="A", chains=chains, pairing=chains, copies=(("A",) * 6,) * 2
    )
    assert pair_rows(record, OURS)[:, 0].tolist() == list(range(3000))
    wrapped = OURS.replace(wrapped_products=True)
    assert pair_rows(record, wrapped)[:, 0].tolist() != list(range(3000))


def test_a_chain_of_gaps_only_where_it_has_no_partner_brings_no_row_twice() -> None:
    chains, gaps = np.array([[[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [GAP] * 3]], np.uint8)
    one, two, copies = aligned(chains, "", "HUMAN"), aligned(gaps), (("A", "A"), ("A",))
    record = AssemblyRecord(assembly_id="A", chains=(one, two), pairing=(one, None), copies=copies)
    plan = plan_rows(record, OURS)
    assert plan.paired.tolist() == [[0, 0], [1, -1]]  # copies pair with each other
    assert [rows.tolist() for rows in plan.unpaired] == [[], []]
    assert similarity(chains).tolist() == [3, 0]
