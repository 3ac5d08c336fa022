"""Template hits of hhsearch and hmmsearch."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.conftest import golden_files
from tests.featurize.golden import INPUTS, openfold_record

from evofeed.base.errors import TemplateError
from evofeed.featurize.formats.hits import parse_hhr, parse_hmmsearch
from evofeed.featurize.formats.reading import file_ref, read_bytes

HITS = golden_files("data/golden/*.hits.*.json.gz")


@pytest.mark.parametrize("path", HITS, ids=lambda path: path.name)
def test_every_hit_equals_openfolds(path: Path, golden: Path) -> None:
    chain_id, _, file = path.name.removesuffix(".json.gz").partition(".hits.")
    (packed,) = (INPUTS[0] / "alignments" / chain_id).glob(f"{file}*")
    data = read_bytes(file_ref(packed))
    if file.endswith(".hhr"):
        hits = parse_hhr(data, old_hhr=False)
    else:
        hits = parse_hmmsearch(data, openfold_record(chain_id).sequence)
    want = json.loads(gzip.decompress(path.read_bytes()))
    assert want and [hit.to_dict() for hit in hits] == want


HHR = b"""Query         query
No 1
>1ABC_A something
Probab=99.1  E-value=1e-10  Score=80.1  Aligned_cols=6  Identities=50%  Sum_probs=5.5

Q query             3 ACD-EFG    8 (20)
Q Consensus         3 acd-efg    8 (20)
T 1ABC_A           11 AC-KEFG   16 (40)
T ss_pred             hhhhhhh
"""


def test_old_hhr_files_without_neff_are_read_but_not_by_openfold() -> None:
    (hit,) = parse_hhr(HHR)
    assert (hit.aligned_cols, hit.sum_probs, hit.query) == (6, 5.5, "ACD-EFG")
    assert hit.indices_query == [2, 3, 4, -1, 5, 6, 7]
    assert hit.indices_hit == [10, 11, -1, 12, 13, 14, 15]
    with pytest.raises(TemplateError, match="Template_Neff"):
        parse_hhr(HHR, old_hhr=False)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (b"Sum_probs=5.5", b"", 4),
        (b"Sum_probs=5.5", b"Sum_probs=many", 4),
        (b"AC-KEFG", b"AC-KEF", 8),
        (b"    8 (20)\nQ C", b"    9 (20)\nQ C", 6),
        (b"ACD-EFG    8 (20)", b"", 6),
        (b">1ABC", b"1ABC", 2),
    ],
)
def test_a_damaged_hit_names_its_line(old: bytes, new: bytes, line: int) -> None:
    with pytest.raises(TemplateError) as error:
        parse_hhr(HHR.replace(old, new, 1), path="x.hhr")
    assert error.value.path == "x.hhr" and error.value.line == line


def test_hits_that_are_no_protein_are_passed_over() -> None:
    text = b"""# STOCKHOLM 1.0
#=GS 1abc_A/3-6 DE [subseq from] mol:protein length:9 Thing
#=GS 2def_B/1-4 DE [subseq from] mol:na length:9 DNA
1abc_A/3-6  A.-CDx
2def_B/1-4  ACGT..
//
"""
    (hit,) = parse_hmmsearch(text, "ACCD")
    assert (hit.name, hit.hit_sequence, hit.aligned_cols) == ("1abc_A", "A-CDX", 3)
    assert hit.indices_hit == [2, -1, 3, 4]
