"""Lets these tests, and the processes they start, import what lies beside them."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "benchmarks")]


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A published dataset of twelve small synthetic chains; its URI."""
    from synthetic_records import write_dataset

    return write_dataset(tmp_path_factory.mktemp("dataset"), 12, tiny=True)
