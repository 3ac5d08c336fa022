"""Training runs on the pages: who sees them, what they show, and what cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.service.conftest import Start
from tests.service.test_forms import Browser

from evofeed.errors import ServiceError
from evofeed.run_files import RUN, STEPS, STRUCTURE, parse_steps
from evofeed.service import Client, runs
from evofeed.service.access.auth import create_token

PNG = b"\x89PNG\r\n\x1a\n not much of one"


def make_run(folder: Path, loss: float = 9.0) -> Path:
    folder.mkdir(parents=True)
    lines = [
        {
            "step": i,
            "loss": loss - i / 10,
            "norm": 1.0,
            "rate": 1e-3,
            "terms": {"fape": 2.0 - i / 50},
        }
        for i in range(30)
    ]
    lines[-1]["metrics"] = {"lddt_ca": 0.4}
    (folder / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3')
    (folder / RUN).write_text(
        json.dumps({"device": "CPU", "steps": 30, "config": {"preset": "tiny"}})
    )
    true = np.cumsum(np.random.default_rng(0).normal(size=(20, 3)), axis=0)
    np.savez(folder / STRUCTURE, true=true, pred=true + 1.0)
    (folder / "curves.png").write_bytes(PNG)
    return folder


def register(browser: Browser, name: str, folder: Path, dataset: str = "demo") -> None:
    answer = browser.send("/ui/runs", name=name, folder=str(folder), dataset=dataset)
    assert answer.headers.get("location") == f"/ui/runs/{name}", answer.text


def test_a_run_is_shown_alone_and_beside_another(start: Start, folder, tmp_path) -> None:
    browser = Browser(start(datasets={"demo": str(folder[0])}))
    register(browser, "first", make_run(tmp_path / "a"))
    register(browser, "second", make_run(tmp_path / "b", 5.0))
    page = browser.get("/ui/runs/first").text
    for word in ("loss", "fape", "lddt_ca", "CA RMSD 1.7", "curves.png", "tiny"):
        assert word in page, word
    assert page.count('class="run1"') == 0
    both = browser.get("/ui/runs/first?beside=second").text
    panel = both.split("<figcaption>loss ")[1].split("</figure>")[0]
    assert 'g class="run0"' in panel and 'g class="run1"' in panel
    assert browser.get("/ui/runs/first/pictures/curves.png").content == PNG
    assert (
        browser.send(
            "/ui/runs", name="first", folder=str(tmp_path / "a"), dataset="demo"
        ).status_code
        == 409
    )
    assert (
        browser.send("/ui/runs", name="x", folder=str(tmp_path), dataset="demo").status_code == 422
    )
    assert browser.send("/ui/runs/first/forget").status_code == 303
    assert browser.get("/ui/runs/first").status_code == 404
    assert (tmp_path / "a" / STEPS).is_file()


def test_a_run_is_seen_by_those_who_see_its_dataset_and_lies_in_an_open_place(
    start: Start, folder, tmp_path
) -> None:
    roots = (str(tmp_path / "open"),)
    client = start(auth="on", datasets={"demo": str(folder[0])}, input_roots=roots)
    database = start.database()
    tokens = {
        name: create_token(database, label="x", scopes=["read", "publish"], datasets=[name])[1]
        for name in ("demo", "other")
    }
    browser = Browser(client, tokens["demo"])
    register(browser, "mine", make_run(tmp_path / "open" / "a"))
    closed = make_run(tmp_path / "closed")
    assert browser.send("/ui/runs", name="y", folder=str(closed), dataset="demo").status_code == 403
    theirs = Browser(client, tokens["other"])
    assert "mine" not in theirs.get("/ui/runs").text
    for path in ("/ui/runs/mine", "/ui/runs/mine/pictures/curves.png"):
        assert theirs.get(path).status_code == 404
    assert client.post("/ui/runs/mine/forget", data={"word": "x"}).status_code == 403


def test_runs_over_the_api(start: Start, folder, tmp_path) -> None:
    client = start(datasets={"demo": str(folder[0])})
    run = make_run(tmp_path / "a")
    with Client(str(client.base_url)) as api:
        made = api.register_run("first", "demo", str(run), "the first")
        assert (made.name, made.dataset, made.folder) == ("first", "demo", str(run))
        assert api.runs() == [made]
        steps, losses = api.run_curves("first")["loss"]
        assert len(steps) == len(losses) > 0
        with pytest.raises(ServiceError, match="exists"):
            api.register_run("first", "demo", str(run))
        with pytest.raises(ServiceError, match="is a path"):
            api.register_run("far", "demo", "s3://bucket/run")
        api.forget_run("first")
        assert api.runs() == [] and (run / STEPS).is_file()
        with pytest.raises(ServiceError, match="no run"):
            api.run_curves("first")


def test_nothing_but_regular_files_of_the_folder_is_read(start: Start, folder, tmp_path) -> None:
    browser = Browser(start(datasets={"demo": str(folder[0])}))
    run = make_run(tmp_path / "a")
    register(browser, "odd", run)
    secret = tmp_path / "secret.png"
    secret.write_bytes(PNG + b"secret")
    (run / "link.png").symlink_to(secret)
    (run / "text.png").write_text("no picture")
    os.mkfifo(run / "pipe.png")
    for name in ("link.png", "text.png", "pipe.png", "run.json", "..%2fsecret.png", "none.png"):
        assert browser.get(f"/ui/runs/odd/pictures/{name}").status_code == 404, name
    for file in (STRUCTURE, RUN):
        (run / file).unlink()
        (run / file).write_bytes(b"PK\x03\x04 or not")
    (run / STEPS).write_text(
        '[]\n{"step": "x"}\n{"step": 1e999}\n{"step": 4, "loss": "NaN", "terms": 3}\n'
    )
    assert browser.get("/ui/runs/odd").status_code == 200
    (run / STEPS).unlink()
    assert browser.get("/ui/runs/odd").status_code == 404


def test_lines_of_a_run_are_read_as_far_as_they_go() -> None:
    assert parse_steps(
        '{"step": 2}\n{"step": 1, "loss": 3}\n{"step": 1, "loss": 4}\nnull\n{"st'
    ) == [
        {"step": 1, "loss": 4},
        {"step": 2},
    ]


@pytest.mark.parametrize("value", [True, "1", None, 10**400, float("inf"), 1e300])
def test_what_is_no_number_is_a_gap(value: object) -> None:
    assert runs._number(value) is None


def test_a_prediction_of_a_run_stands_beside_the_true_structure(start: Start, tmp_path) -> None:
    from tests.test_features import tiny_record

    from evofeed.chain_files import to_cif
    from evofeed.store import DatasetWriter

    record = tiny_record()
    L = record.num_res
    mask = np.zeros([L, 37], np.float32)
    mask[:, 1] = 1
    positions = np.zeros([L, 37, 3], np.float32)
    positions[:, 1] = np.cumsum(np.random.default_rng(1).normal(size=(L, 3)) * 2, axis=0)
    positions = positions.round(3).astype(np.float32)
    changes = {
        "all_atom_positions": positions,
        "all_atom_mask": mask.astype(record.template_all_atom_mask.dtype),
    }
    record = record.replace(**changes).validate()
    writer = DatasetWriter(str(tmp_path / "d"))
    writer.add(record)
    writer.commit("main")
    browser = Browser(start(datasets={"demo": str(tmp_path / "d")}))
    run = make_run(tmp_path / "a")
    register(browser, "first", run)
    page = f"/ui/datasets/demo/snapshots/main/chains/{record.chain_id}"
    assert "predicted by" not in browser.get(page).text
    turned = positions @ np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 1]], np.float32) + 5
    (run / "predictions").mkdir()
    text = to_cif(record.replace(all_atom_positions=turned))
    (run / "predictions" / f"{record.chain_id}.cif").write_text(text)
    shown = browser.get(page).text
    assert "predicted by first" in shown and "CA RMSD 0.0 Å" in shown
    (run / "predictions" / f"{record.chain_id}.cif").write_text("loop_\n_atom_site.id\nATOM\n")
    assert browser.get(page).status_code == 200
