"""Protenix's crops, rows, features and labels, given its recorded draws, are the recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loader.views.packs import (
    Recording,
    assert_recorded,
    entry_view,
    read,
    recordings,
    slotted,
    watched,
)
from tests.loader.views.protenix_recorded import (
    STRATEGIES,
    RecordedDraws,
    datapoint,
    recorded_alignments,
)

from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.entry_view import ProtenixView
from evofeed.loader.views.protenix import plan
from evofeed.loader.views.protenix.crop import crop_tokens, tokens_of
from evofeed.loader.views.protenix.features import protenix_features
from evofeed.loader.views.protenix.plan import ON_HOST

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
    tokens = tokens_of(view)
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
    return protenix_features(slotted(packed, ON_HOST), config)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_feature_and_label_equals_the_recorded_one(path: Path) -> None:
    sample, packed, config = planned(path)
    made = through_a_slot(packed, config)
    orders = made["input_feature_dict"].pop("atom_perm_list")
    assert orders == sample.arrays["permutation.atom_perm_list"]
    ours = {
        f"{prefix}.{name}": value
        for prefix, part in PARTS.items()
        for name, value in made[part].items()
    }
    theirs = {name: v for name, v in sample.arrays.items() if name.split(".")[0] in PARTS}
    assert set(ours) == set(theirs) - {"basic.pdb_id", "basic.chain_id"}
    assert_recorded(ours, theirs, {}, 1e-6)
