"""The wheel: everything in it once, and it runs in an empty environment."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source") / "evofeed"
    # A clean copy: building in the tree would leave build/ and egg-info behind.
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", str(source)], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_every_room_under_one_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"evofeed"}
    for room in ("featurize", "store", "loader", "service", "trainer", "kernels"):
        assert f"evofeed/{room}/__init__.py" in names
    assert "evofeed/py.typed" in names
    assert "evofeed/store/FORMAT.md" in names


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-compile", *constraints, wheel],
        check=True,
        capture_output=True,
    )
    evofeed = tmp_path / "venv" / "bin" / "evofeed"
    done = subprocess.run([evofeed, "--help"], check=True, capture_output=True, text=True)
    assert "featurize" in done.stdout
    code = "import evofeed.store, evofeed.features"
    subprocess.run([python, "-W", "error", "-c", code], check=True, cwd=tmp_path)
