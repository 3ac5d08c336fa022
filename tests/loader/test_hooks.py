"""Hooks of a user: weights, crops, features and transforms."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.loader.records import make_record, write_dataset
from tests.loader.streams import CONFIG, open_loader

from evofeed.base.errors import LoaderError
from evofeed.loader import ChainSample, FeatureLoader, LoaderConfig, LoaderHooks
from evofeed.store import Dataset

Batch = dict[str, Any]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    records = [make_record(f"c{i}_A", 20 + 4 * i, 30 + i, 2) for i in range(6)]
    return write_dataset(tmp_path_factory.mktemp("hooks"), records)


def short_first(index: pa.Table, epoch: int) -> np.ndarray:
    """A curriculum: only chains below 30 residues in the first epoch."""
    return (index["num_res"].to_numpy() < 30) | (epoch > 0)


def last_residues(sample: ChainSample) -> int:
    return sample.num_res - sample.crop.length - int(sample.rng.integers(2))


def depth_and_ends(sample: ChainSample) -> dict[str, Any]:
    ends = np.arange(1, sample.num_res + 1, dtype=np.float32)
    return {
        "number": ends, "depth": sample.row["num_alignments"],
        "rows": np.float32(sample.record.num_alignments), "noise": sample.rng.normal(),
        "both": np.stack([ends, -ends], -1),
    }  # fmt: skip


def with_noise(batch: Batch, generator: torch.Generator) -> Batch:
    atoms = batch["all_atom_positions"]
    noise = torch.randn(atoms.shape, generator=generator, device=atoms.device)
    return batch | {"noisy_positions": atoms + noise}


HOOKS = {
    "weights": LoaderHooks(name="a", weights=short_first),
    "crop": LoaderHooks(name="b", crop=last_residues),
    "features": LoaderHooks(name="c", features=depth_and_ends),
    "transform": LoaderHooks(name="d", transform=with_noise),
}


EVERY = LoaderHooks(
    name="e", weights=short_first, crop=last_residues, features=depth_and_ends, transform=with_noise
)


def lengths(loader: FeatureLoader, epoch: int = 0) -> Counter[int]:
    """Residues of the chains that an epoch draws."""
    planner = loader.planner
    rows = [planner.sample(epoch, position).row for position in range(planner.epoch_len)]
    return Counter(planner.catalogs[0].sizes(row)[0] for row in rows)


def test_weights_of_an_epoch_are_a_curriculum_and_shares(dataset: Dataset) -> None:
    config = CONFIG.replace(epoch_len=600, crop_size=64)
    with open_loader(dataset, config, hooks=HOOKS["weights"]) as loader:
        assert set(lengths(loader)) == {20, 24, 28}
        assert set(lengths(loader, epoch=1)) == {20, 24, 28, 32, 36, 40}
    third = LoaderHooks(name="w", weights=lambda index, epoch: np.arange(index.num_rows) % 3)
    with open_loader(dataset, config, hooks=third) as loader:
        counts = lengths(loader)
    assert 20 not in counts and 32 not in counts
    twice, once = counts[28] + counts[40], counts[24] + counts[36]
    assert 1.6 < twice / once < 2.5


def test_an_own_crop_begins_where_it_says(dataset: Dataset) -> None:
    at_end = LoaderHooks(name="end", crop=lambda sample: sample.num_res - sample.crop.length)
    combined = LoaderHooks(name="both", crop=at_end.crop, features=lambda s: {"last": s.num_res})
    with open_loader(dataset, hooks=combined) as loader:
        for batch, _ in zip(loader, range(6), strict=False):
            assert int(batch["residue_index"].max()) + 1 == int(batch["last"])


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (LoaderHooks(name="x", crop=lambda s: s.num_res), "may begin at 0 to"),
        (LoaderHooks(name="x", features=lambda s: {"a": np.zeros(3)}), "first axis is the whole"),
        (LoaderHooks(name="x", features=lambda s: {"aatype": 1}), "exists already"),
        (LoaderHooks(name="x", weights=lambda i, e: np.zeros(i.num_rows)), "not all 0"),
        (LoaderHooks(name="x", weights=lambda i, e: np.ones(3)), "must be 6 finite"),
    ],
)
def test_hooks_that_cannot_work_say_so(dataset: Dataset, hooks: LoaderHooks, message: str) -> None:
    with open_loader(dataset, hooks=hooks) as loader, pytest.raises(LoaderError, match=message):
        next(iter(loader))


def test_hooks_of_chains_are_refused_for_complexes_and_a_name_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of single chains"):
        FeatureLoader([], LoaderConfig.multimer(), hooks=HOOKS["crop"])
    with pytest.raises(ValueError, match="need a name"):
        LoaderHooks(name="")
