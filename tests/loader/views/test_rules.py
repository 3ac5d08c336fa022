"""Rules of the projects' views that the recorded samples do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.views.made_entries import MadeChain, made_alignment, made_entry
from tests.loader.views.packs import slotted

from evofeed.loader import boltz_batch, protenix_batch
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.entries.batch import stacked
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.entry_view import ChainType
from evofeed.loader.views.openfold3.features import openfold3_features
from evofeed.loader.views.openfold3.molecules import molecules_of
from evofeed.loader.views.openfold3.plan import plan_sample
from evofeed.loader.views.openfold3.rows import plan_rows

PROTEIN, LIGAND, RNA = ChainType.PROTEIN, ChainType.LIGAND, ChainType.RNA
PEPTIDE = (("ALA", 5), ("GLY", 4), ("SER", 6))


def features_of(view: Any, alignments: Any, key: int, config: OpenFold3Config) -> dict[str, Any]:
    point = (key % view.num_chains,)
    packed = plan_sample(view, alignments, point, SampleDraws(key), config)
    return openfold3_features(slotted(packed), config)


def test_partly_paired_rows_are_gaps_and_gaps_leave_the_main_rows() -> None:
    chains = [
        MadeChain("1", 1, PROTEIN, PEPTIDE * 2, 0),
        MadeChain("2", 2, PROTEIN, PEPTIDE * 2, 1),
        MadeChain("3", 3, PROTEIN, PEPTIDE * 2, 2),
        MadeChain("4", 4, RNA, PEPTIDE * 2, 3),
    ]
    view = made_entry(chains, alignments=("a", "b", "c", "d"))
    species = (["X", "Y"], ["X", "Y"], ["X"], [""])
    alignments = [made_alignment(name, names) for name, names in zip("abcd", species, strict=True)]
    config = OpenFold3Config(main_sources=("uniprot_hits",), subsample_main=False)
    plan = plan_rows(view, np.arange(4), alignments, SampleDraws(1), config)
    assert plan.num_paired == 3
    assert [chain.rows[:3].tolist() for chain in plan.chains] == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, -1],
        [0, -1, -1],
    ]
    # Paired rows do not occur again, but the query does.
    assert [chain.rows[3:].tolist() for chain in plan.chains] == [[0, -1], [0, -1], [0, -1], [0, 1]]
    assert [chain.depth for chain in plan.chains] == [4, 4, 4, 5]


def test_too_many_pairs_are_cut_by_products_that_may_overflow() -> None:
    count = 3000
    names = [f"S{n:04}" for n in range(count)]
    chains = [MadeChain(str(n), n, PROTEIN, PEPTIDE * 2, n - 1) for n in range(1, 8)]
    view = made_entry(chains, alignments=tuple("abcdefg"))
    alignments = [made_alignment(name, names, seed=n) for n, name in enumerate("abcdefg")]
    rows = {}
    for wrapped in (True, False):
        config = OpenFold3Config(
            max_paired_rows=1000, wrapped_products=wrapped, subsample_main=False, main_sources=()
        )
        plan = plan_rows(view, np.arange(7), alignments, SampleDraws(1), config)
        rows[wrapped] = plan.chains[0].rows[1 : plan.num_paired]
    np.testing.assert_array_equal(rows[False], np.arange(1, 1001))
    number = np.arange(1, count + 1, dtype=np.int64)
    product = np.ones(count, np.int64)
    with np.errstate(over="ignore"):
        for _ in range(7):
            product = product * number
    expected = np.argsort(np.abs(product), kind="stable")[:1000] + 1
    np.testing.assert_array_equal(rows[True], expected)


def test_chains_of_equal_molecules_are_put_in_one_order() -> None:
    """Two equal chains with two sugars each, these in another order on the second."""
    glcnac, mannoses = (("NAG", 3),), (("MAN", 3), ("MAN", 3))
    chains = [
        MadeChain("1", 1, PROTEIN, PEPTIDE),
        MadeChain("2", 1, PROTEIN, PEPTIDE),
        MadeChain("3", 2, LIGAND, glcnac),
        MadeChain("4", 3, LIGAND, mannoses),
        MadeChain("5", 3, LIGAND, mannoses),
        MadeChain("6", 2, LIGAND, glcnac),
    ]
    start = [0, 15, 30, 33, 39, 45]
    bonds = [(0, start[2]), (8, start[3]), (start[1], start[5]), (start[1] + 8, start[4])]
    view = made_entry(chains, bonds)
    molecules = molecules_of(view, np.ones(6, bool))
    assert molecules.chain.tolist() == [0, 1, 2, 3, 5, 4]
    assert molecules.entity.tolist() == [1] * 6
    assert molecules.sym.tolist() == [1, 2, 1, 1, 2, 2]
    other = made_entry(chains, [*bonds[:3], (start[1] + 7, start[4])])
    assert molecules_of(other, np.ones(6, bool)).entity.tolist() == [1, 2, 1, 1, 2, 2]
    features = features_of(view, [], 3, OpenFold3Config(token_budget=64))
    assert_copies_alike(features)


def assert_copies_alike(features: dict[str, Any]) -> None:
    truth = features["ground_truth"]
    for entity in truth["mol_entity_id"].unique():
        copies = [truth["mol_sym_id"][truth["mol_entity_id"] == entity] == n for n in (1, 2)]
        in_entity = truth["mol_entity_id"] == entity
        for name in ("num_atoms_per_token", "mol_sym_token_index", "mol_sym_component_id"):
            first, second = (truth[name][in_entity][copy] for copy in copies)
            if len(second):
                torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_a_chain_that_the_chain_crop_dropped_joins_no_molecule() -> None:
    chains = [MadeChain(str(n), 1, PROTEIN, PEPTIDE) for n in range(1, 4)]
    view = made_entry(chains, [(0, 15), (16, 30)])
    retained = np.array([True, False, True])
    assert molecules_of(view, retained).sym.tolist() == [1, 2]
    assert len(set(molecules_of(view, np.ones(3, bool)).sym.tolist())) == 1


def test_the_numbers_of_sequence_rows_sent_may_be_fewer() -> None:
    chains = [MadeChain(str(n + 1), n + 1, PROTEIN, PEPTIDE * 2, n) for n in range(2)]
    view = made_entry(chains, alignments=("a", "b"))
    names = [f"S{n}" for n in range(300)]
    alignments = [made_alignment(name, names, seed=n) for n, name in enumerate("ab")]
    config = OpenFold3Config(main_sources=("uniprot_hits",), subsample_main=False)
    full = features_of(view, alignments, 5, config)
    part = features_of(view, alignments, 5, config.replace(used_rows=64))
    assert full["msa"].shape[0] == 302
    assert part["msa"].shape[0] == 64
    rows = {tuple(row) for row in full["msa"].argmax(-1).tolist()}
    assert all(tuple(row) in rows for row in part["msa"].argmax(-1).tolist())
    assert 30 < int(part["num_paired_seqs"]) <= 64
    torch.testing.assert_close(full["profile"], part["profile"])


def test_an_entry_of_ligands_alone_has_one_row_of_gaps() -> None:
    view = made_entry(
        [MadeChain("1", 1, LIGAND, (("HEM", 9),)), MadeChain("2", 2, LIGAND, (("CA", 1),))]
    )
    features = features_of(view, [], 0, OpenFold3Config(token_budget=16))
    assert features["msa"].shape == (1, 16, 32)
    assert (features["msa"].argmax(-1) == 31).all()
    assert features["msa_mask"].sum() == 10
    assert float(features["profile"].sum()) == 0
    assert features["num_paired_seqs"].tolist() == [1]


def test_an_entry_without_a_resolved_token_is_refused_where_a_centre_is_needed() -> None:
    view = made_entry([MadeChain("1", 1, PROTEIN, PEPTIDE * 30)])
    object.__setattr__(view, "token_resolved", np.zeros(view.num_tokens, bool))
    config = OpenFold3Config(token_budget=8, crop_weights=(0.0, 1.0, 0.0))
    with pytest.raises(ValueError, match="made: no token is resolved"):
        plan_sample(view, [], (0,), SampleDraws(0), config)


def test_samples_of_other_sizes_stack_with_zeros_behind() -> None:
    config = OpenFold3Config(token_budget=16)
    small = features_of(made_entry([MadeChain("1", 1, LIGAND, (("HEM", 9),))]), [], 0, config)
    large = features_of(made_entry([MadeChain("1", 1, PROTEIN, PEPTIDE)]), [], 0, config)
    batch = stacked([small, large])
    assert batch["ref_pos"].shape == (2, 15, 3)
    assert not batch["ref_pos"][0, 9:].any()
    assert batch["loss_weights"]["mse"].tolist() == [4.0, 4.0]
    assert batch["num_paired_seqs"].tolist() == [1, 1]
    assert [len(orders) for orders in batch["ref_space_uid_to_perm"]] == [1, 3]
    assert batch["ground_truth"]["atom_positions"].shape == (2, 15, 3)


def test_draws_are_uniform_within_bounds_and_their_rotations_proper() -> None:
    keys = range(1000)
    sizes = np.bincount([SampleDraws(key).integer(Purpose.NEIGHBORHOOD, 21) for key in keys])
    assert abs(sizes - 1000 / 21).max() < 5 * np.sqrt(1000 / 21)
    number = [SampleDraws(key).geometric(Purpose.POCKET_SIZE, 0.3) for key in keys]
    assert min(number) == 1
    assert abs(np.mean(number) - 1 / 0.3) < 0.45
    turned, _ = SampleDraws(7).normal_moves(np.ones(64, bool))
    upright = np.tile(np.eye(3), (64, 1, 1))
    np.testing.assert_allclose(turned @ turned.transpose(0, 2, 1), upright, atol=1e-5)
    np.testing.assert_allclose(np.linalg.det(turned), 1, atol=1e-5)
    _, shift = SampleDraws(5).uniform_moves(500, 1.0)
    assert (np.abs(shift) <= 1).all()
    assert np.abs(shift.mean(0)).max() < 0.1


def test_a_batch_of_boltz_pads_the_rows_that_vary_and_one_of_protenix_has_one_sample() -> None:
    samples = [{"msa": torch.ones(2, 3), "r_set_to_rep_atom": torch.ones(n, 4)} for n in (2, 5)]
    batch = boltz_batch({"samples": samples})
    assert batch["msa"].shape == (2, 2, 3)
    assert batch["r_set_to_rep_atom"].sum((1, 2)).tolist() == [8, 20]
    with pytest.raises(ValueError, match="batch_size=1"):
        protenix_batch({"samples": [{}, {}]})
