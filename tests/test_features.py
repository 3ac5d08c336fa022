from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evofeed.base.errors import FeatureError
from evofeed.protein import features
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.features import ASSEMBLY_BATCH, BATCH, RECORD


def tiny_record(**changes: object) -> ChainRecord:
    num_res = 3
    fields: dict[str, object] = {
        "chain_id": "1abc_A",
        "sequence": "ARN",
        "aatype": np.arange(3, dtype=np.uint8),
        "residue_index": np.arange(3, dtype=np.int32),
        "msa": np.array([[0, 1, 2], [0, 21, 2]], np.uint8),
        "deletion_row": np.array([1], np.int32),
        "deletion_column": np.array([2], np.int32),
        "deletion_count": np.array([4], np.int32),
        "msa_source": np.zeros(2, np.uint8),
        "msa_sources": ("uniref90_hits.sto",),
        "msa_species": ("", "HUMAN"),
        "hhblits_profile_counts": np.zeros([3, 22], np.int32),
        "template_aatype": np.zeros([0, num_res], np.uint8),
        "template_all_atom_positions": np.zeros([0, num_res, 37, 3], np.float32),
        "template_all_atom_mask": np.zeros([0, num_res, 37], np.uint8),
        "template_center": np.zeros([0, 3], np.float32),
        "template_sum_probs": np.zeros([0], np.float32),
    }
    return ChainRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_record_that_follows_the_table_is_accepted() -> None:
    record = tiny_record().validate()
    assert record.sizes == {"L": 3, "N": 2, "K": 1, "T": 0}
    assert record.deletion_matrix().tolist() == [[0, 0, 0], [0, 0, 4]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("msa", np.zeros([2, 4], np.uint8)),
        ("msa", np.zeros([2, 3], np.int32)),
        ("msa", np.full([2, 3], 22, np.uint8)),
        ("msa", np.zeros([0, 3], np.uint8)),
        ("msa_species", ("",)),
        ("all_atom_mask", np.zeros([3, 37], np.uint8)),
        ("template_center", np.zeros([1, 3], np.float32)),
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
