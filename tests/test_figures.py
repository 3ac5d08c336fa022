"""Figures in the documents are those of benchmarks/results, rounded."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import af3_tables, measured
from benchmarks.claims.results import result

ROOT = Path(__file__).resolve().parent.parent


def text(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def test_the_page_of_figures_is_printed_from_the_results() -> None:
    page = (ROOT / "docs" / "measured.md").read_text()
    assert page == measured.page() + "\n", "run: python benchmarks/measured.py > docs/measured.md"


def test_the_page_of_scale_is_simulated_from_the_results() -> None:
    from benchmarks.scale import page, predict

    found = result("scale")
    again = "run: python benchmarks/scale/predict.py --out benchmarks/results/scale.json"
    for row, now in zip(found["predictions"], predict.measured_runs(), strict=True):
        assert row["measured_ms"] == now["measured_ms"], again
        assert row["predicted_ms"] == pytest.approx(now["predicted_ms"], rel=0.01), again
    assert found["speedups"] == predict.speedups(), again
    assert max(abs(row["error"]) for row in found["predictions"]) <= page.NEAR
    printed = (ROOT / "docs" / "scale.md").read_text()
    assert printed == page.page(found) + "\n", "run: python benchmarks/scale/page.py"


def test_every_row_of_the_readmes_table_is_a_row_of_that_page() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Measured\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .*\|$", section, re.MULTILINE)[2:]  # below the head and its line
    assert len(rows) >= 4
    assert set(rows) <= set(measured.table(measured.rows()))


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


@pytest.mark.parametrize("table", af3_tables.TABLES, ids=lambda table: table.__name__)
def test_the_tables_of_af3_class_models_are_the_results(table: Callable[[], list[str]]) -> None:
    page = "notebook/kernels-af3.md" if table is af3_tables.curves else "kernels.md"
    assert "\n\n" + "\n".join(table()) + "\n\n" in (ROOT / "docs" / page).read_text()


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
