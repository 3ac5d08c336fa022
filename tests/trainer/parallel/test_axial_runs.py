"""Runs whose ranks share samples against a run of one rank."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import exit_code
from tests.trainer.parallel.ranks import STEPS, config

from evofeed.base.run_files import RUN
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.run.checkpoint import newest_checkpoint
from evofeed.trainer.run.train import train


def test_two_times_two_ranks_then_four_together_are_one_rank(
    four_ranks: Path, tiny_dataset: str, tmp_path: Path
) -> None:
    """Two ranks a sample, a checkpoint, then four a sample: the same samples, dropout, weights."""
    shared, alone = four_ranks / "run", tmp_path
    train(
        config(accumulate=2, steps=STEPS, validate_every=STEPS), tiny_dataset, out=alone,
        validation=tiny_dataset, device="cpu",
    )  # fmt: skip
    ours, theirs = read_steps(shared), read_steps(alone)
    assert len(ours) == len(theirs) == STEPS
    for name in ("loss", "norm"):
        expected = [line[name] for line in theirs]
        assert [line[name] for line in ours] == pytest.approx(expected, rel=1e-4)
    assert ours[-1]["metrics"] == pytest.approx(theirs[-1]["metrics"], rel=1e-3, abs=1e-4)
    one, other = (newest_checkpoint(folder / "checkpoints") for folder in (alone, shared))
    assert one is not None and other is not None
    assert one.state["loader"] == other.state["loader"]
    facts = json.loads((shared / RUN).read_text())
    assert facts["samples_per_step"] == 2 and facts["world_size"] == 4


def test_ranks_predict_a_chain_together(
    four_ranks: Path, tiny_dataset: str, tmp_path: Path
) -> None:
    (shared,) = four_ranks.glob("*.pdb")
    alone = tmp_path / shared.name
    chain, checkpoint = shared.stem, str(four_ranks / "run")
    words = ["predict", tiny_dataset, chain, "--checkpoint", checkpoint, "--device", "cpu"]
    assert exit_code(*words, "--out", str(alone)) == 0
    ours, theirs = (
        np.array([[float(line[n : n + 8]) for n in (30, 38, 46)] for line in lines])
        for lines in (_atoms(shared), _atoms(alone))
    )
    assert len(ours) > 50 and np.abs(ours - theirs).max() < 0.01


def _atoms(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("ATOM")]


def test_an_axis_without_ranks_for_it_is_refused(
    tiny_dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("preset: tiny\naxial: 2\n")
    words = ["train", str(run), "--dataset", tiny_dataset, "--out", str(tmp_path / "run")]
    assert exit_code(*words) == 1
    assert "axial is 2, which does not divide 1 rank: use one of 1, or" in capsys.readouterr().err
