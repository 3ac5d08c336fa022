"""Complexes of a dataset through loader, loop, validation and prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.conftest import exit_code
from tests.loader.complexes import three_complexes

from evofeed.protein.features import SUPERVISED
from evofeed.store import Dataset
from evofeed.trainer import tiny_multimer
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.losses.chain_labels import GROUND_TRUTH
from evofeed.trainer.run.build import build_loader
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.stream import BatchStream
from evofeed.trainer.run.train import train

pytestmark = pytest.mark.system  # its loaders read in a process

CONFIG: TrainConfig = tiny_multimer().train.replace(
    steps=1, validate_every=1, validate_batches=1, profile_steps=0, loader={"crop_size": 32},
    model={"evoformer": {"no_blocks": 1}, "structure_module": {"no_blocks": 1}},
)  # fmt: skip
CPU = World(device=torch.device("cpu"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return three_complexes(tmp_path_factory.mktemp("complexes"))


def test_the_truth_of_a_whole_complex_has_every_label(dataset: Dataset) -> None:
    loader = build_loader(CONFIG, dataset.uri, CPU)
    stream = BatchStream(loader)
    batch = next(stream)
    stream.close()
    assert {GROUND_TRUTH + name for name in SUPERVISED} <= set(batch)


def test_a_run_trains_on_complexes_and_its_weights_predict_one(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    result = train(CONFIG, dataset.uri, out=out, validation=dataset.uri)
    assert result.step == 1 and not result.skipped
    scores = [line["metrics"] for line in read_steps(out) if "metrics" in line]
    assert {"dockq", "iptm", "lddt_ca"} <= set(scores[-1])
    command = ["predict", dataset.uri, "1abc", "--checkpoint", str(out), "--recycles", "0"]
    cif = tmp_path / "1abc.cif"
    assert exit_code(*command, "--out", str(cif), "--json", "--html") == 0
    page = cif.with_suffix(".html").read_text()
    assert "known structure" in page and "predicted aligned error" in page
    assert page.count("data-alignment=") == 2  # of its sequences
    facts = json.loads(capsys.readouterr().out)
    assert facts["residues"] == 2 * 18 + 11 and 0 <= facts["iptm"] <= 1
    rows = [row.split() for row in cif.read_text().splitlines() if row.startswith("ATOM")]
    assert list(dict.fromkeys(row[6] for row in rows)) == ["H", "L", "M"]  # author's
    command[2] = "1abc_A"
    assert exit_code(*command, "--out", str(cif)) == 1
    assert "model of complexes" in capsys.readouterr().err
