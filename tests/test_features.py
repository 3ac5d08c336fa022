from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from tests.store.records import tiny_record

from evofeed.base.errors import FeatureError
from evofeed.protein import features
from evofeed.protein.chain_files import to_a3m, to_cif, to_fasta, to_npz
from evofeed.protein.chain_numbers import msa_cells, msa_coverage, runs, thinned
from evofeed.protein.features import ASSEMBLY_BATCH, BATCH, RECORD
from evofeed.protein.residues import GAP, MSA_LETTER_TO_RESTYPE


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


def test_an_alignment_comes_back_with_its_deletions() -> None:
    from evofeed.featurize.formats.a3m import parse_a3m

    record = tiny_record()
    assert len(record.deletion_count), "the test needs some"
    back = parse_a3m(to_a3m(record))
    assert np.array_equal(MSA_LETTER_TO_RESTYPE[back.letters], record.msa)
    dense = np.zeros_like(record.msa, np.int32)
    dense[back.deletion_row, back.deletion_column] = back.deletion_count
    assert np.array_equal(dense, record.deletion_matrix())


def test_a_sequence_is_wrapped_and_its_words_stay_on_one_line() -> None:
    record = tiny_record().replace(description="two\nlines > and more")
    head, *lines = to_fasta(record).splitlines()
    assert head == f">{record.chain_id} two lines > and more"
    assert "".join(lines) == record.sequence and all(len(line) <= 80 for line in lines)


def test_an_archive_holds_every_array_of_the_record() -> None:
    record = tiny_record()
    with np.load(io.BytesIO(to_npz(record)), allow_pickle=False) as found:
        for feature in RECORD:
            value = getattr(record, feature.name)
            if value is not None:
                assert np.array_equal(found[feature.name], np.asarray(value)), feature.name


def test_a_structure_is_written_with_its_atoms_and_refused_where_there_is_none() -> None:
    record = tiny_record()
    assert record.all_atom_mask is not None
    atoms = [line for line in to_cif(record).splitlines() if line.startswith("ATOM ")]
    assert len(atoms) == int(record.all_atom_mask.sum())
    with pytest.raises(ValueError, match="no structure"):
        to_cif(record.replace(all_atom_positions=None, all_atom_mask=None))


def test_coverage_counts_rows_and_identity_counts_what_a_row_covers() -> None:
    record = tiny_record()
    covered, identity = msa_coverage(record)
    assert covered.tolist() == [int((record.msa[:, i] != GAP).sum()) for i in range(record.num_res)]
    assert identity[0] == 1.0 and (identity <= 1).all()
    cells = msa_cells(record)
    assert np.array_equal(np.isnan(cells).sum(0), record.num_alignments - covered)


def test_runs_and_thinning() -> None:
    assert runs(np.array([0, 1, 1, 0, 1], bool)) == [(1, 3), (4, 5)] and runs(np.zeros(3)) == []
    kept = thinned(np.arange(1000), 10)
    assert len(kept) == 10 and kept[0] == 0 and kept[-1] == 999
