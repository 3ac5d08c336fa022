"""Each corrected fault of a project changes the tensors it is about and no others."""

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
    # otherwise there is no deletion to show it
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
def inputs(project: str, limit: int = 5) -> list[Any]:
    """Inputs of recorded samples of the smaller entries."""
    paths = some_recordings(f"{project}/samples/*.0.npz", limit)
    return [PROJECTS[project].inputs_of(path.parents[2], read(path)) for path in paths]


def features_of(project: str, sample: Any, key: int, config: ViewConfig) -> dict[str, torch.Tensor]:
    """A sample's features with free draws."""
    module = PROJECTS[project]
    packed = module.planned(sample.view, sample.alignments, sample.point, SampleDraws(key), config)
    features = module.features_of(slotted(packed), config)
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
    for sample in samples:
        for key in range(5, 5 + max(1, 5 // len(samples))):
            faulty = features_of(project, sample, key, config)
            changed |= differing(
                faulty, features_of(project, sample, key, config.replace(**{fault: False}))
            )
        proteins = sample.view.chain_alignment[sample.view.chain_type == ChainType.PROTEIN]
        shows |= len(np.unique(proteins[proteins >= 0])) > 1
    assert bool(changed) == shows
    assert "residue_index" in changed if tensors is ANY else changed <= tensors


@pytest.mark.parametrize("project", SMALL)
def test_right_mends_every_fault(project: str) -> None:
    right = SMALL[project].right()
    assert not any(getattr(right, fault) for fault in right.faults())
    assert right.replace(**dict.fromkeys(right.faults(), True)) == SMALL[project]


def test_a_crop_that_skips_neighbourhoods_that_do_not_fit_is_fuller() -> None:
    config = BoltzConfig(max_tokens=64, max_atoms=640)
    grew = False
    for sample in inputs("boltz"):
        for key in range(2):
            point = [int(sample.view.token_chain()[0])]
            faulty = boltz_crop(sample.view, point, SampleDraws(key), config)
            right = boltz_crop(sample.view, point, SampleDraws(key), config.right())
            assert np.isin(faulty, right).all()
            assert len(right) <= 64
            grew |= len(right) > len(faulty)
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
    chosen = crop_tokens(tokens, [0], SampleDraws(0), config)[0]
    assert chosen.tolist() == [0, 1]
    config = config.replace(biased_distances=False)
    assert crop_tokens(tokens, [0], SampleDraws(0), config)[0].tolist() == [0, 1500]


def test_free_crops_keep_their_budget_and_are_the_same_again() -> None:
    for sample in inputs("openfold3"):
        view, strategies = sample.view, set()
        for config in (OpenFold3Config(token_budget=96), OpenFold3Config(token_budget=96).right()):
            for key in range(3):
                crop = crop_entry(view, (key % view.num_chains,), SampleDraws(key), config)
                again = crop_entry(view, (key % view.num_chains,), SampleDraws(key), config)
                np.testing.assert_array_equal(crop.tokens, again.tokens)
                assert 0 < len(crop.tokens) <= max(96, int(crop.strategy is Strategy.WHOLE) * 10**6)
                assert crop.chains[view.token_chain()[crop.tokens]].all()
                assert (np.diff(crop.tokens) > 0).all()
                strategies.add(crop.strategy)
        assert len(strategies) > 1 or view.num_tokens <= 96


def test_free_samples_keep_their_budget_and_are_the_same_again() -> None:
    shuffled = ("shuffle_molecules", "shuffle_copies", "rename_ligand_atoms")
    faulty = ProtenixConfig(crop_size=96, min_resolved=0, **dict.fromkeys(shuffled, True))
    sizes = set()
    for sample in inputs("protenix")[:3]:
        for config in (faulty, faulty.right()):
            for key in range(2):
                try:
                    features = features_of("protenix", sample, key, config)
                except ValueError as error:
                    assert "spatial crop" in str(error)
                    continue
                assert not differing(features, features_of("protenix", sample, key, config))
                floats = [value for value in features.values() if torch.is_tensor(value)]
                assert all(bool(value.double().isfinite().all()) for value in floats)
                assert 0 < len(features["token_index"]) <= 96
                assert features["msa"].shape[1] == len(features["token_index"])
                assert (features["msa"] <= 31).all()
                sizes.add(len(features["token_index"]))
    assert sizes
