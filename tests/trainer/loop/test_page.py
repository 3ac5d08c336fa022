"""The page of a run: all its curves, nothing from elsewhere, no panel without content."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import exit_code

from evofeed.base.run_files import RUN, STEPS, STRUCTURE
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.report.page import write_page

_SECONDS = {"data_wait": 0.01, "forward": 0.3, "backward": 0.6, "optimizer": 0.05, "other": 0.001}


def _make_run(
    folder: Path, *, steps: int = 40, config: TrainConfig | None = None, ranks: int = 1
) -> Path:
    """A finished run that was neither validated nor profiled."""
    folder.mkdir(parents=True)
    config = config or PRESETS["tiny"]().train.replace(steps=steps)
    facts = {
        "config": config.to_dict(), "device": "CPU", "world_size": ranks, "first_step": 0,
        "steps": steps, "seconds": steps * sum(_SECONDS.values()), "skipped": [],
        "stopped_by": "", "samples_per_step": 1, "seconds_before_first_wait": 0.5,
        "command": "evofeed train tiny --out <b>a</b>", "dataset": ["https://store/<x>"],
        "parts_by_rank": [_SECONDS] * ranks, "peak_memory_by_rank": [3 * 2**30] * ranks,
    }  # fmt: skip
    (folder / RUN).write_text(json.dumps(facts))
    lines: list[dict[str, Any]] = [
        {
            "step": step, "loss": 9.0 - step / 10, "norm": 1.0 + step % 3, "rate": 1e-3,
            "terms": {"fape": 2.0 - step / 50, "violation": 0.0}, "seconds": _SECONDS,
        }
        for step in range(steps)
    ]  # fmt: skip
    (folder / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _validate(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / STEPS).read_text().splitlines()]
    for line in lines[9::10]:
        line["metrics"] = {"lddt_ca": line["step"] / 100, "tm_score": None}
    (folder / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    rng = np.random.default_rng(0)
    true = np.cumsum(rng.normal(size=(50, 1, 3)), axis=0) + rng.normal(size=(50, 37, 3))
    arrays = {name: np.ones((50, 37)) for name in ("pred_mask", "true_mask")}
    arrays |= {name: np.zeros(50, int) for name in ("aatype", "plddt")}
    np.savez(
        folder / STRUCTURE, true=true, pred=true + 1.0, first=true + 2.0, **arrays,
        chain=np.ones(50, int), residue=np.arange(50),
    )  # fmt: skip


def _panels(page: str) -> dict[str, Any]:
    """The figure of each panel by its title."""
    figures = re.findall(
        r'<figcaption>([^<]*?) ?<.*?data-(?:figure|structure)="(.*?)"',
        page.partition("<script")[0],
        re.DOTALL,
    )
    return {title: json.loads(html.unescape(data)) for title, data in figures}


def _no_reference(page: str) -> None:
    """No attribute or style rule that makes a browser ask for anything, and a policy against it."""
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"<[^>]*\s(?:src|href|srcset|xlink:href|action|poster)\s*=", markup)
    assert not re.findall(r"<(?:link|iframe|object|embed|base|img)\b", markup)
    assert not re.findall(r"url\((?!\"?'?data:)|@import", markup)
    assert "default-src 'none'" in page and "Plotly.newPlot(container" in page


def test_the_page_of_a_run_holds_its_curves_and_asks_for_nothing(tmp_path: Path) -> None:
    run = _make_run(tmp_path / "<script>alert(1)<b>", ranks=2)
    _validate(run)
    page = write_page([run], tmp_path / "a.html").read_text()
    _no_reference(page)
    panels = _panels(page)
    for name in ("loss", "fape", "gradient norm", "lddt_ca", "share of wall time"):
        assert name in panels, name
    assert {"peak memory by rank", "data_wait by rank"} <= set(panels)
    # Terms that are zero throughout and metrics that were never finite have no panel.
    assert not {"violation", "tm_score"} & set(panels)
    assert "alert(1)&lt;b" in page and "&lt;b&gt;a&lt;/b&gt;" in page
    assert "<b>" not in page.partition("<script")[0]
    assert "<th>validation</th><td>lddt_ca 0.39, tm_score not finite after 40 steps</td>" in page
    assert "CA RMSD 1.7 Å" in page
    assert len(panels["loss"]["data"][0]["y"]) == 40
    (models,) = (panel["models"] for panel in panels.values() if "models" in panel)
    assert [model["name"] for model in models] == ["known", "first validation", "last validation"]
    assert [model["plddt"] for model in models] == [False, False, True]
    assert " N . ALA A 1 1 ? " in models[0]["cif"]  # residues are counted from 1


def test_a_plain_run_has_no_section_without_content(tmp_path: Path) -> None:
    page = write_page([_make_run(tmp_path / "a")], tmp_path / "a.html").read_text()
    for title in ("What went wrong", "Validation", "Structure", "Ranks"):
        assert f"<h2>{title}</h2>" not in page
    assert "operators" not in " ".join(_panels(page))


def test_the_page_says_what_went_wrong_and_how_to_look_at_it(tmp_path: Path) -> None:
    run = _make_run(tmp_path / "a")
    lines = [json.loads(line) for line in (run / STEPS).read_text().splitlines()]
    for line in lines[3:15]:
        line["finite"] = False
    (run / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_page([run], tmp_path / "a.html").read_text()
    assert "12 of 40 steps had no finite gradient and changed nothing: 3, 4, 5, 6" in page


def test_two_runs_share_each_panel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = PRESETS["tiny"]().train
    first = _make_run(tmp_path / "x" / "run")
    second = _make_run(
        tmp_path / "y" / "run", config=tiny.replace(seed=7, model={"c_m": 48}), ranks=2
    )
    out = tmp_path / "both.html"
    assert exit_code("report", str(first), str(second), "--html", str(out)) == 0
    assert str(out) in capsys.readouterr().out.replace("\n", "")
    page = out.read_text()
    _no_reference(page)
    # Two folders of one name are distinguished by their paths.
    drawn = _panels(page)["loss"]["data"]
    assert [line["name"] for line in drawn] == [str(first), str(second)]
    assert len({line["line"]["color"] for line in drawn}) == 2


def test_several_runs_without_a_page_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(_make_run(tmp_path / "a"))
    for more in ([], ["--html", "a.html", "--json"]):
        assert exit_code("report", run, run, *more) == 2
        assert "--html" in capsys.readouterr().err
