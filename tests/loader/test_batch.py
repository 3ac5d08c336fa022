"""The padded batch and OpenFold's layout of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import golden_files
from tests.loader.records import make_record, write_dataset

from evofeed.loader import AssemblyConfig, FeatureLoader, LoaderConfig, openfold_batch
from evofeed.loader.batch import empty_batch
from evofeed.loader.views.config import OpenFold3Config
from evofeed.protein.features import BATCH

LOGS = golden_files("data/golden/log.json")
CONFIG = LoaderConfig(crop_size=12, max_msa_clusters=6, max_extra_msa=7, max_templates=2)


def test_every_feature_of_the_table_is_there_with_its_shape_and_dtype() -> None:
    batch = empty_batch(CONFIG, num_res=12, batch_size=3, recycles=2, device=torch.device("cpu"))
    sizes = {"L": 12, "S": 6, "E": 7, "Tm": 2}
    assert list(batch) == [feature.name for feature in BATCH]
    for feature in BATCH:
        lead = (2, 3) if feature.stage == "recycle" else (3,)
        value = batch[feature.name]
        assert value.shape == lead + feature.shape(sizes)
        assert value.dtype == getattr(torch, feature.dtype)
        assert value.is_contiguous()
        assert not value.any()
        value.fill_(1)  # features share one block of memory, but no byte of it
    assert all(bool((value == 1).all()) for value in batch.values())


def test_batches_of_openfold_have_the_recycling_axis_last(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", [make_record(f"a{i}_A", 20, 30) for i in range(4)])
    config = CONFIG.replace(batch_size=2, uniform_recycling=False, max_recycling_iters=2)
    with FeatureLoader(dataset, config, device="cpu", reader="thread") as loader:
        batch = next(iter(loader))
    out = openfold_batch(batch)
    recycled = {feature.name for feature in BATCH if feature.stage == "recycle"}
    for name, value in batch.items():
        assert out[name].shape[-1] == 3
        for recycle in range(3):
            want = value[recycle] if name in recycled else value
            assert torch.equal(out[name][..., recycle], want)
    assert out["no_recycling_iters"].tolist() == [[2, 2, 2]] * 2
    assert out["batch_idx"].tolist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_names_shapes_and_dtypes_are_those_openfold_reports(path: Path) -> None:
    compared = 0
    for sample in json.loads(path.read_text()).values():
        shapes = sample.get("final_shapes") if isinstance(sample, dict) else None
        if not shapes or "all_atom_positions" not in shapes:
            continue
        config = LoaderConfig(
            crop_size=shapes["aatype"][0][0],
            max_msa_clusters=shapes["msa_feat"][0][0],
            max_extra_msa=shapes["extra_msa"][0][0],
            max_templates=shapes["template_mask"][0][0],
        )
        batch = empty_batch(
            config,
            num_res=shapes["aatype"][0][0],
            batch_size=1,
            recycles=1,
            device=torch.device("cpu"),
        )
        out = {name: value[0, ..., 0] for name, value in openfold_batch(batch).items()}
        assert set(out) - set(shapes) == {"use_clamped_fape", "no_recycling_iters", "batch_idx"}
        for name, (shape, dtype) in shapes.items():
            assert list(out[name].shape) == shape, name
            assert str(out[name].dtype) == dtype, name
        compared += 1
    assert compared


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (LoaderConfig, {"epoch_len": 0}, "epoch_len is 0, but must be at least 1"),
        (LoaderConfig, {"global_batch_size": -12}, "global_batch_size is -12, but must be at lea"),
        (LoaderConfig, {"max_bad_chains": -1}, "max_bad_chains is -1, but must be at least 0"),
        (LoaderConfig, {"block_fraction": 1.5}, "block_fraction is 1.5, but must be"),
        (LoaderConfig, {"uniform_prob": 0.9, "same_prob": 0.2}, "is more than 1"),
        (LoaderConfig, {"crop_size": None, "batch_size": 2}, "need batch_size=1"),
        (LoaderConfig, {"shuffle_window": -1}, "shuffle_window"),
        (LoaderConfig, {"released_from": "2018-4-30"}, "2018-4-30"),
        (AssemblyConfig, {"msa_rows": 0}, "msa_rows"),
        (AssemblyConfig, {"paired_rows": -1}, "paired_rows"),
        (AssemblyConfig, {"spatial_crop_prob": 2}, "spatial_crop_prob"),
        (AssemblyConfig, {"interface_threshold": 0}, "interface_threshold"),
        (OpenFold3Config, {"token_budget": 0}, "token_budget"),
        (OpenFold3Config, {"crop_weights": (0.0, 0.0, 0.0)}, "crop_weights"),
        (OpenFold3Config, {"used_rows": 0}, "used_rows"),
    ],
)
def test_settings_that_cannot_work_are_refused(kind: Any, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        kind(**wrong)
