"""What the tests of training runs share."""

import pytest
from tests.conftest import once_a_run
from tests.trainer.synthetic_records import write_dataset


@pytest.fixture(scope="session")
def tiny_dataset() -> str:
    """A published dataset of twelve small synthetic chains; its URI."""
    return str(once_a_run("tiny-dataset", lambda folder: write_dataset(folder, 12, tiny=True)))
