"""Protenix's faults one by one, and its samples from counter-based draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.views.packs import differing, read, some_recordings
from tests.loader.views.protenix_recorded import datapoint, recorded_alignments
from tests.loader.views.test_protenix import through_a_slot, view_of

from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.draws import ProtenixDraws
from evofeed.loader.views.protenix.crop import Tokens, crop_tokens
from evofeed.loader.views.protenix.features import protenix_batch
from evofeed.loader.views.protenix.plan import plan_sample
from evofeed.loader.views.protenix.rows import ranked_pairs

ROWS = {"msa", "has_deletion", "deletion_value", "prot_pair_num_alignments"} | {
    f"{kind}_unpair_num_alignments" for kind in ("prot", "rna")
}


def made(path: Path, key: int, config: ProtenixConfig) -> dict[str, Any]:
    sample = read(path)
    pack = path.parent.parent.parent
    view = view_of(pack, sample.meta["entry"])
    alignments = recorded_alignments(pack, view, sample)
    point = datapoint(view, sample.meta["index_row"])
    packed = plan_sample(view, alignments, point, ProtenixDraws(key), config)
    return through_a_slot(packed, config)


def changed_by(fault: str, path: Path, config: ProtenixConfig) -> set[str]:
    one = made(path, 3, config)["input_feature_dict"]
    two = made(path, 3, config.replace(**{fault: False}))["input_feature_dict"]
    return differing(one, two)


@pytest.mark.parametrize("fault", ["query_twice", "fill_with_query"])
def test_a_mended_fault_of_the_rows_changes_its_tensors_alone(fault: str) -> None:
    samples = some_recordings("protenix/samples/*.0.npz", 9)
    changed = set().union(*(changed_by(fault, p, ProtenixConfig(crop_size=64)) for p in samples))
    assert changed
    assert changed <= ROWS


def test_a_species_that_a_chain_lacks_need_not_rank_first() -> None:
    pairs = np.array([[5, 5, 5], [8, 8, -1]])
    assert ranked_pairs(pairs, ProtenixConfig()).tolist() == [1, 0]
    assert ranked_pairs(pairs, ProtenixConfig(missing_ranks_first=False)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("fault", "size", "weights"),
    [
        ("unresolved_fill", 4096, (0.0, 1.0, 0.0)),
        ("draw_when_it_fits", 4096, (1.0, 0.0, 0.0)),
    ],
)
def test_a_mended_fault_of_the_crop_changes_which_tokens_are_kept(
    fault: str, size: int, weights: tuple[float, float, float]
) -> None:
    samples = some_recordings("protenix/samples/*.0.npz", 9)
    config = ProtenixConfig(crop_size=size, crop_weights=weights, min_resolved=0)
    assert any("residue_index" in changed_by(fault, path, config) for path in samples)


def test_a_token_far_down_the_table_is_near_without_the_bias() -> None:
    position = np.full((2000, 3), 100.0)
    position[[0, 1, 1500]] = [[0, 0, 0], [2, 0, 0], [0, 1, 0]]
    rows = np.arange(2000)
    tokens = Tokens(rows, rows, rows, np.ones(2000, np.int64), position, np.ones(2000, bool))
    config = ProtenixConfig(crop_size=2, crop_weights=(0.0, 1.0, 0.0))
    kept = crop_tokens(tokens, [0], ProtenixDraws(0), config)[0]
    assert kept.tolist() == [0, 1]
    config = config.replace(biased_distances=False)
    assert crop_tokens(tokens, [0], ProtenixDraws(0), config)[0].tolist() == [0, 1500]


def test_right_mends_every_fault() -> None:
    right = ProtenixConfig().right()
    assert not any(getattr(right, fault) for fault in right.faults())
    assert right.replace(**dict.fromkeys(right.faults(), True)) == ProtenixConfig()


@pytest.mark.parametrize(
    "path", some_recordings("protenix/samples/*.0.npz", 3), ids=lambda path: path.stem
)
def test_free_samples_keep_their_budget_and_are_the_same_again(path: Path) -> None:
    seen = set()
    for config in (ProtenixConfig(crop_size=96), ProtenixConfig(crop_size=96).right()):
        config = config.replace(
            shuffle_molecules=True, shuffle_copies=True, rename_ligand_atoms=True, min_resolved=0
        )
        for key in range(2):
            try:
                one = protenix_batch([made(path, key, config)])["input_feature_dict"]
            except ValueError as error:
                assert "spatial crop" in str(error)
                continue
            two = made(path, key, config)["input_feature_dict"]
            for name, value in one.items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(value, two[name]), name
                    if value.is_floating_point():
                        assert value.isfinite().all(), name
            assert 0 < len(one["token_index"]) <= 96
            assert one["msa"].shape[1] == len(one["token_index"])
            assert (one["msa"][0] <= 31).all()
            seen.add(len(one["token_index"]))
    assert seen


def test_free_moves_shift_within_their_bounds() -> None:
    shift, _ = ProtenixDraws(5).moves(500, 1.0)
    assert (np.abs(shift) <= 1).all()
    assert np.abs(shift.mean(0)).max() < 0.1


def test_a_batch_of_several_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=1"):
        protenix_batch([{}, {}])
