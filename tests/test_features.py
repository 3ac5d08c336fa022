from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.store.records import tiny_record

from evofeed.base.errors import FeatureError
from evofeed.protein import features
from evofeed.protein.features import ASSEMBLY_BATCH, BATCH, RECORD


def test_a_record_that_follows_the_table_is_accepted() -> None:
    record = tiny_record().validate()
    assert record.sizes == {"L": 3, "N": 3, "K": 2, "T": 1}
    assert record.deletion_matrix().tolist() == [[0, 0, 0], [0, 0, 3], [300, 0, 0]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("msa", np.zeros([3, 4], np.uint8)),
        ("msa", np.zeros([3, 3], np.int32)),
        ("msa", np.full([3, 3], 22, np.uint8)),
        ("msa", np.zeros([0, 3], np.uint8)),
        ("msa_species", ("",)),
        ("all_atom_positions", None),
        ("template_center", np.zeros([2, 3], np.float32)),
    ],
)
def test_a_record_that_breaks_the_table_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(FeatureError, match="1abc_A"):
        tiny_record(**{field: value}).validate()


def test_names_are_unique_and_dimensions_are_known() -> None:
    page = Path(features.__file__).with_name("FEATURES.md").read_text("utf-8")
    assert page.count("\n| `") == sum(map(len, (RECORD, BATCH, ASSEMBLY_BATCH))) == 102
    for table in (RECORD, BATCH, ASSEMBLY_BATCH):
        names = [feature.name for feature in table]
        assert len(names) == len(set(names))
        for feature in table:
            ragged = dict.fromkeys("LNKTSE", 5) | {"Tm": 4}
            assert len(feature.shape(ragged)) == len(feature.dims)
