"""The script that goes through found files says what became of each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.featurize.binary_cif import as_bcif
from tests.featurize.test_mmcif import small

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "corpus.py"


def test_found_files_are_counted_by_repository_with_reasons(tmp_path: Path) -> None:
    home = tmp_path / "files" / "someone" / "something"
    (home / "deep").mkdir(parents=True)
    text = small([(".", "1.0", "1.0")])
    (home / "1abc.cif").write_bytes(text)
    (home / "deep" / "1abc.bcif").write_bytes(as_bcif(text.decode()))
    (home / "bad.pdb").write_text("<html>")
    out, rows = tmp_path / "out.json", tmp_path / "rows.json"
    command = [sys.executable, str(SCRIPT), str(tmp_path / "files"), "--out", str(out)]
    done = subprocess.run([*command, "--files", str(rows)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert (result["files"], result["faults"]) == (3, 0)
    assert result["repositories"]["someone/something"]["chains"] == 2
    assert result["entries_in_several_formats"] == {"all": 1, "same_chains_to_the_bit": 1}
    assert any("no ATOM record in it" in why for why in result["reasons"]["input"])
    assert str(tmp_path) not in out.read_text() and len(json.loads(rows.read_text())) == 3
