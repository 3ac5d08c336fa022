"""Each fault of a project, mended, changes the tensors it is about and no others."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.views import openfold3_recorded
from tests.loader.views.packs import differing, read, slotted, some_recordings
from tests.loader.views.test_recorded import PROJECTS

from evofeed.loader.sample_draws import SampleDraws, Strategy
from evofeed.loader.views.boltz.crop import crop_tokens as boltz_crop
from evofeed.loader.views.config import BoltzConfig, OpenFold3Config, ProtenixConfig, ViewConfig
from evofeed.loader.views.crop import Tokens
from evofeed.loader.views.entry_view import ChainType
from evofeed.loader.views.openfold3.crop import crop_entry
from evofeed.loader.views.protenix.crop import crop_tokens
from evofeed.loader.views.protenix.rows import ranked_pairs

SMALL: dict[str, ViewConfig] = {
    "boltz": BoltzConfig(max_tokens=64, max_atoms=640, max_seqs=512),
    "openfold3": OpenFold3Config(token_budget=64),
    "protenix": ProtenixConfig(crop_size=64, min_resolved=0),
}
OPENFOLD3_ROWS = {"msa", "has_deletion", "deletion_value", "msa_mask", "num_paired_seqs"}
PROTENIX_ROWS = {"msa", "has_deletion", "deletion_value", "prot_pair_num_alignments"} | {
    f"{kind}_unpair_num_alignments" for kind in ("prot", "rna")
}
ANY: set[str] = set()
FAULTS: list[tuple[str, str, dict[str, Any], set[str]]] = [
    ("boltz", "narrowed_deletions", {}, {"deletion_value", "has_deletion", "deletion_mean"}),
    ("boltz", "reused_rows", {}, {"msa", "msa_paired", "msa_mask", "profile"}),
    # no deletion is there to show it otherwise
    ("boltz", "pi_half", {"narrowed_deletions": False}, {"deletion_value", "deletion_mean"}),
    ("boltz", "profile_of_kept", {}, {"profile", "deletion_mean"}),
    ("boltz", "padding_of_ones", {}, {"msa"}),
    ("boltz", "one_move", {}, {"ref_pos"}),
    ("openfold3", "text_order", {}, {"asym_id"}),
    ("openfold3", "unmasked_padding", {}, {"msa", "msa_mask"}),
    ("openfold3", "query_twice", {}, OPENFOLD3_ROWS),
    ("openfold3", "sorted_then_cut", {"max_rows": 12}, OPENFOLD3_ROWS - {"num_paired_seqs"}),
    ("openfold3", "first_of_species", {"max_rows_of_species": 1}, OPENFOLD3_ROWS),
    ("openfold3", "ligands_cut_anywhere", {"crop_weights": (1.0, 0.0, 0.0)}, ANY),
    ("protenix", "query_twice", {"min_resolved": 5}, PROTENIX_ROWS),
    ("protenix", "fill_with_query", {"min_resolved": 5}, PROTENIX_ROWS),
    ("protenix", "unresolved_fill", {"crop_size": 4096, "crop_weights": (0.0, 1.0, 0.0)}, ANY),
    ("protenix", "draw_when_it_fits", {"crop_size": 4096, "crop_weights": (1.0, 0.0, 0.0)}, ANY),
]


@functools.cache
def inputs(project: str, most: int = 5) -> list[Any]:
    """What recorded samples of the smaller entries are made of."""
    paths = some_recordings(f"{project}/samples/*.0.npz", most)
    return [PROJECTS[project].given(path.parents[2], read(path)) for path in paths]


def made(project: str, given: Any, key: int, config: ViewConfig) -> dict[str, torch.Tensor]:
    """A sample's features by free draws."""
    of = PROJECTS[project]
    packed = of.planned(given.view, given.alignments, given.point, SampleDraws(key), config)
    features = of.features_of(slotted(packed), config)
    features = features.get("input_feature_dict", features)
    return openfold3_recorded.flat(features)


@pytest.mark.parametrize(("project", "fault", "changes", "tensors"), FAULTS)
def test_a_mended_fault_changes_its_tensors_alone(
    project: str, fault: str, changes: dict[str, Any], tensors: set[str]
) -> None:
    config = SMALL[project].replace(**changes)
    assert fault in config.faults()
    changed: set[str] = set()
    shows = fault != "first_of_species"
    samples = inputs(project, 5 if shows else 30)
    for given in samples:
        for key in range(5, 5 + max(1, 5 // len(samples))):
            one = made(project, given, key, config)
            changed |= differing(one, made(project, given, key, config.replace(**{fault: False})))
        proteins = given.view.chain_alignment[given.view.chain_type == ChainType.PROTEIN]
        shows |= len(np.unique(proteins[proteins >= 0])) > 1
    assert bool(changed) == shows
    assert "residue_index" in changed if tensors is ANY else changed <= tensors


@pytest.mark.parametrize("project", SMALL)
def test_right_mends_every_fault(project: str) -> None:
    right = SMALL[project].right()
    assert not any(getattr(right, fault) for fault in right.faults())
    assert right.replace(**dict.fromkeys(right.faults(), True)) == SMALL[project]


def test_a_crop_that_goes_on_after_what_does_not_fit_is_fuller() -> None:
    config = BoltzConfig(max_tokens=64, max_atoms=640)
    grew = False
    for given in inputs("boltz"):
        for key in range(2):
            point = [int(given.view.token_chain()[0])]
            kept = boltz_crop(given.view, point, SampleDraws(key), config)
            right = boltz_crop(given.view, point, SampleDraws(key), config.right())
            assert np.isin(kept, right).all()
            assert len(right) <= 64
            grew |= len(right) > len(kept)
    assert grew


def test_a_species_that_a_chain_lacks_need_not_rank_first() -> None:
    pairs = np.array([[5, 5, 5], [8, 8, -1]])
    assert ranked_pairs(pairs, ProtenixConfig()).tolist() == [1, 0]
    assert ranked_pairs(pairs, ProtenixConfig(missing_ranks_first=False)).tolist() == [0, 1]


def test_a_token_far_down_the_table_is_near_without_the_bias() -> None:
    position = np.full((2000, 3), 100.0)
    position[[0, 1, 1500]] = [[0, 0, 0], [2, 0, 0], [0, 1, 0]]
    rows = np.arange(2000)
    tokens = Tokens(rows, rows, rows, np.ones(2000, np.int64), position, np.ones(2000, bool))
    config = ProtenixConfig(crop_size=2, crop_weights=(0.0, 1.0, 0.0))
    kept = crop_tokens(tokens, [0], SampleDraws(0), config)[0]
    assert kept.tolist() == [0, 1]
    config = config.replace(biased_distances=False)
    assert crop_tokens(tokens, [0], SampleDraws(0), config)[0].tolist() == [0, 1500]


def test_free_crops_keep_their_budget_and_are_the_same_again() -> None:
    for given in inputs("openfold3"):
        view, seen = given.view, set()
        for config in (OpenFold3Config(token_budget=96), OpenFold3Config(token_budget=96).right()):
            for key in range(3):
                crop = crop_entry(view, (key % view.num_chains,), SampleDraws(key), config)
                again = crop_entry(view, (key % view.num_chains,), SampleDraws(key), config)
                np.testing.assert_array_equal(crop.tokens, again.tokens)
                assert 0 < len(crop.tokens) <= max(96, int(crop.strategy is Strategy.WHOLE) * 10**6)
                assert crop.chains[view.token_chain()[crop.tokens]].all()
                assert (np.diff(crop.tokens) > 0).all()
                seen.add(crop.strategy)
        assert len(seen) > 1 or view.num_tokens <= 96


def test_free_samples_keep_their_budget_and_are_the_same_again() -> None:
    shuffled = ("shuffle_molecules", "shuffle_copies", "rename_ligand_atoms")
    faulty = ProtenixConfig(crop_size=96, min_resolved=0, **dict.fromkeys(shuffled, True))
    seen = set()
    for given in inputs("protenix")[:3]:
        for config in (faulty, faulty.right()):
            for key in range(2):
                try:
                    one = made("protenix", given, key, config)
                except ValueError as error:
                    assert "spatial crop" in str(error)
                    continue
                assert not differing(one, made("protenix", given, key, config))
                floats = [value for value in one.values() if torch.is_tensor(value)]
                assert all(bool(value.double().isfinite().all()) for value in floats)
                assert 0 < len(one["token_index"]) <= 96
                assert one["msa"].shape[1] == len(one["token_index"])
                assert (one["msa"] <= 31).all()
                seen.add(len(one["token_index"]))
    assert seen
