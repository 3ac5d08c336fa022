"""Figures in the documents are those of benchmarks/results, rounded; the site has every page."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evofeed.synth.families import family_sizes

ROOT = Path(__file__).resolve().parent.parent
SPEEDRUN = ROOT / "benchmarks" / "speedrun"
RECORDS = sorted((SPEEDRUN / "records").glob("*/record.json"))


def text(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def printed(script: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_page_of_figures_is_printed_from_the_results() -> None:
    page = (ROOT / "docs" / "measured.md").read_text()
    assert page == printed("measured.py"), "run: python benchmarks/measured.py > docs/measured.md"


def test_every_row_of_the_readmes_table_is_a_row_of_that_page() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Measured\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .*\|$", section, re.MULTILINE)[2:]  # below the head and its line
    assert len(rows) >= 4
    page = (ROOT / "docs" / "measured.md").read_text()
    assert [row for row in rows if f"\n{row} [" not in page] == []


def sentences() -> list[tuple[str, str]]:
    """Page and words: what is said in prose from a result."""
    loader = result("loader_h200")["presets"]
    tensors = [
        loader[preset]["step_50_ms_openfold_dataloader"]["mb_per_sample"]
        for preset in ("initial_training", "finetuning")
    ]
    ratio = result("store")["ratio"]["evofeed"]
    curve = result("overfit_h200_recipe")
    lddt = {line["step"]: line["lddt_ca"] for line in curve["metrics"]}
    other = curve["predicted_from_other_rows"]["lddt_ca"]
    complexes = result("multimer_h200")
    ours, theirs = complexes["step"][0], complexes["openfold_step"]
    flow = loader["initial_training"]["step_50_ms"]["mb_per_sample"]
    return [
        ("README.md", f"{tensors[0]:.0f} to {tensors[1]:.0f} MB of padded tensors a sample"),
        ("README.md", f"{ratio:.2f} of their size"),
        ("README.md", f"{flow:.1f} MB a sample"),
        (
            "docs/training.md",
            f"{curve['residues']} residues reached lDDT-Ca {lddt[375]:.2f} after 375 and "
            f"{lddt[425]:.2f} after 425 of the {curve['config']['steps']} steps",
        ),
        (
            "docs/training.md",
            f"{ours['step_ms']['median'] / 1e3:.1f} s and {ours['peak_memory_mb'] / 1024:.0f} GiB "
            f"against OpenFold's {theirs['step_ms']['median'] / 1e3:.1f} s and "
            f"{theirs['peak_memory_mb'] / 1024:.0f} GiB ({complexes['step_ratio']:.1f} times)",
        ),
        ("docs/training.md", f"from other rows of the same alignment it reaches {other:.2f}"),
    ]


def test_the_tables_of_af3_class_models_are_the_results() -> None:
    tables = printed("af3_tables.py").strip("\n").split("\n\n")
    assert len(tables) == 4
    pages = ["docs/kernels.md", "kernels/notes/af3.md"]
    texts = [(ROOT / page).read_text() for page in pages]
    for table in tables:
        assert any(f"\n\n{table}\n\n" in text for text in texts), table.split("\n")[0]


@pytest.mark.parametrize(("page", "words"), sentences())
def test_a_figure_in_prose_is_the_results(page: str, words: str) -> None:
    assert words in text(page)


def test_every_result_is_described() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    names = [path.name for path in (ROOT / "benchmarks" / "results").iterdir()]
    missing = [name for name in names if f"results/{name})" not in page]
    assert all(name.startswith("trainer_h200.") for name in missing), missing  # named together


def test_the_sanitizer_found_nothing_and_missed_no_kernel() -> None:
    found = result("sanitize_kernels_h200")
    verdicts = [verdict for run in found["runs"] for verdict in run["cases"].values()]
    assert set(verdicts) == {"clean"}
    assert not any(found["never_launched"].values())
    assert all(run["finished"] for run in found["runs"])
    words = f"no bad access and no race in {len(verdicts)} cases"
    assert words in text("docs/kernels.md")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_record_reached_its_targets_when_it_says(path: Path) -> None:
    record = json.loads(path.read_text())
    for target, seconds in record["seconds_to"].items():
        above = [x["seconds"] for x in record["curve"] if x["lddt_ca"] >= float(target)]
        assert seconds == (above[0] if above else None)
    assert {"cards", "commit", "command", "config", "versions", "dataset"} <= set(record)
    assert (path.parent / "curve.png").is_file()


def test_the_recipe_has_thousands_of_families_in_the_number_the_page_says() -> None:
    text = (SPEEDRUN / "speedrun.py").read_text()
    chains = int(text.partition('"--chains", type=int, default=')[2].partition(",")[0])
    assert '"--mean-members", "1"' in text
    families = len(list(family_sizes(1, chains, 1)))
    assert f"{chains:,} chains of {families:,} families" in (SPEEDRUN / "README.md").read_text()
    assert families >= 2000


def test_the_page_lists_every_record_with_its_times() -> None:
    page = (SPEEDRUN / "README.md").read_text()
    rows = {line.split("](records/")[1].split(")")[0]: line for line in page.splitlines()
            if line.startswith("| [")}  # fmt: skip
    assert set(rows) == {path.parent.name for path in RECORDS}
    for path in RECORDS:
        record = json.loads(path.read_text())
        assert record["cards"] in rows[path.parent.name]
        for seconds in record["seconds_to"].values():
            if seconds is not None:
                assert f"{seconds} s" in rows[path.parent.name]


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
