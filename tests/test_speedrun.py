"""Records of the speedrun are whole, and its page says what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evofeed.synth.families import family_sizes

FOLDER = Path(__file__).parents[1] / "benchmarks" / "speedrun"
RECORDS = sorted((FOLDER / "records").glob("*/record.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_record_reached_its_targets_when_it_says(path: Path) -> None:
    record = json.loads(path.read_text())
    for target, seconds in record["seconds_to"].items():
        above = [x["seconds"] for x in record["curve"] if x["lddt_ca"] >= float(target)]
        assert seconds == (above[0] if above else None)
    assert {"cards", "commit", "command", "config", "versions", "dataset"} <= set(record)
    assert (path.parent / "curve.png").is_file()


def test_the_recipe_has_thousands_of_families_in_the_number_the_page_says() -> None:
    text = (FOLDER / "speedrun.py").read_text()
    chains = int(text.partition('"--chains", type=int, default=')[2].partition(",")[0])
    assert '"--mean-members", "1"' in text
    families = len(list(family_sizes(1, chains, 1)))
    assert f"{chains:,} chains of {families:,} families" in (FOLDER / "README.md").read_text()
    assert families >= 2000


def test_the_page_lists_every_record_with_its_times() -> None:
    page = (FOLDER / "README.md").read_text()
    rows = {line.split("](records/")[1].split(")")[0]: line for line in page.splitlines()
            if line.startswith("| [")}  # fmt: skip
    assert set(rows) == {path.parent.name for path in RECORDS}
    for path in RECORDS:
        record = json.loads(path.read_text())
        assert record["cards"] in rows[path.parent.name]
        for seconds in record["seconds_to"].values():
            if seconds is not None:
                assert f"{seconds} s" in rows[path.parent.name]
