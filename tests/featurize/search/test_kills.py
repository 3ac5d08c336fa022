"""Searches killed as they run: whatever dies, the same results, and nothing is searched twice."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.featurize.job.stage import children, on_stage, wait_for, wait_until
from tests.featurize.search.family import family
from tests.featurize.search.test_search import chains, fake, hh_file

from evofeed.base.files import scratch_folder
from evofeed.featurize import SearchOptions, run_search
from evofeed.featurize.search.config import SearchReport

SEQUENCES = [family(4, 2)[0][n:] for n in range(10)]


def search(folder: Path, out: str) -> SearchReport:
    database = hh_file(folder / "db")
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
    fake(tmp_path / "bin", 'sleep 0.2; cp "$in" "$out"')

    def act() -> tuple[str, str, int, int]:
        pid = os.fork()
        if not pid:
            os._exit(search(tmp_path, "out").num_broken)
        wait_until(lambda: num_results(tmp_path / "out") >= 2)
        os.kill(pid if victim == "driver" else children(pid)[0], signal.SIGKILL)
        assert wait_for(pid) == (-signal.SIGKILL if victim == "driver" else 0)
        known = num_results(tmp_path / "out")
        report = search(tmp_path, "out")
        assert report.searched == len(SEQUENCES) - known
        return report.digest, search(tmp_path, "undisturbed").digest, report.cache_hits, known

    digest, want, hits, known = on_stage(act)
    assert digest == want
    with scratch_folder("evofeed-search-", str(tmp_path / "scratch")) as mine:
        assert list((tmp_path / "scratch").iterdir()) == [mine], "what was killed left nothing"
        with scratch_folder("evofeed-search-", str(tmp_path / "scratch")):
            assert mine.exists(), "it is in use"
    assert hits == known >= 2 and (known == len(SEQUENCES)) == (victim != "driver")
