"""Searches whose workers are lost; the blame is that of jobs (`tests/featurize/job`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.featurize.job.stage import Fateful
from tests.featurize.search.family import family, fasta

from evofeed.featurize import SearchConfig, SearchOptions
from evofeed.featurize.job.worker import UnitLost
from evofeed.featurize.search.cache import SearchCache
from evofeed.featurize.search.config import Database
from evofeed.featurize.search.search import Search
from evofeed.featurize.search.work import SearchTask

QUERY, *KIN = family(1, 6)
SEQUENCES = [QUERY[n:] for n in range(20)]
Fate = Callable[[SearchTask], UnitLost | None]


def search(folder: Path, fate: Fate) -> tuple[set[str], dict[str, dict[str, Any]]]:
    """Sequences with a result, and why others have none."""
    database = Database.parse(fasta(folder / "db.fasta", [(f"k{n}", s) for n, s in enumerate(KIN)]))
    cache = SearchCache(folder / "cache")
    config, options = SearchConfig(), SearchOptions()
    job = Search(
        SEQUENCES, [database], config, options, cache, executor=Fateful(fate, room=1), rest=0.0
    )
    try:
        found, broken = job.run()
    finally:
        cache.close()
    return {sequence for sequence, _ in found}, broken


def test_a_sequence_that_takes_the_watcher_along_is_found_and_others_are_not_blamed(
    tmp_path: Path,
) -> None:
    victim = SEQUENCES[7]

    def fate(task: SearchTask) -> UnitLost | None:
        held = {query.sequence for query in task.queries}
        return UnitLost(task.unit_id, None, "WorkerCrashedError") if victim in held else None

    found, broken = search(tmp_path, fate)
    assert found == set(SEQUENCES) - {victim}
    assert list(broken) == [victim] and broken[victim]["type"] == "WorkerKilled"
