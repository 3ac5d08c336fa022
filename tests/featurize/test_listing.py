"""Chains of structure files, listed here and by processes."""

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
    """Recorded structures, with a broken one and one that is not there between them."""
    found = sorted((INPUTS[0] / "mmcif").glob("*.cif"))[:5]
    for path in found:
        shutil.copy(path, tmp_path)
    (tmp_path / "0bad.cif").write_text("data_bad\n")
    return sorted([*tmp_path.iterdir(), tmp_path / "9not.cif"])


def plainly(listed: listing.Listed) -> object:
    """A fault as what it says."""
    return (type(listed), str(listed)) if isinstance(listed, InputError) else listed


def test_processes_list_what_this_one_lists_and_what_a_lost_one_had_in_hand_is_listed_here(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [plainly(listed) for listed in listing.list_chains(files)]
    assert sum(isinstance(listed, dict) and bool(listed) for listed in here) >= 4
    apart = listing.list_chains(files, workers=2, serial_files=3)
    assert [plainly(listed) for listed in apart] == here
    lost = subprocess.CompletedProcess([], -9)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: lost)
    apart = listing.list_chains(files, workers=2, serial_files=3)
    assert [plainly(listed) for listed in apart] == here
