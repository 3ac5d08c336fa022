"""Alignment parsers: the same rows as the plain parsers, and typed errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.featurize.msa_reference import Rows, read_a3m, read_stockholm, unique_rows

from evofeed.base.errors import MsaError
from evofeed.featurize import InputCaps
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.msa import Msa, merge
from evofeed.featurize.formats.species import species_of
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.inputs.queries import query_of
from evofeed.protein.residues import MSA_LETTER_TO_RESTYPE

LETTERS = "ACDEFGHIKLMNPQRSTVWYBZUXOJ"
NAMES = ("q", "tr|A0A146SKV9|A0A146SKV9_FUNHE/3-9 x", "sp|P0C2L1|A3X1_LOXLA", "UniRef100_A0A")


def assert_reads_alike(msa: Msa, rows: Rows) -> None:
    assert msa.sequences() == [letters for _, letters, _ in rows]
    assert msa.descriptions() == [name for name, _, _ in rows]
    dense = np.zeros(msa.letters.shape, np.int32)
    dense[msa.deletion_row, msa.deletion_column] = msa.deletion_count
    assert dense.tolist() == [deletions for _, _, deletions in rows]
    assert msa.species() == [species_of(name) for name, _, _ in rows]


@st.composite
def a3m_texts(draw: st.DrawFn) -> str:
    width = draw(st.integers(1, 12))
    lines = [draw(st.sampled_from(["", "#1\t2\n", "\n"]))]
    for row in range(draw(st.integers(1, 8))):
        parts = []
        for column in range(width):
            parts.append(draw(st.text("abcxyz.", max_size=2)) if column or row else "")
            parts.append(
                draw(st.sampled_from(LETTERS + "-" * 6)) if row else draw(st.sampled_from(LETTERS))
            )
        body = "".join(parts) + draw(st.text("abc", max_size=2))
        cut = draw(st.integers(0, len(body)))
        end = draw(st.sampled_from(["\n", "\r\n", " \n", "\n\n"]))
        lines.append(f">{draw(st.sampled_from(NAMES))}{end}{body[:cut]}{end}{body[cut:]}{end}")
    return "".join(lines)


@st.composite
def stockholm_texts(draw: st.DrawFn) -> str:
    width = draw(st.integers(1, 14))
    rows = draw(st.integers(1, 7))
    table = [
        [draw(st.sampled_from(LETTERS + "-" * 9 + "..")) for _ in range(width)] for _ in range(rows)
    ]
    table[0][draw(st.integers(0, width - 1))] = "A"  # a query has a residue
    step = draw(st.integers(1, width))
    names = [f"{name}{row}" for row, name in zip(range(rows), "abcdefgh", strict=False)]
    order = list(range(rows))
    text = "# STOCKHOLM 1.0\n#=GS a0 DE query\n"
    for start in range(0, width, step):
        if start and draw(st.booleans()):
            order = draw(st.permutations(order))
        for row in order:
            text += f"{names[row]}   {''.join(table[row][start : start + step])}\n"
        text += "#=GC RF xxx\n\n"
    return text + "//\n"


@given(a3m_texts())
@settings(max_examples=50, deadline=None)
def test_a3m_reads_as_the_plain_parser_does(text: str) -> None:
    assert_reads_alike(parse_a3m(text.encode()), read_a3m(text))
    assert query_of(text.encode(), "a3m") == parse_a3m(text.encode()).query


@given(stockholm_texts())
@settings(max_examples=50, deadline=None)
def test_stockholm_reads_as_the_plain_parser_does_in_any_order_of_blocks(text: str) -> None:
    assert_reads_alike(parse_stockholm(text.encode()), read_stockholm(text))
    assert query_of(text.encode(), "stockholm") == parse_stockholm(text.encode()).query


@given(st.lists(st.lists(st.text("AC-D", min_size=3, max_size=3), min_size=1), min_size=1))
@settings(max_examples=50, deadline=None)
def test_merging_keeps_the_first_of_equal_rows(tables: list[list[str]]) -> None:
    texts = ["".join(f">{i}\nb{row}\n" for i, row in enumerate(rows)) for rows in tables]
    merged = merge([parse_a3m(text.encode()) for text in texts])
    want = unique_rows([read_a3m(text) for text in texts])
    codes = [[MSA_LETTER_TO_RESTYPE[ord(c)] for c in letters] for letters, *_ in want]
    assert merged["msa"].tolist() == codes
    cells = merged["deletion_row"], merged["deletion_column"]
    dense = np.zeros_like(merged["msa"], np.int32)
    dense[cells] = merged["deletion_count"]
    assert dense.tolist() == [deletions for _, deletions, _, _ in want]
    assert merged["msa_source"].tolist() == [source for *_, source in want]
    counts = (merged["msa"][..., None] == np.arange(22)).sum(0)
    assert np.array_equal(merged["hhblits_profile_counts"], counts)
    assert (np.diff(np.lexsort(cells[::-1])) == 1).all()


def test_letters_that_share_a_code_stay_two_rows() -> None:
    merged = merge([parse_a3m(b">q\nD\n>x\nB\n>y\nD\n")])
    assert merged["msa"].tolist() == [[3], [3]]


def test_two_rows_of_one_name_stay_two_where_blocks_show_it() -> None:
    text = b"q AC\nx A-\nx -C\n\nq DE\nx D-\nx -E\n"
    for data in (text, text.replace(b"\n", b"\r\n")):
        assert parse_stockholm(data).sequences() == ["ACDE", "A-D-", "-C-E"]
    # OpenFold joins them and cuts the end: rows that are in no file.
    assert parse_stockholm(text, strict_letters=True).sequences() == ["ACDE", "A--C"]
    # Without blocks the format joins the parts of a name.
    assert parse_stockholm(b"q AC\nx A-\nq DE\nx D-\n").sequences() == ["ACDE", "A-D-"]


def test_the_nul_at_the_end_of_an_mmseqs_entry_is_not_a_row() -> None:
    assert parse_a3m(b">q\nACD\n>x\nA-D\n\0").sequences() == ["ACD", "A-D"]
    with pytest.raises(MsaError):
        parse_a3m(b">q\nACD\n\0", strict_letters=True)


def test_openfolds_letters_are_stricter() -> None:
    data = b">q\nACD\n>x\nA.CD\n"
    assert parse_a3m(data).sequences()[1] == "ACD"
    with pytest.raises(MsaError):
        parse_a3m(data, strict_letters=True)
    for data in (b"q ACD\nx A.D\n", b"q ACD\nx AcD\n"):
        assert parse_stockholm(data).letters.shape == (2, 3)
        with pytest.raises(MsaError):
            parse_stockholm(data, strict_letters=True)


@pytest.mark.parametrize("name", ["max_rows", "max_columns", "max_cells"])
def test_caps_refuse_before_anything_is_allocated(name: str) -> None:
    caps = InputCaps(**{name: 2})
    with pytest.raises(MsaError, match=name):
        parse_a3m(b">q\nACD\n>x\nACD\n>y\nACD\n", caps=caps)
