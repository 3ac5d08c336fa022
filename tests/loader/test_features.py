"""Features of chains with few and with many residues, rows and templates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.loader.records import make_record, write_dataset
from tests.loader.streams import open_loader

from evofeed.loader import LoaderConfig
from evofeed.store import Dataset

CONFIG = LoaderConfig(
    crop_size=20, max_msa_clusters=8, max_extra_msa=16, max_recycling_iters=1, supervised=True
)


def batches(dataset: Dataset, config: LoaderConfig) -> list[dict[str, torch.Tensor]]:
    with open_loader(dataset, config) as loader:
        return list(loader)


@pytest.mark.parametrize(
    ("length", "rows", "templates"), [(1, 1, 0), (2, 1, 1), (30, 2, 0), (5, 3, 20), (21, 9, 0)]
)
def test_a_chain_with_next_to_nothing_gives_a_whole_batch(
    tmp_path: Path, length: int, rows: int, templates: int
) -> None:
    record = make_record("t_A", length, rows, templates)
    config = CONFIG.replace(max_aa_fraction=1.0)
    (batch,) = batches(write_dataset(tmp_path / "d", [record]), config)
    num_res = min(length, 20)
    assert batch["seq_mask"].sum() == num_res == int(batch["seq_length"])
    assert all(bool(torch.isfinite(value.double()).all()) for value in batch.values())
    assert batch["msa_row_mask"].sum() + batch["extra_msa_row_mask"].sum() <= 2 * rows
    assert batch["msa_mask"][..., num_res:].sum() == 0


def test_a_distillation_chain_keeps_a_thousand_rows_at_most(tmp_path: Path) -> None:
    record = make_record("d_A", 10, 400, 0).replace(is_distillation=True)
    config = CONFIG.replace(num_blocks=0, max_distillation_msa_clusters=11, max_extra_msa=300)
    (batch,) = batches(write_dataset(tmp_path / "d", [record]), config)
    assert batch["msa_row_mask"].sum(-1).unique().tolist() == [8]
    assert batch["extra_msa_row_mask"].sum(-1).unique().tolist() == [3]


def test_prediction_draws_no_row_of_a_distillation_chain_away(tmp_path: Path) -> None:
    record = make_record("d_A", 6, 1300, 0).replace(is_distillation=True)
    dataset = write_dataset(tmp_path / "d", [record])
    (batch,) = batches(dataset, LoaderConfig.prediction(max_recycling_iters=0))
    rows = batch["msa_row_mask"].sum() + batch["extra_msa_row_mask"].sum()
    assert int(rows) == record.num_alignments
