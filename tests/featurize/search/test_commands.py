"""`evofeed search`, and `evofeed featurize --search-db`, of a FASTA file.

After a kill the results are the same, and no sequence is searched twice.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.featurize.job.stage import children, evofeed, run_forked, wait_for, wait_until
from tests.featurize.search.family import family, fasta, search_fasta
from tests.featurize.search.test_search import chains, fake_hh_database, fake_hhblits

from evofeed.base.errors import InputError
from evofeed.base.files import scratch_folder
from evofeed.featurize import SearchOptions, run_search
from evofeed.featurize.formats.reading import read_bytes
from evofeed.featurize.search.commands import read_recipe
from evofeed.featurize.search.config import SearchReport
from evofeed.store import Dataset

QUERY, *KIN = family(5, 5, 80)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return fasta(tmp_path / "database.fasta", [(f"s{n}", s) for n, s in enumerate(KIN)])


def test_a_fasta_and_a_database_become_a_dataset(tmp_path: Path, database: str) -> None:
    titin = (family(6, 1, 34_350 - 80)[0] + QUERY)[-34_350:]  # as long as titin
    records = [("mine words", QUERY), ("bad:1", QUERY), ("titin", titin)]
    query = fasta(tmp_path / "query.fasta", records)
    data = tmp_path / "data"
    options = ["--search-db", database, "--max-broken", "0.5", "--json"]
    assert evofeed("featurize", query, data, *options).json["num_good"] == 2
    assert Dataset.open(str(data))["titin"].msa.shape == (5, 34_350)
    record = Dataset.open(str(data))["mine"]
    assert record.sequence == QUERY and record.description == "mine words"
    assert record.num_alignments == 5  # the query and its four relatives


def test_databases_may_be_named_from_the_folder_one_is_in(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (entry,), _ = read_recipe("default", ["pool=database.fasta,max_hits=3"], "")
    assert (entry.name, entry.path, entry.max_hits) == ("pool", database, 3)


def test_a_folder_of_fasta_is_searched_and_featurized(tmp_path: Path, database: str) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    fasta(folder / "a.fasta", [("one", QUERY), ("two", QUERY)])
    fasta(folder / "b.fa", [("three", QUERY[5:]), ("bad:id", QUERY)])
    report = evofeed("search", folder, "--db", database, "--max-broken", "0.3", "--json").json
    assert (report["num_chains"], report["num_sequences"], report["searched"]) == (4, 2, 2)
    (broken,) = report["broken"]
    assert "bad:id" in broken["message"]
    (entry,) = report["databases"]
    assert entry["program"].startswith("jackhmmer (") and entry["worker_hours_per_1000"] > 0
    out = f"{folder}.search"
    assert json.loads(Path(out, "report.json").read_text()) == report
    again = evofeed("search", folder, "--db", database, code=1).out
    assert "bad:id" in again and "2 results from the cache" in again
    done = evofeed("featurize", out, tmp_path / "data", "--executor", "local", "--json")
    assert done.json["num_good"] == 3
    # Few files, however many sequences: the index, the report and a link, all else in the cache.
    assert len([path for path in Path(out).iterdir() if path.name[0] != "."]) == 4


def test_sequences_and_databases_of_an_earlier_call_are_not_in_the_next(
    tmp_path: Path, inside: None
) -> None:
    databases = [fasta(tmp_path / f"{name}.fasta", [("s", KIN[0])]) for name in ("one", "two")]

    def call(records: list[tuple[str, str]], databases: list[str]) -> dict[str, list[str]]:
        query = fasta(tmp_path / "query.fasta", records)
        sources = search_fasta(query, str(tmp_path / "out"), databases)
        return {s.chain_id: [ref.plain_name for _, ref in s.alignment_files()] for s in sources}

    both = ["one_hits.sto", "two_hits.sto"]
    mine, other = ("mine", QUERY), ("other", KIN[1])
    assert call([mine, other], databases) == {"mine": both, "other": both}
    assert call([mine], databases[:1]) == {"mine": both[:1]}


def test_two_databases_of_one_name_are_refused_before_anything_is_searched(
    tmp_path: Path, inside: None
) -> None:
    query = fasta(tmp_path / "query.fasta", [("mine", QUERY)])
    databases = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        databases.append(fasta(tmp_path / name / "uniref.fasta", [("s", QUERY)]))
    with pytest.raises(InputError, match=r"new/uniref\.fasta: called 'uniref' as .*old"):
        search_fasta(query, str(tmp_path / "out"), databases)
    databases[1] = f"newer={databases[1]}"
    (source,) = search_fasta(query, str(tmp_path / "out"), databases)
    (first, second) = (read_bytes(ref) for _, ref in source.alignment_files())
    assert first == second


SEQUENCES = [family(4, 2)[0][n:] for n in range(10)]


def search(folder: Path, out: str) -> SearchReport:
    database = fake_hh_database(folder / "db")
    (folder / "scratch").mkdir(exist_ok=True)
    options = SearchOptions(workers=2, scratch=str(folder / "scratch"))
    return run_search(chains(*SEQUENCES), str(folder / out), [database], options=options)


def num_results(folder: Path) -> int:
    path = folder / "cache" / "cache.sqlite"
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path, timeout=60)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master")]
        return (
            db.execute("SELECT count(*) FROM results").fetchone()[0] if "results" in tables else 0
        )


@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_a_killed_search_ends_alike_and_searches_nothing_twice(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    fake_hhblits(tmp_path / "bin", 'sleep 0.2; cp "$in" "$out"')

    def act() -> tuple[str, str, int, int]:
        pid = os.fork()
        if not pid:
            os._exit(search(tmp_path, "out").num_broken)
        wait_until(lambda: num_results(tmp_path / "out") >= 2)
        os.kill(pid if victim == "driver" else children(pid)[0], signal.SIGKILL)
        assert wait_for(pid) == (-signal.SIGKILL if victim == "driver" else 0)
        num_before = num_results(tmp_path / "out")
        report = search(tmp_path, "out")
        assert report.searched == len(SEQUENCES) - num_before
        return report.digest, search(tmp_path, "undisturbed").digest, report.cache_hits, num_before

    digest, expected, hits, num_before = run_forked(act)
    assert digest == expected
    with scratch_folder("evofeed-search-", str(tmp_path / "scratch")) as scratch:
        assert list((tmp_path / "scratch").iterdir()) == [scratch], "what was killed left nothing"
        with scratch_folder("evofeed-search-", str(tmp_path / "scratch")):
            assert scratch.exists(), "it is in use"
    assert hits == num_before >= 2 and (num_before == len(SEQUENCES)) == (victim != "driver")
