"""Raw data and the honest result that every disturbed run must reach."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.featurize.job.stage import checksums, on_stage, run, warm_up

from evofeed.store import Dataset
from evofeed.synth import write_synthetic


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small good chains."""
    folder = tmp_path_factory.mktemp("raw")
    write_synthetic(folder, 12, seed=5, mean_length=40, mean_depth=16, mean_members=4)
    warm_up(folder, tmp_path_factory.mktemp("warm"))
    return folder


@pytest.fixture(scope="session")
def honest_data(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the undisturbed run publishes, with its ledger."""
    dataset = tmp_path_factory.mktemp("honest")
    assert on_stage(lambda: run(raw, dataset)).state == "published"
    return dataset


@pytest.fixture(scope="session")
def honest(honest_data: Path) -> tuple[str, dict[str, int]]:
    """Digest and checksums of the undisturbed run."""
    return Dataset.open(str(honest_data)).digest, checksums(honest_data)


@pytest.fixture
def done(honest_data: Path, tmp_path: Path) -> Path:
    """A dataset that a job has published, to be spoilt."""
    return shutil.copytree(honest_data, tmp_path / "done")
