"""A search that is killed again and again; `benchmarks/search_kills.py` does it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import search_kills
from tests.featurize.search.family import require_programs


@pytest.mark.slow
def test_killed_searches_end_alike_and_search_nothing_twice(tmp_path: Path) -> None:
    require_programs()
    found = search_kills.campaign(tmp_path, kills=3, seed=3)
    assert sum(found["kills"].values()) == 3
    assert found["same_digest"] == found["searches"] > 0
    assert found["twice"] == 0
