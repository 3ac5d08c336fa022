"""Raw data, and the result of an undisturbed run that every disturbed run must reach."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.featurize.job.stage import Digests, checksums, run, run_forked, warm_up

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
def undisturbed_data(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that an undisturbed run publishes, with its ledger."""
    dataset = tmp_path_factory.mktemp("undisturbed")
    assert run_forked(lambda: run(raw, dataset)).state == "published"
    return dataset


@pytest.fixture(scope="session")
def undisturbed(undisturbed_data: Path) -> Digests:
    """The result of the undisturbed run."""
    return Digests(Dataset.open(str(undisturbed_data)).digest, checksums(undisturbed_data))


@pytest.fixture
def done(undisturbed_data: Path, tmp_path: Path) -> Path:
    """A copy of the undisturbed dataset, for a test to damage."""
    return shutil.copytree(undisturbed_data, tmp_path / "done")
