"""`make docs`: guides and every exported name, on pages that need no other machine."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("featurize", "store", "loader", "trainer", "kernels", "service", "synth")


@pytest.mark.slow
def test_the_site_has_every_guide_and_every_exported_name(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for room in ROOMS:
        page = (tmp_path / "api" / f"{room}.html").read_text()
        exported = importlib.import_module(f"evofeed.{room}").__all__
        missing = [n for n in exported if not re.search(rf'id="evofeed\.[\w.]+\.{n}"', page)]
        assert not missing, room
    guides = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    pages = {path.stem for path in tmp_path.glob("*.html")}
    assert guides | {"index", "INPUTS", "FORMAT", "FEATURES", "CONTRIBUTING"} <= pages
    foreign = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+")
    for path in tmp_path.rglob("*.html"):
        assert not foreign.search(path.read_text()), path.name
