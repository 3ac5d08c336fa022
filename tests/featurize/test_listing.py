"""Chains of structure files, listed by this process and by workers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.featurize.golden import INPUTS

from evofeed.base.errors import InputError
from evofeed.featurize.structures import listing


@pytest.fixture
def files(tmp_path: Path, golden: Path) -> list[Path]:
    """Recorded structures, a broken one and one that does not exist."""
    for path in sorted((INPUTS[0] / "mmcif").glob("*.cif"))[:5]:
        shutil.copy(path, tmp_path)
    (tmp_path / "0bad.cif").write_text("data_bad\n")
    return sorted([*tmp_path.iterdir(), tmp_path / "9not.cif"])


def comparable(listed: listing.Listed) -> object:
    """An error as its type and text."""
    return (type(listed), str(listed)) if isinstance(listed, InputError) else listed


def test_worker_processes_list_the_same_chains_and_files_of_a_killed_one_are_listed_here(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [comparable(listed) for listed in listing.list_chains(files)]
    assert sum(isinstance(listed, dict) and bool(listed) for listed in here) >= 4
    apart = listing.list_chains(files, workers=2, serial_files=3)
    assert [comparable(listed) for listed in apart] == here
    lost = subprocess.CompletedProcess([], -9)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: lost)
    apart = listing.list_chains(files, workers=2, serial_files=3)
    assert [comparable(listed) for listed in apart] == here
