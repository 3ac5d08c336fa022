"""The house rules: who may import whom, and that no module is loaded twice."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("featurize", "store", "loader", "service", "trainer", "kernels")
COMMON = set("features errors lazy options residues residue_geometry shapes __version__".split())
MAY_IMPORT = {
    "store": set(),
    "kernels": set(),
    "featurize": {"store"},
    "loader": {"store", "kernels.runtime"},
    "service": {
        "store",
        "featurize.job",
        "featurize.search",
        "loader:LoaderConfig",
        "loader:plan_samples",
    },
    "trainer": {"loader", "kernels", "store:Dataset"},  # docs/decisions/0004
}


def imported(path: Path) -> set[str]:
    """What a source file imports from evofeed anywhere in it, as `room.module:name`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "evofeed":
            module = node.module or ""
            joint = "." if module == "evofeed" else ":"
            names |= {f"{module}{joint}{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names if a.name.split(".")[0] == "evofeed"}
    return {name.removeprefix("evofeed").lstrip(".") for name in names} - {""}


def allowed(room: str, name: str) -> bool:
    module = name.split(":")[0]
    if module in COMMON or module.split(".")[0] == room:
        return True
    return any(
        name == door or module == door or module.startswith(f"{door}.") for door in MAY_IMPORT[room]
    )


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_it_may_know(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files, f"{room} is empty"
    wrong = [
        f"{path.relative_to(ROOT)} imports evofeed.{name}"
        for path in files
        for name in sorted(imported(path))
        if not allowed(room, name)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_import_check_sees_a_forbidden_import(tmp_path: Path) -> None:
    source = tmp_path / "bad.py"
    source.write_text("def f():\n    from evofeed.service.app import create_app\n")
    assert imported(source) == {"service.app:create_app"}
    assert not allowed("store", "service.app:create_app")
    assert allowed("trainer", "store:Dataset")
    assert not allowed("trainer", "store:DatasetWriter")


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_a_room_lists_is_there(room: str) -> None:
    module = importlib.import_module(f"evofeed.{room}")
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing


def test_no_module_is_loaded_under_two_names() -> None:
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


@pytest.mark.parametrize("room", ["store", "loader", "trainer", "kernels"])
def test_a_training_machine_needs_only_the_base_install_and_torch(room: str) -> None:
    absent = "jaxtyping beartype ray fastapi httpx gemmi Bio sqlalchemy pydantic_settings obstore"
    code = (
        "import sys, importlib\n"
        f"for name in {absent.split()!r}: sys.modules[name] = None\n"
        f"module = importlib.import_module('evofeed.{room}')\n"
        "[getattr(module, name) for name in module.__all__]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
