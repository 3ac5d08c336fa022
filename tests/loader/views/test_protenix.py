"""Protenix's crops, rows, features and labels: those recorded, its faults, and free samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.views.packs import (
    Recording,
    assert_recorded,
    differing,
    entry_view,
    read,
    recordings,
    slotted,
    some_recordings,
    watched,
)
from tests.loader.views.protenix_recorded import (
    STRATEGIES,
    RecordedDraws,
    datapoint,
    recorded_alignments,
)

from evofeed.loader import protenix_batch
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.crop import Tokens
from evofeed.loader.views.entry_view import ProtenixView
from evofeed.loader.views.protenix import plan
from evofeed.loader.views.protenix.crop import crop_tokens
from evofeed.loader.views.protenix.features import protenix_features
from evofeed.loader.views.protenix.plan import plan_sample
from evofeed.loader.views.protenix.rows import ranked_pairs

SAMPLES = recordings("protenix/samples/*.npz")
CROPS = recordings("protenix/crops/*.npz")
PARTS = {
    "feature": "input_feature_dict",
    "label": "label_dict",
    "label_full": "label_full_dict",
    "basic": "basic",
}


def view_of(pack: Path, entry: str) -> ProtenixView:
    view = entry_view("protenix", pack, entry)
    assert isinstance(view, ProtenixView)
    return view


@pytest.mark.parametrize("path", CROPS, ids=lambda path: path.stem)
def test_crops_are_the_recorded_ones(path: Path) -> None:
    recorded = read(path)
    view = view_of(path.parent.parent.parent, path.stem)
    tokens = Tokens.of(view)
    for number, about in enumerate(recorded.meta["crops"]):
        config = ProtenixConfig(crop_size=about["crop_size"])
        draws = RecordedDraws.of_crop(about)
        places, strategy = crop_tokens(tokens, datapoint(view, about["index_row"]), draws, config)
        wanted = recorded.arrays[f"crop.{number:02}.selected"]
        np.testing.assert_array_equal(places, wanted, err_msg=f"crop {number}")
        assert strategy == STRATEGIES.index(about["method"])
        assert not draws.calls


def planned(path: Path) -> tuple[Recording, dict[str, Any], ProtenixConfig]:
    pack = path.parent.parent.parent
    sample = read(path)
    meta = sample.meta
    view = view_of(pack, meta["entry"])
    config = ProtenixConfig(
        crop_size=meta["crop_size"],
        shuffle_molecules=meta["shuffle_mols"],
        shuffle_copies=meta["shuffle_sym_ids"],
        rename_ligand_atoms=meta["lig_atom_rename"],
    )
    draws = RecordedDraws.of_sample(sample)
    alignments = recorded_alignments(pack, view, sample)
    point = datapoint(view, meta["index_row"])
    with watched(plan, "crop_tokens") as crops:
        packed = plan.plan_sample(view, alignments, point, draws, config)
    assert not draws.calls
    np.testing.assert_array_equal(crops[0][0], sample.arrays["crop.selected"])
    return sample, packed, config


def through_a_slot(packed: dict[str, np.ndarray], config: ProtenixConfig) -> dict[str, Any]:
    return protenix_features(slotted(packed), config)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_feature_and_label_equals_the_recorded_one(path: Path) -> None:
    sample, packed, config = planned(path)
    made = through_a_slot(packed, config)
    orders = made["input_feature_dict"].pop("atom_perm_list")
    assert orders == sample.arrays["permutation.atom_perm_list"]
    assert orders[1:4] == [orders[1], orders[2], orders[3]]
    ours = {
        f"{prefix}.{name}": value
        for prefix, part in PARTS.items()
        for name, value in made[part].items()
    }
    theirs = {name: v for name, v in sample.arrays.items() if name.split(".")[0] in PARTS}
    assert set(ours) == set(theirs) - {"basic.pdb_id", "basic.chain_id"}
    assert_recorded(ours, theirs, {}, 1e-6)


ROWS = {"msa", "has_deletion", "deletion_value", "prot_pair_num_alignments"} | {
    f"{kind}_unpair_num_alignments" for kind in ("prot", "rna")
}


def made(path: Path, key: int, config: ProtenixConfig) -> dict[str, Any]:
    sample = read(path)
    pack = path.parent.parent.parent
    view = view_of(pack, sample.meta["entry"])
    alignments = recorded_alignments(pack, view, sample)
    point = datapoint(view, sample.meta["index_row"])
    packed = plan_sample(view, alignments, point, SampleDraws(key), config)
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
    kept = crop_tokens(tokens, [0], SampleDraws(0), config)[0]
    assert kept.tolist() == [0, 1]
    config = config.replace(biased_distances=False)
    assert crop_tokens(tokens, [0], SampleDraws(0), config)[0].tolist() == [0, 1500]


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
                one = protenix_batch({"samples": [made(path, key, config)]})["input_feature_dict"]
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
    _, shift = SampleDraws(5).even_moves(500, 1.0)
    assert (np.abs(shift) <= 1).all()
    assert np.abs(shift.mean(0)).max() < 0.1


def test_a_batch_of_several_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=1"):
        protenix_batch({"samples": [{}, {}]})
