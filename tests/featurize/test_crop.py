"""Offline cropping: bounded by work, seeded, recorded."""

from __future__ import annotations

import numpy as np
import pytest
from tests.featurize.golden import openfold_record, sources

from evofeed.featurize import CropConfig, crop_record
from evofeed.featurize.records.crop import max_rows, window_start

CHAINS = list(sources())


@pytest.mark.parametrize("choice", ["random", "first"])
@pytest.mark.parametrize("chain_id", CHAINS)
def test_rows_stay_within_the_budget_and_keep_what_belongs_to_them(
    chain_id: str, choice: str, golden: object
) -> None:
    record = openfold_record(chain_id)
    crop = CropConfig(msa_budget=11 * record.num_res, row_choice=choice, max_templates=2)  # type: ignore[arg-type]
    (kept,) = crop_record(record, crop)
    kept.validate()
    assert kept.num_alignments == min(11, record.num_alignments)
    assert kept.num_templates == min(2, record.num_templates)
    place = [np.flatnonzero((record.msa == row).all(1)).tolist() for row in kept.msa]
    assert 0 in place[0]
    dense, of_all = kept.deletion_matrix(), record.deletion_matrix()
    for row, candidates in enumerate(place):
        assert any((dense[row] == of_all[c]).all() for c in candidates)
    counts = (kept.msa[..., None] == np.arange(22)).sum(0)
    assert np.array_equal(counts, kept.hhblits_profile_counts)
    assert ("11 of" in " ".join(kept.dropped)) == (record.num_alignments > 11)


@pytest.mark.parametrize("chain_id", CHAINS)
def test_windows_are_pieces_of_the_chain(chain_id: str, golden: object) -> None:
    record = openfold_record(chain_id)
    size = min(32, record.num_res - 1)
    views = crop_record(record, CropConfig(residue_crop=size, views=3, seed=5))
    assert [view.chain_id for view in views] == [f"{chain_id}.v{k}" for k in range(3)]
    for view in views:
        view.validate()
        start = int(view.residue_index[0])
        assert view.sequence == record.sequence[start : start + size]
        assert np.array_equal(view.msa, record.msa[:, start : start + size])
        assert np.array_equal(
            view.deletion_matrix(), record.deletion_matrix()[:, start : start + size]
        )
    again = crop_record(record, CropConfig(residue_crop=size, views=3, seed=5))
    assert [v.sequence for v in again] == [v.sequence for v in views]


def test_short_chains_are_left_whole(golden: object) -> None:
    record = openfold_record(CHAINS[0])
    (same,) = crop_record(record, CropConfig(residue_crop=10_000, views=4))
    assert same.chain_id == record.chain_id and same.num_res == record.num_res


def test_windows_cover_the_chain_and_favour_its_start_a_little() -> None:
    starts = np.array([window_start(300, 100, 0, "x", view) for view in range(20_000)])
    assert starts.min() == 0 and starts.max() == 200
    # Nine in ten uniform (mean 100), one in ten biased (mean 50): 95.
    assert abs(starts.mean() - 95) < 2


def test_the_budget_counts_cells() -> None:
    assert max_rows(500, CropConfig(msa_budget=5e7)) == 100_000
    assert max_rows(500, CropConfig(msa_budget=5e7, max_msa_rows=7)) == 7
    assert max_rows(500, CropConfig()) is None
    assert max_rows(500, CropConfig(msa_budget=10)) == 1
