"""Every way to average a gradient: right, whole, and the same after a resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conftest import once_a_run
from tests.trainer.forked import run_ranks
from tests.trainer.gradients.gradient_ranks import CASES, RANKS, RUNS, one_rank
from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.trainer.gradients.exchange import host_groups
from evofeed.trainer.gradients.modes import density_at

WITH_RESIDUAL = [name for name in CASES if name not in ("none", "bf16", "hierarchical")]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    out = once_a_run("gradients", lambda to: run_ranks(RANKS, one_rank, to, folder=to / "logs"))
    return torch.load(out / "results.pt", weights_only=False)  # type: ignore[no-any-return]


def mean_state(layout: dict[str, Any], saved: dict[str, Tensor], role: str) -> Tensor:
    """Mean over hosts of their state, as long as the full buffer."""
    parts = len(layout["cuts"]) - 1
    rows = [saved[f"{role}.{rank}"] for rank in range(len(layout["lengths"]))]
    hosts = [torch.cat(rows[rank : rank + parts]) for rank in range(0, len(rows), parts)]
    return torch.stack(hosts).mean(0)


@pytest.mark.parametrize("locals_", [1, 2])
@pytest.mark.parametrize("mode", CASES)
def test_every_rank_gets_the_mean_and_nothing_of_it_is_lost(
    results: dict[str, Any], mode: str, locals_: int
) -> None:
    """An infinite gradient reaches all ranks and does not change the residual."""
    case, exact = results["hosts"][locals_][mode], results["hosts"][1]["none"]["sent"]
    assert case["same_everywhere"] and case["spread"] and case["untouched"]
    if mode not in WITH_RESIDUAL or mode == "int8":  # the others are far from the mean, by design
        apart = {"bf16": 0.008, "int8": 0.03}.get(mode, 1e-6)
        for ours, mean in zip(case["sent"], exact, strict=True):
            assert float((ours - mean).norm() / mean.norm()) < apart
    total = sum(case["sent"])
    if mode in WITH_RESIDUAL:
        residual = mean_state(case["layout"], case["saved"], "residual")
        total = total + residual
        assert float(residual.norm()) > 1e-3 * float(case["owed"].norm())
    if mode != "bf16":
        assert float((total - case["owed"]).norm() / case["owed"].norm()) < 1e-6


def test_fewer_bytes_go_between_hosts(results: dict[str, Any]) -> None:
    flat = {mode: case["bytes"] for mode, case in results["hosts"][1].items()}
    assert flat["bf16"] == flat["none"] / 2
    assert flat["int8"] < 0.27 * flat["none"]
    assert max(flat["powersgd"], flat["topk"]) < 0.5 * flat["none"]  # two of five steps warm up
    # A rank sends half of its host's gradient, once to the other host and once back.
    assert results["hosts"][2]["hierarchical"]["bytes"] < flat["none"] / 2


def test_powersgd_is_torchs(results: dict[str, Any]) -> None:
    for ours, theirs in zip(results["hosts"][1]["powersgd"]["sent"], results["torch"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_where_an_entry_was_sent_its_momentum_restarts(results: dict[str, Any]) -> None:
    saved = results["hosts"][1]["momentum"]["saved"]
    for rank in range(RANKS):
        momentum = saved[f"momentum.{rank}"]
        assert 0.02 <= float((momentum == 0).float().mean()) < 0.5 and momentum.any()


@pytest.mark.parametrize("name", RUNS)
def test_runs_learn_and_resume_bit_for_bit(results: dict[str, Any], name: str) -> None:
    losses = results["runs"][name]["losses"]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    exact = results["runs"]["none"]["losses"]
    assert sum(losses[-5:]) < 1.5 * sum(exact[-5:])
    assert results["runs"][name]["alike"] == [True] * RANKS


@pytest.mark.parametrize("name", [name for name in RUNS if name != "none"])
def test_other_hosts_and_other_modes_continue_with_the_same_mean(
    results: dict[str, Any], name: str
) -> None:
    """Two hosts of two ranks, then four of one, in every mode."""
    run = results["runs"][name]
    mean = mean_state(run["layout"], run["saved"], "residual")
    assert mean.any()
    torch.testing.assert_close(run["moved"]["left"], mean)
    for other in (other for other in RUNS if other != "none"):
        for rank in range(RANKS):
            torch.testing.assert_close(run["moved"][f"{other}.residual.{rank}"], mean)
    if name == "momentum":
        was = mean_state(run["layout"], run["saved"], "momentum")
        torch.testing.assert_close(run["moved"]["momentum.momentum.3"], was)


def test_density_falls_as_deep_gradient_compression_has_it() -> None:
    densities = [density_at(step, 0.001, 100) for step in (0, 24, 25, 50, 75, 99, 100)]
    assert densities == [1 / 4, 1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 256, 0.001]
    assert density_at(0, 0.5, 10) == 0.5 and density_at(0, 0.001, 0) == 0.001


def test_hosts_of_different_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(TrainerError, match="rank 2 of 3 is number 0 of 2 on its host"):
        host_groups(2, 3, torch.device("cpu"))
