"""Crops of OpenFold3 from its recorded draws: the same tokens, the same chains, no draw left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.loader.views.openfold3_recorded import STRATEGIES, RecordedDraws, chain_rows
from tests.loader.views.packs import entry_view, read, recordings

from evofeed.loader.crop_draws import Strategy
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.draws import OpenFold3Draws
from evofeed.loader.views.openfold3.crop import crop_entry

CROPS = recordings("openfold3/crops/*.npz")


@pytest.mark.parametrize("path", CROPS, ids=lambda path: path.stem)
def test_recorded_crops_are_made_again(path: Path) -> None:
    view = entry_view("openfold3", path.parent.parent.parent, path.stem)
    meta, arrays = read(path)
    for number, about in enumerate(meta["crops"]):
        weights = tuple(float(name == about["method"]) for name in STRATEGIES)
        config = OpenFold3Config(
            token_budget=about["token_budget"], max_chains=about["n_chains"], crop_weights=weights
        )
        draws = RecordedDraws.of_crop(view, about)
        crop = crop_entry(view, chain_rows(view, about["datapoint"]), draws, config)
        np.testing.assert_array_equal(crop.tokens, arrays[f"crop.{number:02}.token_id"])
        chains = np.sort(arrays[f"crop.{number:02}.chains"].astype(np.str_))
        np.testing.assert_array_equal(np.sort(view.chain_name[crop.chains]), chains)
        assert crop.strategy.name.lower() == about["strategy"]
        assert not draws.calls


@pytest.mark.parametrize("path", CROPS, ids=lambda path: path.stem)
def test_free_crops_keep_their_budget_and_are_the_same_again(path: Path) -> None:
    view = entry_view("openfold3", path.parent.parent.parent, path.stem)
    seen = set()
    for config in (OpenFold3Config(token_budget=96), OpenFold3Config(token_budget=96).right()):
        for key in range(3):
            crop = crop_entry(view, (key % view.num_chains,), OpenFold3Draws(key), config)
            again = crop_entry(view, (key % view.num_chains,), OpenFold3Draws(key), config)
            np.testing.assert_array_equal(crop.tokens, again.tokens)
            assert 0 < len(crop.tokens) <= max(96, int(crop.strategy is Strategy.WHOLE) * 10**6)
            assert crop.chains[view.token_chain()[crop.tokens]].all()
            assert (np.diff(crop.tokens) > 0).all()
            seen.add(crop.strategy)
    assert len(seen) > 1 or view.num_tokens <= 96
