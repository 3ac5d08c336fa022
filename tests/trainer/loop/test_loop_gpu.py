"""Tests that need a GPU: the clock by events, steps as CUDA graphs, resume, the profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.report.run_report import make_report
from evofeed.trainer.run import graphs
from evofeed.trainer.run.graphs import Replay
from evofeed.trainer.run.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


def config(steps: int, **changes: Any) -> TrainConfig:
    base = PRESETS["tiny"]().train.replace(
        steps=steps, profile_steps=0,
        optim=OptimConfig(warmup_steps=4, learning_rate=2e-3, ema_decay=0.9),
    )  # fmt: skip
    return base.replace(**changes)


def test_the_parts_add_up_and_the_profiler_sees_kernels(tiny_dataset: str, tmp_path: Path) -> None:
    train(config(30, profile_steps=3), tiny_dataset, out=tmp_path)
    report = make_report(tmp_path)
    assert abs(report["breakdown"]["unaccounted_share"]) < 0.02
    assert 0 < report["figures"]["gpu_busy_share"] <= 1
    assert {"gemm", "optimizer", "featurize"} <= set(report["operators"]["groups"])


@pytest.mark.parametrize(("precision", "kernels"), [("fp32", "torch"), ("bf16", "fused")])
def test_a_resumed_run_continues_within_a_millionth(
    tiny_dataset: str, tmp_path: Path, precision: str, kernels: str
) -> None:
    def losses(steps: int, name: str, **changes: Any) -> list[float]:
        settings = config(steps, precision=precision, kernels=kernels)
        return train(settings, tiny_dataset, out=tmp_path / name, **changes).losses

    expected = pytest.approx(losses(8, "whole"), rel=1e-6)
    assert losses(4, "parts") + losses(8, "parts", resume=True) == expected


@pytest.mark.parametrize(
    ("precision", "kernels"), [("fp32", "torch"), ("fp32", "fused"), ("bf16", "fused")]
)
def test_steps_as_cuda_graphs_are_the_same_steps_whatever_the_recycles(
    tiny_dataset: str, tmp_path: Path, precision: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = []
    recorded = graphs._Recording.__call__
    monkeypatch.setattr(
        graphs._Recording, "__call__", lambda *args: replays.append(1) or recorded(*args)
    )
    settings = config(10, precision=precision, kernels=kernels, loader={"max_recycling_iters": 3})
    with monkeypatch.context() as patch:  # compiled as the recorded steps are, which draws its own
        patch.setattr(graphs, "_MOST_RECORDINGS", 0)
        eager = train(settings, tiny_dataset, out=tmp_path / "eager")
    assert not replays
    graphed = train(settings, tiny_dataset, out=tmp_path / "graph")
    assert len({line["recycles"] for line in read_steps(tmp_path / "graph")[2:]}) > 2
    assert graphed.losses == pytest.approx(eager.losses, rel=1e-6)
    assert len(replays) == 9


def test_what_cannot_be_recorded_runs_eagerly_with_the_same_random_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    layer = torch.nn.Linear(8, 8, device="cuda")

    def forward(batch: dict[str, Tensor], previous: Any) -> tuple[Tensor, Tensor]:
        loss = torch.dropout(layer(batch["x"]), 0.5, train=True).square().sum()
        assert loss.item() > 0  # waits, which nothing recorded may
        return loss, loss.detach().reshape(1)

    replay, batch, losses = Replay(forward), {"x": torch.randn(4, 8, device="cuda")}, set()
    for _ in range(4):
        torch.manual_seed(3)
        losses.add(float(replay(batch, lambda: None)))
    assert len(losses) == 1
    assert replay.why_not in caplog.text and "no CUDA graphs" in caplog.text


def test_recomputed_activations_recorded_or_not_are_the_same_steps(
    tiny_dataset: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(5, model={"activation_checkpointing": True})
    eager = train(settings.replace(cuda_graphs=False), tiny_dataset, out=tmp_path / "eager")
    graphed = train(settings, tiny_dataset, out=tmp_path / "graph")
    print(caplog.text)  # why not, if so
    assert graphed.losses == pytest.approx(eager.losses, rel=1e-6)


def test_bf16_on_fused_kernels_follows_fp32_on_plain_ones(
    tiny_dataset: str, tmp_path: Path
) -> None:
    plain = train(config(6), tiny_dataset, out=tmp_path / "plain").losses
    fast = config(6, precision="bf16", kernels="fused")
    assert train(fast, tiny_dataset, out=tmp_path / "fast").losses == pytest.approx(plain, rel=0.03)
