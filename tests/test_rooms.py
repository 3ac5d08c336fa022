"""Rooms as packages: their public names, what importing them needs. Who may import whom is
contracts of import-linter in pyproject.toml, which `make check` runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.room_map import draw, layers

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("featurize", "store", "loader", "service", "trainer", "kernels", "synth")


def test_the_drawing_of_rooms_is_that_of_their_imports() -> None:
    assert (ROOT / "docs" / "rooms.md").read_text() == draw()
    with pytest.raises(ValueError, match="a circle among a, b"):
        layers({"a": {"b"}, "b": {"a"}, "c": set()})


def test_every_name_a_room_lists_is_there_and_no_module_is_loaded_under_two_names() -> None:
    code = (
        "import importlib, sys, os\n"
        f"for room in {ROOMS!r}:\n"
        "    module = importlib.import_module('evofeed.' + room)\n"
        "    [getattr(module, name) for name in module.__all__]\n"
        "seen = {}\n"
        "for name, module in list(sys.modules.items()):\n"
        "    file = getattr(module, '__file__', None)\n"
        "    if 'site-packages' in (file or ''): continue\n"
        "    if file and os.path.realpath(file).startswith(sys.argv[1]):\n"
        "        seen.setdefault(os.path.realpath(file), []).append(name)\n"
        "twice = {f: n for f, n in seen.items() if len(n) > 1}\n"
        "assert seen and not twice, twice\n"
    )
    subprocess.run([sys.executable, "-c", code, str(ROOT)], check=True, cwd="/")


def test_a_training_machine_needs_only_the_base_install_and_torch() -> None:
    absent = "jaxtyping beartype ray fastapi httpx gemmi Bio sqlalchemy pydantic_settings obstore"
    code = (
        "import sys, importlib\n"
        f"for name in {absent.split()!r}: sys.modules[name] = None\n"
        "for room in ('store', 'loader', 'trainer', 'kernels'):\n"
        "    module = importlib.import_module('evofeed.' + room)\n"
        "    [getattr(module, name) for name in module.__all__]\n"
        "assert 'torch._dynamo' not in sys.modules, 'the compiler takes seconds to import'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Lines of Python a room may have. Raising one needs a reason in the commit: something new needs
# something out, or lives in experiments/.
BUDGET = {
    "src": 4_893,
    "featurize": 20_470,
    "store": 7_381,
    "loader": 12_425,
    "service": 8_288,
    "trainer": 12_940,
    "kernels": 16_752,
    "synth": 2_009,
    "tests": 40_865,
    "benchmarks": 9_915,
}


def _files(room: str) -> Iterator[Path]:
    """Python files of a room; `src/evofeed` links to the others, whose files are not its own."""
    for folder, _, names in os.walk(ROOT / room):  # which follows no links
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def test_rooms_keep_to_their_lines() -> None:
    lines = {
        room: sum(len(path.read_text().splitlines()) for path in _files(room)) for room in BUDGET
    }
    print("\n".join(f"{room:<12} {lines[room]:6,} of {most:6,}" for room, most in BUDGET.items()))
    assert {room: n for room, n in lines.items() if n > BUDGET[room]} == {}
