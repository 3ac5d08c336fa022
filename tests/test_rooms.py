"""Rooms as packages: their public names, what importing them needs. Who may import whom is
contracts of import-linter in pyproject.toml, which `make check` runs."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.room_map import draw, layers

from evofeed.base.lazy import names_from

ROOT = Path(__file__).resolve().parent.parent


def test_the_drawing_of_rooms_is_that_of_their_imports() -> None:
    assert (ROOT / "docs" / "rooms.md").read_text() == draw()
    with pytest.raises(ValueError, match="a circle among a, b"):
        layers({"a": {"b"}, "b": {"a"}, "c": set()})


IMPORTS = """
import importlib, os, sys

def use(rooms):
    for room in rooms.split():
        module = importlib.import_module(f"evofeed.{room}")
        assert all(hasattr(module, name) for name in module.__all__), room

absent = "jaxtyping beartype ray fastapi httpx gemmi Bio sqlalchemy pydantic_settings obstore"
sys.modules |= dict.fromkeys(absent.split())
use("store loader trainer kernels")
assert "torch._dynamo" not in sys.modules, "the compiler takes seconds to import"
for name in absent.split():
    del sys.modules[name]
use("featurize service synth")
loaded = {}
for name, module in list(sys.modules.items()):
    file = os.path.realpath(getattr(module, "__file__", None) or "/")
    if file.startswith(sys.argv[1]) and "site-packages" not in file:
        loaded.setdefault(file, []).append(name)
twice = {file: names for file, names in loaded.items() if len(names) > 1}
assert loaded and not twice, twice
"""


def test_training_needs_the_base_install_and_torch_and_every_name_is_there_under_one_name() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS, str(ROOT)], check=True, cwd="/")


# Lines of Python a room may have. Raising one needs a reason in the commit: something new needs
# something out, or lives in experiments/.
BUDGET = {
    "src": 4_501,
    "featurize": 19_964,
    "store": 7_323,
    "loader": 12_049,
    "service": 8_236,
    "trainer": 12_032,
    "kernels": 16_276,
    "synth": 1_858,
    "tests": 40_396,
    "benchmarks": 9_939,
}


UNNAMED = ("tests", "benchmarks")  # rooms in which names are not checked


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


THIN = {"found", "kept", "known", "own", "made", "one", "late", "beside", "there", "given", "whole"}


def test_names_say_what_a_value_is() -> None:
    thin = []
    for path in (path for room in BUDGET for path in _files(room) if room not in UNNAMED):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    pass
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    pass
                case _:
                    continue
            if name.strip("_") in THIN:
                thin.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    # A check's result in `evofeed doctor --json`, and a bar of a page's chart.
    assert len(thin) <= 2, thin


def test_what_is_not_there_is_said_by_name() -> None:
    with pytest.raises(AttributeError, match=r"'evofeed.store' has no attribute 'nothing'"):
        names_from("evofeed.store")("nothing")


def test_what_breaks_in_a_module_is_said_and_not_that_its_name_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from evofeed.base.lazy import names_from\n"
        "if TYPE_CHECKING:\n    from lazy_package.inside import one\n"
        "__getattr__ = names_from(__name__)\n"
    )
    (folder / "inside.py").write_text("import os\none = os.of_old\n")
    words = [sys.executable, "-c", "from lazy_package import one"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: lazy_package.inside cannot be imported: module 'os' has no attribute 'of_old'"
    )


def test_a_lazy_package_lists_its_names() -> None:
    assert "Dataset" in dir(importlib.import_module("evofeed.store"))
