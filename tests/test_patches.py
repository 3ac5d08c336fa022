"""What tests replace: how long something waits is an argument, so no test patches it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("featurize", "kernels", "loader", "service", "src/evofeed", "store", "synth", "trainer")
TIME = re.compile(r"SECONDS|WAIT|TICK|LEASE|PATIENCE|AWAY|TIMEOUT|INTERVAL|PERIOD|DEADLINE|SILENCE")


def constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names in capitals that a module sets, and to what."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper() and value is not None:
                yield target.id, value


def timing_constants() -> set[str]:
    """Those of the product that are named for a time, or are a number that is none of counting."""
    found = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for name, value in constants(ast.parse(path.read_text())):
                is_float = isinstance(value, ast.Constant) and isinstance(value.value, float)
                if is_float or TIME.search(name):
                    found.add(name)
    return found


def patched(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each attribute that a test sets by `setattr`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
            for argument in node.args[:2]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value.rpartition(".")[2]


def test_no_test_patches_how_long_something_waits() -> None:
    times = timing_constants()
    assert {"_TICK", "FIRST_WAIT", "SECONDS"} <= times, "the check sees constants of the product"
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in patched(ast.parse(path.read_text()))
        if name in times
    ]
    assert found == [], "hand it in as an argument"


def test_a_patched_time_would_be_seen() -> None:
    tree = ast.parse('monkeypatch.setattr(webhooks, "_TICK", 0.02)\nx.setattr("a.b.SECONDS", 1)')
    assert list(patched(tree)) == [(1, "_TICK"), (2, "SECONDS")]
