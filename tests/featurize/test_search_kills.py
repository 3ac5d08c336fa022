"""A search that is killed again and again; `benchmarks/search_kills.py` does it for longer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.search_programs import require_programs

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "search_kills.py"


@pytest.mark.slow
def test_killed_searches_end_alike_and_search_nothing_twice(tmp_path: Path) -> None:
    require_programs()
    spec = importlib.util.spec_from_file_location("search_kills", SCRIPT)
    assert spec is not None and spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = script.campaign(tmp_path, kills=3, seed=3)
    assert sum(found["kills"].values()) == 3
    assert found["same_digest"] == found["searches"] > 0
    assert found["twice"] == 0
