"""OpenFold3's crops, rows, features and labels, given its recorded draws, are the recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.views.made_entries import MadeChain, made_alignment, made_entry, made_templates
from tests.loader.views.openfold3_recorded import (
    STRATEGIES,
    RecordedDraws,
    chain_rows,
    recorded_alignments,
    with_conformers,
)
from tests.loader.views.packs import assert_recorded, entry_view, read, recordings, slotted

from evofeed.loader.sample_draws import SampleDraws, Strategy
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.entry_view import ChainType
from evofeed.loader.views.openfold3.crop import crop_entry
from evofeed.loader.views.openfold3.features import openfold3_features
from evofeed.loader.views.openfold3.plan import plan_sample

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
            crop = crop_entry(view, (key % view.num_chains,), SampleDraws(key), config)
            again = crop_entry(view, (key % view.num_chains,), SampleDraws(key), config)
            np.testing.assert_array_equal(crop.tokens, again.tokens)
            assert 0 < len(crop.tokens) <= max(96, int(crop.strategy is Strategy.WHOLE) * 10**6)
            assert crop.chains[view.token_chain()[crop.tokens]].all()
            assert (np.diff(crop.tokens) > 0).all()
            seen.add(crop.strategy)
    assert len(seen) > 1 or view.num_tokens <= 96


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
    crop = sample.arrays["crop.token_id"]
    np.testing.assert_array_equal(packed["token_index"][: len(crop)], crop)
    features = openfold3_features(slotted(packed), config)
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


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_features_on_a_gpu_are_those_of_the_cpu_and_nothing_waits() -> None:
    residues = (("ALA", 5), ("GLY", 4), ("TRP", 14)) * 60
    chains = [
        MadeChain("1", 1, ChainType.PROTEIN, residues, 0),
        MadeChain("2", 2, ChainType.PROTEIN, residues, 1),
        MadeChain("3", 3, ChainType.LIGAND, (("HEM", 43),)),
    ]
    view = made_entry(chains, [(0, 2761), (2760, 2761)], alignments=("a", "b"))
    names = [f"S{n}" for n in range(900)]
    made = [made_alignment(name, names, columns=180, seed=n) for n, name in enumerate("ab")]
    made = [one.with_templates(made_templates(180)) for one in made]
    config = OpenFold3Config(main_sources=("uniprot_hits",), used_rows=1024)
    packed = plan_sample(view, made, (0,), SampleDraws(1), config)
    assert "_template_restype" in packed
    expected = flat(openfold3_features(slotted(packed), config))
    openfold3_features(slotted(packed, "cuda"), config)
    there = slotted(packed, "cuda")
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        features = openfold3_features(there, config)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, value in flat(features).items():
        close = 1e-5 if name == "ref_pos" else 1e-6 if value.is_floating_point() else 0
        torch.testing.assert_close(value.cpu(), expected[name], rtol=0, atol=close)
