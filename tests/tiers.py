"""Which of four tiers a test belongs to, by what it uses, and what a unit test may not do.

- `unit`: one piece of code, no process, no socket; all of them within 90 seconds.
- `contract`: recorded packs and exact bytes.
- `system`: Ray, PostgreSQL, a browser, programs, servers, processes; whole runs.
- `gpu`: needs an NVIDIA card, or says more on one than under Triton's interpreter.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TIERS = ("gpu", "system", "contract", "unit")
SYSTEM_FIXTURES = {"four_ranks", "undisturbed", "postgres", "served", "start", "start_any"}
_IMPORTS = re.compile(
    r"^\s*(?:from|import) (?:subprocess|multiprocessing|torch\.multiprocessing|socket|http\.server"
    r"|httpx|ray|psycopg|playwright"
    r"|tests\.(?:bucket|loader\.children|trainer\.forked|featurize\.job\.stage))\b",
    re.MULTILINE,
)
_RECORDED = re.compile(r"\bgolden|\brecorded|\bpacks\b")
_FORBIDDEN = {
    "os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.bind", "socket.connect",
    "subprocess.Popen",
}  # fmt: skip


@cache
def tier_of_file(path: Path) -> str:
    """The tier of a file's tests that neither a mark nor a fixture puts elsewhere."""
    text = path.read_text()
    for tier, mark in (("gpu", "gpu"), ("system", "system"), ("system", "slow")):
        if re.search(rf"^pytestmark = .*pytest\.mark\.{mark}\b", text, re.MULTILINE):
            return tier
    if _IMPORTS.search(text):
        return "system"
    return "contract" if _RECORDED.search(text) else "unit"


def tier_of(item: pytest.Item) -> str:
    """Marks decide, then fixtures, then what its file imports."""
    marks = {mark.name for mark in item.iter_markers()}
    if "gpu" in marks:
        return "gpu"
    fixtures = set(getattr(item, "fixturenames", ()))
    if marks & {"system", "slow"} or fixtures & SYSTEM_FIXTURES:
        return "system"
    file = tier_of_file(item.path)
    return "contract" if file == "unit" and "golden" in fixtures else file


def is_left_out(path: Path, expression: str) -> bool:
    """Whether no test of a file can match `-m expression`: then it need not be imported.

    A machine that only trains has not what others need: FastAPI, Ray, PostgreSQL.
    """
    if expression == "gpu":
        return "pytest.mark.gpu" not in path.read_text()
    return expression in ("unit", "contract") and tier_of_file(path) in {
        "gpu", "system", *({"contract"} if expression == "unit" else ()),
    }  # fmt: skip


_unit_test: list[str] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _unit_test and event in _FORBIDDEN:
        raise AssertionError(
            f"{_unit_test[0]} is a unit test, and does {event}{arguments!r:.80}: "
            "mark it `system`, or do without"
        )


sys.addaudithook(_refuse)


def watch(item: pytest.Item | None) -> None:
    """From now on this test runs, with `-m unit` to be held to that; None: no test does."""
    held = item is not None and item.config.option.markexpr == "unit"
    _unit_test[:] = [item.nodeid] if item is not None and held else []
