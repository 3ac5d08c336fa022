"""Fixtures and configurations shared by the tests of training runs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import once_a_run
from tests.trainer.synthetic_records import write_dataset

from evofeed.trainer.config import TrainConfig
from evofeed.trainer.presets import tiny

SMALL = {"evoformer": {"no_blocks": 1}, "structure_module": {"no_blocks": 1}}


def small_run(**changes: Any) -> TrainConfig:
    """The tiny preset with one block of each kind, and nothing profiled."""
    return tiny().train.replace(**{"model": SMALL, "profile_steps": 0, **changes})


@pytest.fixture(scope="session")
def tiny_dataset() -> str:
    """A published dataset of twelve small synthetic chains; its URI."""
    return str(once_a_run("tiny-dataset", lambda folder: write_dataset(folder, 12, tiny=True)))
