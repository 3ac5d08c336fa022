"""docs/kernels.md says where each operator's kernels, reference and benchmark are."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from evofeed.kernels import kernel_groups
from evofeed.kernels.runtime.cases import declared

ROOT = Path(__file__).resolve().parents[2]
OPS = sorted(path.name for path in (ROOT / "kernels/ops").iterdir() if (path / "op.py").exists())


def _table() -> dict[str, list[str]]:
    text = (ROOT / "docs/kernels.md").read_text()
    lines = text[text.index("| operator | public name") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in rows}


def _kernels(path: Path) -> set[str]:
    """Names of the kernels of a file, not of the functions that these call."""
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel")
    }


def test_every_operator_has_a_row() -> None:
    assert len(OPS) >= 10
    assert sorted(_table()) == OPS


@pytest.mark.parametrize("op", OPS)
def test_an_operator_has_all_of_its_row(op: str) -> None:
    public, forward, backward, reference, benchmark = _table()[op]
    folder = ROOT / "kernels/ops" / op
    shared = {name for path in (ROOT / "kernels/runtime").glob("*.py") for name in _kernels(path)}
    own = {name for path in folder.glob("triton.py") for name in _kernels(path)}
    words = {word for word in forward.split("`") if word.endswith("_kernel")}
    later = {word for word in backward.split("`") if word.endswith("_kernel")}
    by_hand = {name for path in (folder / "hopper").glob("*.py") for name in _kernels(path)}
    assert own <= words | later <= own | shared | by_hand
    assert words and (later or backward == "no gradient")
    plain = importlib.import_module(f"evofeed.kernels.ops.{op}.reference")
    assert reference.strip("`") in plain.__all__
    assert op in declared() or op == "optimizer"  # which has no backward pass
    timed = op in declared() and bool(declared()[op].timed)
    assert benchmark.strip("`") == ("operators.py" if timed else f"{op}.py")
    if public.startswith("`"):
        assert public.strip("`") in importlib.import_module("evofeed.kernels").__all__


def test_every_kernel_is_counted_as_something_in_a_report() -> None:
    files = [*(ROOT / "kernels").rglob("*.py")]
    assert {name for path in files for name in _kernels(path)} - {"_torch_has_a_kernel"} == {
        *kernel_groups()
    }


def test_nothing_imports_for_its_types_what_imports_it() -> None:
    """Else two files are one: types an operator and its reference share are the reference's."""
    files = [p for p in (ROOT / "kernels").rglob("*.py") if p.parent.name != "kernels"]
    assert [p.name for p in files if "TYPE_CHECKING" in p.read_text()] == []


def test_every_section_of_the_benchmark_is_listed() -> None:
    text = (ROOT / "benchmarks/kernels/__main__.py").read_text()
    alone = [op for op in OPS if op not in declared() or not declared()[op].timed]
    missing = [op for op in ("operators", *alone) if f"{op}.section" not in text]
    assert not missing
