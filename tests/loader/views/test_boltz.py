"""Boltz's crops, rows and features, given its recorded draws, are the recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.views.boltz_recorded import (
    boltz_alignment,
    boltz_view,
    crop_draws,
    read,
    sample_draws,
)
from tests.loader.views.packs import (
    assert_recorded,
    differing,
    recordings,
    slotted,
    some_recordings,
    watched,
)

from evofeed.loader import boltz_batch
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.entries.reading import pack_sample
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.boltz import plan
from evofeed.loader.views.boltz.crop import crop_tokens
from evofeed.loader.views.boltz.features import boltz_features
from evofeed.loader.views.boltz.rows import CODES, distinct_rows
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.entry_view import EntryView

CROPS = recordings("boltz/crops/*.npz")
SAMPLES = recordings("boltz/samples/*.npz")
ALIGNMENTS = recordings("boltz/msa/*.npz")


@pytest.mark.parametrize("path", CROPS, ids=lambda path: path.stem)
def test_crops_are_the_recorded_ones(path: Path) -> None:
    pack = path.parent.parent.parent
    recorded = read(path)
    view = boltz_view(pack, path.stem)
    for number, crop in enumerate(recorded.meta["crops"]):
        config = BoltzConfig(max_tokens=crop["max_tokens"], max_atoms=crop["max_atoms"])
        point = datapoint(view, crop)
        draws = crop_draws(crop)
        if point is None:  # Boltz's validation: any interface, else any chain
            valid = view.chain_valid[view.interface_chain].all(1)
            named = view.interface_chain[valid] if valid.any() else view.chain_valid.nonzero()[0]
            row = int(draws.calls.pop(1)[2])
            point = np.atleast_1d(named[row]).tolist()
        kept = crop_tokens(view, point, draws, config)
        wanted = recorded.arrays[f"crop.{number:02}.token_idx"]
        np.testing.assert_array_equal(kept, wanted, err_msg=f"crop {number}")
        assert not draws.calls


@pytest.mark.parametrize("path", ALIGNMENTS, ids=lambda path: path.stem)
def test_alignments_are_read_as_recorded(path: Path) -> None:
    recorded = read(path).arrays
    alignment = boltz_alignment(path.parent.parent.parent, path.stem)
    rows = distinct_rows(alignment, 16384)
    np.testing.assert_array_equal(rows, recorded["source_row"])
    codes = CODES[alignment.letters[alignment.row_letters[rows]]]
    np.testing.assert_array_equal(codes.ravel(), recorded["residues.res_type"])
    taxa = np.append(np.array(alignment.species, dtype="U20"), "-1")[alignment.row_species[rows]]
    np.testing.assert_array_equal(taxa.astype(int), recorded["sequences.taxonomy"])
    starts = alignment.deletion_start
    cells = np.concatenate([np.arange(*starts[row : row + 2]) for row in rows.tolist()])
    np.testing.assert_array_equal(alignment.deletion_column[cells], recorded["deletions.res_idx"])
    np.testing.assert_array_equal(alignment.deletion_count[cells], recorded["deletions.deletion"])


def datapoint(view: EntryView, about: dict[str, Any]) -> list[int] | None:
    if about.get("interface_id") is not None:
        return [int(chain) for chain in view.interface_chain[about["interface_id"]]]
    return None if about.get("chain_id") is None else [int(about["chain_id"])]


def planned(path: Path, **changes: Any) -> tuple[Any, ...]:
    pack = path.parent.parent.parent
    meta, arrays = read(path)
    view = boltz_view(pack, meta["entry"])
    alignments = [boltz_alignment(pack, name) for name in view.alignments]
    config = BoltzConfig(
        max_tokens=meta["max_tokens"], max_atoms=meta["max_atoms"], max_seqs=meta["max_seqs"],
        **changes,
    )  # fmt: skip
    point = datapoint(view, meta)
    assert point
    draws = sample_draws(meta, arrays)
    with watched(plan, "crop_tokens") as crops:
        packed = plan.plan_sample(view, alignments, point, draws, config)
    np.testing.assert_array_equal(crops[0], arrays["crop.token_idx"])
    return draws, arrays, packed, config


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_features_are_the_recorded_ones(path: Path) -> None:
    draws, arrays, packed, config = planned(path, symmetries=True)
    wanted = {k.removeprefix("feature."): v for k, v in arrays.items() if k[:8] == "feature."}
    made = boltz_features(slotted(packed), config)
    assert not draws.calls
    features = {k: v.numpy() for k, v in made.items() if isinstance(v, torch.Tensor)}
    assert features.keys() == wanted.keys()
    assert_recorded(features, wanted, {"coords": 1e-5, "ref_pos": 1e-5}, 1e-6)
    for name in ("chain_symmetries", "amino_acids_symmetries", "ligand_symmetries"):
        recorded = arrays[f"symmetry.{name}"]
        assert made[name] == as_lists(recorded), name
    assert pack_sample(packed)[0].nbytes <= 2 << 20


def as_lists(value: Any) -> Any:
    return [as_lists(one) for one in value] if isinstance(value, (list, tuple)) else int(value)


FAULTS = {
    "narrowed_deletions": {"deletion_value", "has_deletion", "deletion_mean"},
    "reused_rows": {"msa", "msa_paired", "msa_mask", "profile"},
    "pi_half": {"deletion_value", "deletion_mean"},
    "profile_of_kept": {"profile", "deletion_mean"},
    "padding_of_ones": {"msa"},
    "one_move": {"ref_pos"},
}


def made(pack: Path, entry: str, key: int, config: BoltzConfig) -> dict[str, torch.Tensor]:
    view = boltz_view(pack, entry)
    alignments = [boltz_alignment(pack, name) for name in view.alignments]
    chain = int(np.flatnonzero(view.chain_valid)[0])
    packed = plan.plan_sample(view, alignments, [chain], SampleDraws(key), config)
    return boltz_features(slotted(packed), config)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_mended_fault_changes_its_tensors_alone(fault: str) -> None:
    config = BoltzConfig(max_tokens=64, max_atoms=640, max_seqs=512)
    if fault == "pi_half":  # no deletion is there to show it otherwise
        config = config.replace(narrowed_deletions=False)
    changed = set()
    for path in some_recordings("boltz/structure/*.npz", 3):
        pack = path.parent.parent.parent
        faithful = made(pack, path.stem, 5, config)
        mended = made(pack, path.stem, 5, config.replace(**{fault: False}))
        changed |= differing(faithful, mended)
    assert changed
    assert changed <= FAULTS[fault]


def test_a_crop_that_goes_on_after_what_does_not_fit_is_fuller() -> None:
    config = BoltzConfig(max_tokens=64, max_atoms=640)
    grew = False
    for path in some_recordings("boltz/structure/*.npz", 3):
        view = boltz_view(path.parent.parent.parent, path.stem)
        for key in range(4):
            point = [int(view.token_chain()[0])]
            kept = crop_tokens(view, point, SampleDraws(key), config)
            right = crop_tokens(view, point, SampleDraws(key), config.right())
            assert np.isin(kept, right).all()
            assert len(right) <= 64
            grew |= len(right) > len(kept)
    assert grew


def test_draws_are_uniform_and_their_rotations_proper() -> None:
    keys = range(1000)
    sizes = np.bincount([SampleDraws(key).even(Purpose.NEIGHBORHOOD, 21) for key in keys])
    assert abs(sizes - 1000 / 21).max() < 5 * np.sqrt(1000 / 21)
    number = [SampleDraws(key).trials(Purpose.POCKET_SIZE, 0.3) for key in keys]
    assert min(number) == 1
    assert abs(np.mean(number) - 1 / 0.3) < 0.45
    turned, _ = SampleDraws(7).normal_moves(np.ones(64, bool))
    np.testing.assert_allclose(
        turned @ turned.transpose(0, 2, 1), np.tile(np.eye(3), (64, 1, 1)), atol=1e-5
    )
    np.testing.assert_allclose(np.linalg.det(turned), 1, atol=1e-5)


def test_a_batch_pads_the_rows_that_vary() -> None:
    samples = [{"msa": torch.ones(2, 3), "r_set_to_rep_atom": torch.ones(n, 4)} for n in (2, 5)]
    batch = boltz_batch({"samples": samples})
    assert batch["msa"].shape == (2, 2, 3)
    assert batch["r_set_to_rep_atom"].sum((1, 2)).tolist() == [8, 20]
