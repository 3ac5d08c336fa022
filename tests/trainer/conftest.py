"""What the tests of training runs share."""

import pytest
from tests.trainer.synthetic_records import write_dataset


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A published dataset of twelve small synthetic chains; its URI."""
    return write_dataset(tmp_path_factory.mktemp("dataset"), 12, tiny=True)
