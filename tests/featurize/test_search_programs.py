"""The real jackhmmer, hhblits and mmseqs, on small databases made here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.featurize.search_programs import family, fasta, hh_db, mmseqs_db, require_programs

from evofeed.featurize import SearchConfig, search_fasta
from evofeed.featurize.a3m import parse_a3m
from evofeed.featurize.stockholm import parse_stockholm

QUERY, *RELATIVES = family(1)
STRANGERS = [sequence for seed in (2, 3) for sequence in family(seed, 3)]
RECORDS = [(f"kin{n}", sequence) for n, sequence in enumerate(RELATIVES)] + [
    (f"other{n}", sequence) for n, sequence in enumerate(STRANGERS)
]


@pytest.fixture(autouse=True)
def programs() -> None:
    require_programs()


def search(folder: Path, db: str, name: str, **settings: object) -> bytes:
    """The alignment that a search of `QUERY` writes."""
    query = fasta(folder / "query.fasta", [("query", QUERY)])
    config = SearchConfig(**settings)  # type: ignore[arg-type]
    (source,) = search_fasta(query, str(folder / "out"), search_dbs=[db], config=config)
    assert source.alignment_dir is not None
    return (Path(source.alignment_dir) / name).read_bytes()


def test_jackhmmer_of_the_machine_and_the_embedded_one_give_the_same_rows(tmp_path: Path) -> None:
    db = fasta(tmp_path / "db.fasta", RECORDS)
    theirs = parse_stockholm(search(tmp_path, db, "db_hits.sto"))
    ours = parse_stockholm(search(tmp_path, db, "db_hits.sto", program="pyhmmer"))
    assert len(ours.sequences()) > 10
    assert ours.sequences() == theirs.sequences()


def test_hhblits_finds_the_family(tmp_path: Path) -> None:
    kin = [(f"k{n}", sequence) for n, sequence in enumerate(RELATIVES[:8])]
    other = [(f"o{n}", sequence) for n, sequence in enumerate(family(2, 8))]
    db = hh_db(tmp_path / "hh", {"kin": kin, "other": other})
    rows = parse_a3m(search(tmp_path, db, "hh_hits.a3m")).sequences()
    assert rows[0] == QUERY
    assert 3 <= len(rows) <= 1 + len(kin)


def test_mmseqs_finds_the_family(tmp_path: Path) -> None:
    rows = parse_a3m(search(tmp_path, mmseqs_db(tmp_path / "mm", RECORDS), "mm_hits.a3m"))
    assert rows.sequences()[0] == QUERY
    assert len(rows.sequences()) == 1 + len(RELATIVES)
