"""The small recorded pack: data alone, small, described, and what tests read where no other is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests import conftest
from tests.conftest import SMALL_PACK, golden_files, golden_folder, golden_root

FILES = [path for path in SMALL_PACK.rglob("*") if path.is_file()]
DATA = {
    *(".npz", ".json", ".cif", ".pdb", ".a3m", ".sto", ".hhr", ".fasta", ".txt"),
    *(".db", ".index", ".gz", ".zst"),
}
MEGABYTES = 12


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A clone with nothing beside it."""
    monkeypatch.delenv("EVOFEED_GOLDEN", raising=False)
    monkeypatch.setattr(conftest, "WHOLE_PACK", tmp_path)


def test_it_is_what_tests_read_in_a_clone_with_nothing_beside_it(stranger: None) -> None:
    assert golden_root() == SMALL_PACK
    for pattern in (
        *("data/golden/*.raw.npz", "data/golden/*.draws.npz", "multimer/permutation/*.npz"),
        *("model/*.npz", "multimer/model/*.npz", "af3/*/*.npz"),
    ):
        assert golden_files(pattern), pattern


def test_a_whole_pack_goes_first_and_lends_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("data", "model"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("EVOFEED_GOLDEN", str(tmp_path))
    assert golden_root() == tmp_path
    assert golden_folder("model") == tmp_path / "model" and not golden_files("model/*.npz")
    assert golden_folder("af3") == SMALL_PACK / "af3"


def test_it_is_data_alone_and_small() -> None:
    odd = {path.name for path in FILES if path.suffix not in DATA} - {"README.md"}
    assert not odd and FILES
    assert sum(path.stat().st_size for path in FILES) <= MEGABYTES * 10**6
    for path in FILES:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                assert arrays.files and all(arrays[name] is not None for name in arrays.files)


def test_its_readme_names_every_folder() -> None:
    text = (SMALL_PACK / "README.md").read_text()
    for folder in (path for path in SMALL_PACK.iterdir() if path.is_dir()):
        assert f"`{folder.name}" in text, folder.name
    assert "CC0" in text and "CC BY" in text
