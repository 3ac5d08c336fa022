"""Packages that load their names when they are used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from evofeed.base.lazy import names_from


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
