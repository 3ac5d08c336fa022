"""The real programs on small databases made here, and the embedded ones beside them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.golden import INPUTS
from tests.featurize.search.family import family, fasta, hh_db, mmseqs_db, require_programs

from evofeed.errors import InputError
from evofeed.featurize import ChainSource, SearchConfig, search_fasta
from evofeed.featurize.a3m import parse_a3m
from evofeed.featurize.clusters import cluster_sizes
from evofeed.featurize.hits import parse_hhr, parse_hmmsearch
from evofeed.featurize.reading import read_bytes
from evofeed.featurize.search import embedded, read_any
from evofeed.featurize.search.cluster import cluster_sequences
from evofeed.featurize.search.programs import Scratch, jackhmmer
from evofeed.featurize.stockholm import parse_stockholm

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
    **settings: object,
) -> list[dict[str, bytes]]:
    """The results of sequences by name."""
    query = fasta(folder / "query.fasta", [(f"q{n}", s) for n, s in enumerate(sequences)])
    config = SearchConfig(**settings)  # type: ignore[arg-type]
    found = search_fasta(
        query, str(folder / "out"), search_dbs=[db], template_db=template_db, config=config
    )
    return [{r.plain_name: read_bytes(r) for _, r in s.alignment_files()} for s in found]


def test_jackhmmer_of_the_machine_and_the_embedded_one_give_the_same_rows(tmp_path: Path) -> None:
    db = fasta(tmp_path / "db.fasta", RECORDS)
    for iterations, max_hits in ((1, 1000), (3, 1000), (1, 7)):
        settings = {"iterations": iterations, "max_hits": max_hits}
        (theirs,) = search(tmp_path, db, **settings)
        (ours,) = search(tmp_path, db, program="pyhmmer", **settings)
        rows, want = (parse_stockholm(found["db_hits.sto"]) for found in (ours, theirs))
        assert rows.sequences() == want.sequences() and rows.descriptions() == want.descriptions()
        assert len(rows.sequences()) == min(1 + len(RELATIVES), max_hits)
        assert len(theirs["db_hits.sto"].split(b"#=GS")) == min(1 + len(RELATIVES), max_hits)


def test_embedded_hits_have_the_names_scores_and_rows_of_the_machines_on_real_sequences(
    tmp_path: Path, golden: Path
) -> None:
    files = (("ofquery", "uniref90_hits.sto"), ("3l4q_C", "mgnify_hits.sto"))
    real: dict[str, str] = {}
    queries = []
    for name, file in files:
        rows = read_any((Path(INPUTS[0]) / "alignments" / name / file).read_bytes())
        sequences = [row.letters.replace("-", "").upper() for row in rows]
        queries.append(sequences[0])
        for number, sequence in enumerate(sequences):
            real.setdefault(sequence, f"{name}_{number}")
    db = fasta(tmp_path / "real.fasta", [(name, sequence) for sequence, name in real.items()])
    limits: dict[str, Any] = {"num_targets": len(real), "threads": 1, "e_value": 1e-4}
    for sequence in queries:
        text, num_hits, ours = embedded.jackhmmer_shard(sequence, db, iterations=1, **limits)
        with Scratch(600.0) as place:
            want = read_any(jackhmmer(place, sequence, db, iterations=1, **limits))
            table = (place.path / "domains").read_text().splitlines()
        words = [line.split() for line in table if line[0] != "#"]
        theirs = {f"{w[0]}/{w[17]}-{w[18]}": (w[6], w[7], w[11]) for w in words}
        shown = {n: (f"{e:.2g}", f"{s:.1f}", f"{d:.2g}") for n, (e, s, d) in ours.items()}
        as_numbers = [{n: tuple(map(float, v)) for n, v in x.items()} for x in (shown, theirs)]
        assert as_numbers[0] == as_numbers[1] and len(theirs) > 20
        assert num_hits == len({w[0] for w in words})
        aligned = [[(r.name, r.letters) for r in one] for one in (read_any(text), want)]
        assert aligned[0] == aligned[1] and len(aligned[0]) > 20


def test_shards_of_a_database_give_what_the_whole_one_gives(tmp_path: Path) -> None:
    # Many sequences of little likeness: some on either side of the threshold.
    far = [(f"far{n} words", s) for n, s in enumerate(family(1, 60)[20:])]
    records = RECORDS + far
    whole = fasta(tmp_path / "db.fasta", records)
    for number in range(4):
        fasta(tmp_path / f"db.fasta-{number:05d}-of-00004", records[number::4])
    sequences = (QUERY, QUERY[30:], STRANGERS[0])
    for program in ("auto", "pyhmmer"):
        want = [
            parse_stockholm(x["db_hits.sto"])
            for x in search(tmp_path, whole, sequences, program=program)
        ]
        found = search(tmp_path, f"{whole}@4", sequences, program=program)
        for one, other in zip(want, found, strict=True):
            merged = parse_a3m(other["db_hits.a3m"])
            assert merged.sequences() == one.sequences()
            assert (merged.deletion_matrix() == one.deletion_matrix()).all()
            names = [name.partition(" ")[0] for name in merged.descriptions()]
            assert names[1:] == one.descriptions()[1:]
        assert 30 < len(want[0].sequences()) < 1 + len(records)
    with pytest.raises(InputError, match="several rounds"):
        search(tmp_path, f"{whole}@4", iterations=2)


def af2_template_hits(folder: Path, sto: bytes, db: str) -> bytes:
    """AF2's own recipe, step by step: one row of each kind, `hmmbuild --hand`, hmmsearch."""
    rows: dict[str, str] = {}
    for line in sto.decode().splitlines():
        if line and line[0] not in "#/":
            name, letters = line.split()
            rows[name] = rows.get(name, "") + letters
    query = next(iter(rows.values()))
    seen: set[str] = set()
    kept = []
    for name, letters in rows.items():
        own = "".join(a for a, b in zip(letters, query, strict=True) if b != "-")
        if own not in seen:
            seen.add(own)
            kept.append(f"{name} {letters}")
    mark = "".join("x" if letter != "-" else "." for letter in query)
    text = ["# STOCKHOLM 1.0", *kept, f"#=GC RF {mark}", "//"]
    (folder / "af2.sto").write_text("\n".join(text) + "\n")
    build = ["hmmbuild", "--hand", "--amino", "af2.hmm", "af2.sto"]
    flags = "--noali --F1 0.1 --F2 0.1 --F3 0.1 --incE 100 -E 100 --domE 100 --incdomE 100".split()
    for command in (build, ["hmmsearch", *flags, "-A", "af2.out", "af2.hmm", db]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "af2.out").read_bytes()


def test_templates_are_those_of_af2s_recipe(tmp_path: Path) -> None:
    copies = [(f"copy{n}", RELATIVES[2]) for n in range(6)]  # of which the model is to see one
    db = fasta(tmp_path / "db.fasta", RECORDS + copies)
    pdb = [
        (f"1a{n:02d}_A mol:protein length:{len(s)}  THING", s)
        for n, s in enumerate([*RELATIVES, *STRANGERS])
    ]
    pdb_seqres = fasta(tmp_path / "pdb_seqres.txt", pdb)
    (theirs,) = search(tmp_path, db, template_db=pdb_seqres)
    (ours,) = search(tmp_path, db, template_db=pdb_seqres, program="pyhmmer")
    want = af2_template_hits(tmp_path, theirs["db_hits.sto"], pdb_seqres)
    hits = [parse_hmmsearch(x["hmmsearch_output.sto"], QUERY) for x in (theirs, ours)]
    assert hits[0] == hits[1] == parse_hmmsearch(want, QUERY)
    assert len(hits[0]) >= len(RELATIVES)


def test_hhblits_and_hhsearch_find_the_family(tmp_path: Path) -> None:
    kin = [(f"k{n}", sequence) for n, sequence in enumerate(RELATIVES[:8])]
    other = [(f"o{n}", sequence) for n, sequence in enumerate(family(2, 8))]
    db = hh_db(tmp_path / "hh", {"1kin_A": kin, "2oth_B": other})
    (found,) = search(tmp_path, db, template_db=f"pdb70={db}")
    rows = parse_a3m(found["hh_hits.a3m"]).sequences()
    assert rows[0] == QUERY
    assert 3 <= len(rows) <= 1 + len(kin)
    hits = parse_hhr(found["pdb70_hits.hhr"])
    assert hits[0].name.startswith("k0") and hits[0].aligned_cols > 100


def test_mmseqs_searches_a_batch_as_it_searches_each(tmp_path: Path) -> None:
    db = mmseqs_db(tmp_path / "mm", RECORDS)
    sequences = (QUERY, STRANGERS[0], "MKLVAGGG" * 5)
    quick = ("--num-iterations", "2", "-a", "1", "-s", "4")
    batch = search(tmp_path, db, sequences, mmseqs=quick)
    (tmp_path / "alone").mkdir()
    (alone,) = search(tmp_path / "alone", db, sequences[:1], mmseqs=quick)
    assert batch[0] == alone
    rows = [parse_a3m(found["mm_hits.a3m"]) for found in batch]
    assert [len(r.sequences()) for r in rows[:2]] == [1 + len(RELATIVES), 4]
    assert len(rows[2].sequences()) == 1
    assert any("OX=9003" in name for name in rows[0].descriptions())


def test_clusters_are_families_and_featurize_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families = [family(seed, 4, 90) for seed in (7, 8, 9)]
    records = [(f"f{f}_{n}", s) for f, kin in enumerate(families) for n, s in enumerate(kin)]
    table = str(tmp_path / "clusters.tsv")
    text = fasta(tmp_path / "all.fasta", records)
    assert cluster_sequences(text, table, linear=True) == (12, 3)
    # The cascade's seven steps take eight seconds to start, so here linclust does its work too.
    cheaper = tmp_path / "mmseqs"
    real = shutil.which("mmseqs")
    cheaper.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nshift\n{real} easy-linclust "$@"\n'
    )
    cheaper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert cluster_sequences(text, table) == (12, 3)
    asked = (tmp_path / "asked").read_text().split()
    assert asked[0] == "easy-cluster" and asked[4:8] == ["--min-seq-id", "0.4", "-c", "0.8"]
    sources = [ChainSource(name, sequence=sequence) for name, sequence in records]
    assert cluster_sizes(table, sources) == {name: 4 for name, _ in records}
