"""Offline cropping: bounded by work, seeded, recorded."""

from __future__ import annotations

import numpy as np
import pytest
from tests.featurize.golden import openfold_record, sources

from evofeed.featurize import CropConfig, crop_record
from evofeed.featurize.records.crop import max_rows

CHAINS = list(sources())


@pytest.mark.parametrize("choice", ["random", "first"])
@pytest.mark.parametrize("chain_id", CHAINS)
def test_rows_stay_within_the_budget_and_keep_what_belongs_to_them(
    chain_id: str, choice: str, golden: object
) -> None:
    record = openfold_record(chain_id)
    crop = CropConfig(msa_budget=11 * record.num_res, row_choice=choice, max_templates=2)  # type: ignore[arg-type]
    kept = crop_record(record, crop)
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


def test_the_budget_counts_cells() -> None:
    assert max_rows(500, CropConfig(msa_budget=5e7)) == 100_000
    assert max_rows(500, CropConfig(msa_budget=5e7, max_msa_rows=7)) == 7
    assert max_rows(500, CropConfig()) is None
    assert max_rows(500, CropConfig(msa_budget=10)) == 1
