"""Samples of OpenFold3 from its recorded draws: every key of its features, rows and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.views.openfold3_recorded import (
    RecordedDraws,
    chain_rows,
    recorded_alignments,
    with_conformers,
)
from tests.loader.views.packs import assert_recorded, entry_view, read, recordings, slotted

from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.openfold3.features import openfold3_features
from evofeed.loader.views.openfold3.plan import ON_HOST, plan_sample

SAMPLES = recordings("openfold3/samples/*.npz")
TEXTS = {"pdb_id", "preferred_chain_or_interface"}


def flat(features: dict[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    found = {}
    for name, value in features.items():
        if name == "ref_space_uid_to_perm":
            continue
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_feature_equals_the_recorded_one(path: Path) -> None:
    pack = path.parent.parent.parent
    sample = read(path)
    view = entry_view("openfold3", pack, sample.meta["entry"])
    alignments = recorded_alignments(pack, view)
    view = with_conformers(view, sample)
    draws = RecordedDraws.of_sample(view, sample)
    config = OpenFold3Config(token_budget=sample.meta["token_budget"])
    point = chain_rows(view, sample.meta["datapoint"])
    packed = plan_sample(view, alignments, point, draws, config)
    assert not draws.calls
    np.testing.assert_array_equal(packed["token_index"], sample.arrays["crop.token_id"])
    features = openfold3_features(slotted(packed, ON_HOST), config)
    expected = {
        name.removeprefix("feature."): value
        for name, value in sample.arrays.items()
        if name.startswith("feature.")
    }
    ours = flat(features)
    assert set(ours) == set(expected) - TEXTS
    named = expected["preferred_chain_or_interface"]
    assert expected["pdb_id"] == view.entry
    assert str(named) == str(sample.meta["datapoint"])
    assert_recorded(ours, expected, {"ref_pos": 1e-5}, 0.0)
    assert_orders(features["ref_space_uid_to_perm"], sample.arrays)


def assert_orders(ours: dict[int, torch.Tensor], arrays: dict[str, Any]) -> None:
    rows, columns = arrays["permutation.rows"], arrays["permutation.cols"]
    assert list(ours) == arrays["permutation.uid"].tolist()
    start = 0
    for uid, count, size in zip(ours, rows, columns, strict=True):
        theirs = arrays["permutation.values"][start : start + count * size].reshape(count, size)
        np.testing.assert_array_equal(ours[uid].numpy(), theirs)
        start += count * size
