"""The real programs on small databases; HMMER's compared with pyhmmer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.featurize.search.family import (
    family,
    fasta,
    hh_db,
    mmseqs_db,
    require_programs,
    search_fasta,
)

from evofeed.featurize import ChainSource, SearchConfig, SearchOptions, run_search
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.hits import parse_hhr, parse_hmmsearch
from evofeed.featurize.formats.reading import read_bytes
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.search.config import Database

pytestmark = pytest.mark.usefixtures("inside")
QUERY, *RELATIVES = family(1)
STRANGERS = [sequence for seed in (2, 3) for sequence in family(seed, 3)]
RECORDS = [(f"kin{n} OX={n + 9000} of many words", s) for n, s in enumerate(RELATIVES)] + [
    (f"other{n}", sequence) for n, sequence in enumerate(STRANGERS)
]


@pytest.fixture(autouse=True)
def programs() -> None:
    require_programs()


def search(
    folder: Path,
    db: str,
    sequences: tuple[str, ...] = (QUERY,),
    template_db: str | None = None,
    workers: int = 0,
    **settings: object,
) -> list[dict[str, bytes]]:
    """The results of sequences by name."""
    query = fasta(folder / "query.fasta", [(f"q{n}", s) for n, s in enumerate(sequences)])
    config = SearchConfig(**settings)  # type: ignore[arg-type]
    options = SearchOptions(workers=workers)
    results = search_fasta(
        query, str(folder / "out"), [db], template_db=template_db, config=config,
        options=options,
    )  # fmt: skip
    return [{r.plain_name: read_bytes(r) for _, r in s.alignment_files()} for s in results]


def jackhmmer(folder: Path, sequence: str, db: str, *options: str) -> bytes:
    """Result of HMMER's jackhmmer, called as AlphaFold 2 and OpenFold call it."""
    flags = "--noali --F1 0.0005 --F2 5e-05 --F3 5e-07 --incE 0.0001 -E 0.0001".split()
    files = ["-o", "/dev/null", "-A", "out.sto", "--cpu", "1"]
    query = fasta(folder / "one.fasta", [("query", sequence)])
    command = ["jackhmmer", *files, *flags, *(options or ("-N", "1")), query, db]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "out.sto").read_bytes()


def test_rows_are_those_of_jackhmmer_called_as_af2_calls_it(tmp_path: Path) -> None:
    db = fasta(tmp_path / "db.fasta", RECORDS)
    odd = QUERY[:40] + "UOBZJX" + QUERY[46:]
    for sequence, iterations in ((QUERY, 1), (QUERY, 3), (odd, 1)):
        expected = parse_stockholm(jackhmmer(tmp_path, sequence, db, "-N", str(iterations)))
        (results,) = search(tmp_path, db, (sequence,), iterations=iterations)
        rows = parse_stockholm(results["db_hits.sto"])
        assert rows.sequences() == expected.sequences()
        assert rows.descriptions() == expected.descriptions()
        assert rows.sequences()[0] == sequence and len(rows.sequences()) == 1 + len(RELATIVES)
    (results,) = search(tmp_path, db, max_hits=7)
    assert parse_stockholm(results["db_hits.sto"]).sequences() == expected_first(tmp_path, db, 7)
    assert len(results["db_hits.sto"].split(b"#=GS")) == 7


def expected_first(folder: Path, db: str, count: int) -> list[str]:
    return parse_stockholm(jackhmmer(folder, QUERY, db)).sequences()[:count]


def template_hits(folder: Path, rows: Iterable[str], db: str) -> bytes:
    """Hits of AF2's and AF3's call of hmmbuild and hmmsearch for aligned rows, query first."""
    query, *_ = rows = list(rows)
    mark = "".join("." if letter == "-" else "x" for letter in query)
    lines = [f"row_{number} {letters}" for number, letters in enumerate(rows)]
    text = "\n".join(["# STOCKHOLM 1.0", *lines, f"#=GC RF {mark}", "//", ""])
    (folder / "rows.sto").write_text(text)
    build = "hmmbuild --informat stockholm --hand --amino rows.hmm rows.sto"
    flags = "--F1 0.1 --F2 0.1 --F3 0.1 --incE 100 -E 100 --domE 100 --incdomE 100"
    for command in (build, f"hmmsearch --noali --cpu 1 {flags} -A hits.sto rows.hmm {db}"):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return (folder / "hits.sto").read_bytes()


def af2_template_rows(sto: bytes) -> list[str]:
    """One row of each kind, by its letters over the query's residues."""
    rows: dict[str, str] = {}
    for line in sto.decode().splitlines():
        if line and line[0] not in "#/":
            name, letters = line.split()
            rows[name] = rows.get(name, "") + letters
    query = next(iter(rows.values()))
    by_letters: dict[str, str] = {}
    for letters in rows.values():
        letters_at_query = "".join(a for a, b in zip(letters, query, strict=True) if b != "-")
        by_letters.setdefault(letters_at_query, letters)
    return list(by_letters.values())


def test_templates_are_those_of_af2s_recipe(tmp_path: Path) -> None:
    copies = [(f"copy{n}", RELATIVES[2]) for n in range(6)]  # of which the model is to see one
    db = fasta(tmp_path / "db.fasta", RECORDS + copies)
    pdb = [
        (f"1a{n:02d}_A mol:protein length:{len(s)}  THING", s)
        for n, s in enumerate([*RELATIVES, *STRANGERS])
    ]
    pdb_seqres = fasta(tmp_path / "pdb_seqres.txt", pdb)
    (results,) = search(tmp_path, db, template_db=pdb_seqres)
    expected = template_hits(tmp_path, af2_template_rows(results["db_hits.sto"]), pdb_seqres)
    hits = parse_hmmsearch(results["hmmsearch_output.sto"], QUERY)
    assert hits == parse_hmmsearch(expected, QUERY)
    assert len(hits) >= len(RELATIVES)


def test_hhblits_and_hhsearch_find_the_family(tmp_path: Path) -> None:
    kin = [(f"k{n}", sequence) for n, sequence in enumerate(RELATIVES[:8])]
    other = [(f"o{n}", sequence) for n, sequence in enumerate(family(2, 8))]
    db = hh_db(tmp_path / "hh", {"1kin_A": kin, "2oth_B": other})
    (results,) = search(tmp_path, db, template_db=f"pdb70={db}")
    rows = parse_a3m(results["hh_hits.a3m"]).sequences()
    assert rows[0] == QUERY
    assert 3 <= len(rows) <= 1 + len(kin)
    hits = parse_hhr(results["pdb70_hits.hhr"])
    assert hits[0].name.startswith("k0") and hits[0].aligned_cols > 100


def log_calls(folder: Path, monkeypatch: pytest.MonkeyPatch, then: str = "") -> Path:
    """Wrap `mmseqs` on the PATH to log its calls and run `then` after each; returns the log."""
    real, program = shutil.which("mmseqs"), folder / "bin" / "mmseqs"
    program.parent.mkdir()
    note = f'echo "$1" >> {folder}/calls'
    program.write_text(f'#!/bin/sh\n{note}\n{real} "$@" || exit 1\n{then}\nexit 0\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return folder / "calls"


def test_mmseqs_searches_a_batch_as_it_searches_each_and_a_letter_that_it_rewrites_spoils_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call of `mmseqs search` for all; the query row has the letters that were asked for."""
    db = mmseqs_db(tmp_path / "mm", RECORDS)
    calls = log_calls(tmp_path, monkeypatch)
    odd = [QUERY[:40] + letter + QUERY[41:] for letter in "UOBZJX"]
    sequences = (QUERY, STRANGERS[0], "MKLVAGGG" * 5, *odd)
    quick = ("--num-iterations", "2", "-a", "1", "-s", "4")
    batch = search(tmp_path, db, sequences, workers=1, mmseqs=quick)
    assert calls.read_text().split().count("search") == 1
    (tmp_path / "alone").mkdir()
    (alone,) = search(tmp_path / "alone", db, sequences[:1], mmseqs=quick)
    assert batch[0] == alone
    rows = [parse_a3m(results["mm_hits.a3m"]) for results in batch]
    assert [row.sequences()[0] for row in rows] == [*sequences]
    family_rows = 1 + len(RELATIVES)
    assert [len(row.sequences()) for row in rows] == [family_rows, 4, 1, *[family_rows] * 6]
    assert any("OX=9003" in name for name in rows[0].descriptions())


def test_a_query_that_mmseqs_gives_another_alignment_is_blamed_alone_and_searched_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, wrong = mmseqs_db(tmp_path / "mm", RECORDS), STRANGERS[0]
    swap = f"sed -i 's/{wrong}/{wrong[::-1]}/' \"$5\""  # the bytes of an entry stay as many
    calls = log_calls(tmp_path, monkeypatch, f'[ "$1" = result2msa ] && {swap}')
    chains = [ChainSource(f"c{n}", sequence=s) for n, s in enumerate((QUERY, wrong, QUERY[9:]))]
    config = SearchConfig(mmseqs=("--num-iterations", "1", "-a", "1", "-s", "4"))
    options = SearchOptions(workers=1)
    report = run_search(
        chains, str(tmp_path / "out"), [Database.parse(db)], config=config, options=options
    )
    (broken,) = report.broken
    assert broken["chain_id"] == "c1"
    assert broken["message"] == "the result is of another sequence"
    assert calls.read_text().split().count("search") <= 3
