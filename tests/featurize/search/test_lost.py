"""Searches whose workers are lost, and what is blamed: an executor that loses them to order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import Fateful
from tests.featurize.search.family import family, fasta

from evofeed.base.errors import JobError
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


def test_losses_that_end_blame_nobody(tmp_path: Path) -> None:
    losses: Counter[str] = Counter()

    def fate(task: SearchTask) -> UnitLost | None:
        losses[task.unit_id] += 1
        return UnitLost(task.unit_id, None, "node died") if losses[task.unit_id] <= 5 else None

    assert search(tmp_path, fate) == (set(SEQUENCES), {})


def test_workers_that_die_before_they_touch_a_sequence_are_the_machines_fault(
    tmp_path: Path,
) -> None:
    with pytest.raises(JobError, match=r"6 workers were lost.*none of these is to blame"):
        search(tmp_path, lambda task: UnitLost(task.unit_id, "", "exit 1"))
    assert search(tmp_path, lambda task: None) == (set(SEQUENCES), {})
