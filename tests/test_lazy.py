"""Packages that load their names when they are used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from evofeed.base.lazy import names_from


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with two names of one module, which says when it is loaded."""
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from evofeed.base.lazy import names_from\n"
        "if TYPE_CHECKING:\n    from lazy_package.inside import one, two\n"
        "__getattr__ = names_from(__name__)\n"
    )
    (folder / "inside.py").write_text("print('loaded')\none, two, three = 1, 2, 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return str(tmp_path)


def test_a_name_is_loaded_when_it_is_used_and_others_are_not_there(package: str) -> None:
    code = (
        "import lazy_package\nprint('imported')\n"
        "print(lazy_package.one, lazy_package.two, hasattr(lazy_package, 'three'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=package, check=True
    )
    assert done.stdout.split() == ["imported", "loaded", "1", "2", "False"]


def test_what_is_not_there_is_said_by_name() -> None:
    with pytest.raises(AttributeError, match=r"'evofeed.store' has no attribute 'nothing'"):
        names_from("evofeed.store")("nothing")


def test_what_breaks_in_a_module_is_said_and_not_that_its_name_is_missing(package: str) -> None:
    (Path(package) / "lazy_package" / "inside.py").write_text("import os\none = os.of_old\n")
    code = "from lazy_package import one"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=package)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: lazy_package.inside cannot be imported: module 'os' has no attribute 'of_old'"
    )


def test_a_lazy_package_lists_its_names() -> None:
    assert "Dataset" in dir(importlib.import_module("evofeed.store"))
