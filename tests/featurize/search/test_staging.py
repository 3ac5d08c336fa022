"""A database is copied to a node once, checked, and searched there."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.featurize.search.family import family, fasta

from evofeed.base.errors import JobError
from evofeed.featurize import ChainSource, SearchConfig, SearchOptions, run_search
from evofeed.featurize.search import staging
from evofeed.featurize.search.config import Database
from evofeed.featurize.search.digests import database_digest
from evofeed.featurize.search.staging import staged

FAMILIES = [family(seed, 5, 60) for seed in range(4)]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    rows = [(f"k{f}_{n}", s) for f, kin in enumerate(FAMILIES) for n, s in enumerate(kin)]
    (tmp_path / "shared").mkdir()
    return Database.parse(fasta(tmp_path / "shared" / "db.fasta", rows))


@pytest.mark.system
def test_searches_of_a_staged_database_give_the_same_and_read_the_copy(
    database: Database, tmp_path: Path
) -> None:
    chains = [ChainSource(f"c{n}", sequence=kin[0]) for n, kin in enumerate(FAMILIES)]
    config = SearchConfig()
    reports = [
        run_search(
            chains,
            str(tmp_path / name),
            [database],
            config=config,
            options=SearchOptions(workers=2, stage=stage),
        )
        for name, stage in (("plain", ""), ("staged", str(tmp_path / "disk")))
    ]
    assert reports[0].digest == reports[1].digest and not reports[1].broken
    digest = database_digest(database)
    copy = tmp_path / "disk" / digest / "db.fasta"
    assert copy.read_bytes() == Path(database.path).read_bytes()
    assert {p.name for p in (tmp_path / "disk").iterdir()} == {digest, f"{digest}.lock"}


def test_a_database_is_copied_once_however_many_ask(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = []
    real = shutil.copyfile

    def counted(source: Any, target: Any) -> Any:
        copies.append(target)
        return real(source, target)

    monkeypatch.setattr(staging.shutil, "copyfile", counted)
    digest = database_digest(database)
    with ThreadPoolExecutor(6) as pool:
        found = set(pool.map(lambda _: staged(database, digest, str(tmp_path / "d")), range(6)))
    assert len(copies) == len(found) == 1
    (tmp_path / "d" / digest).rename(tmp_path / "d" / f"{digest}.aside")  # as if cut short
    staged(database, digest, str(tmp_path / "d"))
    assert len(copies) == 2


def test_another_database_or_a_damaged_copy_is_refused(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = database_digest(database)
    with Path(database.path).open("a") as file:
        file.write(">new\nACDE\n")
    with pytest.raises(JobError, match="not the one the search began with"):
        staged(database, digest, str(tmp_path / "d"))
    assert not (tmp_path / "d" / digest).exists()
    monkeypatch.setattr(
        staging.shutil, "copyfile", lambda a, b: Path(b).write_bytes(Path(a).read_bytes()[:-5])
    )
    with pytest.raises(JobError, match="digest of its copy"):
        staged(database, database_digest(database), str(tmp_path / "d"))


def test_a_disk_without_room_is_told_before_anything_is_copied(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(JobError, match="no room in"):
        staged(database, database_digest(database), str(tmp_path / "d"))
    monkeypatch.undo()

    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staging.shutil, "copyfile", full)
    with pytest.raises(JobError, match="no room in"):
        staged(database, database_digest(database), str(tmp_path / "d"))
    assert [p.name for p in (tmp_path / "d").iterdir()] == [f"{database_digest(database)}.lock"]
