"""The demo of whole entries runs from nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evofeed.cli import main


@pytest.mark.slow
def test_the_demo_of_entries_gives_batches_of_all_three_projects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", "--all-atom", "--out", str(tmp_path), "--json"])
    assert end.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert report["entries"] == 6
    assert report["batches"] == {"openfold3": 8, "boltz": 8, "protenix": 8}
    assert report["left_out"] > 0
    assert Path(report["report"]).is_file()
