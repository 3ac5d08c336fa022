"""The run report: all figures, parts that add up, a table and a page; and the boards."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.conftest import exit_code
from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error

from evofeed.base.errors import CheckpointError, TrainerError
from evofeed.base.run_files import STEPS
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.log.runlog import RunLog, read_steps
from evofeed.trainer.report.flops import count_step_flops
from evofeed.trainer.report.operators import group_of
from evofeed.trainer.report.run_report import REPORT, make_report, report_rows, write_report
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.result import TrainResult
from evofeed.trainer.run.train import run

RUN_OPTIONS = "resume", "validate", "wandb", "tensorboard"


def _run(out: Path, steps: int, *, loss: Any = squared_error, **options: Any) -> TrainResult:
    """A run of the stand-in model; options are of its configuration, or of `run`."""
    ours = {name: options.pop(name) for name in RUN_OPTIONS if name in options}
    usual = {"precision": "fp32", "kernels": "torch"}
    config = TrainConfig(steps=steps, **usual | options)
    return run(config, TinyModel(), loss, TinyLoader(), world=World(), out=out, **ours)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    config = TrainConfig(steps=60, precision="fp32", kernels="torch", checkpoint_every=25)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", time.process_time)  # other processes do not count
        run(
            config, TinyModel(), squared_error, TinyLoader(per_epoch=20), world=World(), out=out,
            count_flops=lambda batch: count_step_flops(TinyModel, batch),
        )  # fmt: skip
    return out


def test_the_report_holds_the_six_figures_and_parts_that_add_up(folder: Path) -> None:
    report = make_report(folder)
    figures, breakdown = report["figures"], report["breakdown"]
    assert figures["gpu_busy_share"] is None  # no GPU here, so none is given
    assert figures["iterations"] == 60
    step = figures["step_seconds"]
    assert 0 < step["p50"] <= step["p99"]
    assert 0 < figures["first_batch_seconds"] < figures["total_seconds"]
    assert len(figures["epoch_start_wait_seconds"]) == 2
    assert abs(breakdown["unaccounted_share"]) < 0.02
    for part in ("data_wait", "forward", "backward", "optimizer", "checkpoint", "first_batch"):
        assert breakdown["seconds"][part] > 0, part
    waited = sum(line["seconds"]["data_wait"] for line in read_steps(folder)[1:])
    share = waited / breakdown["wall_seconds"]  # the first batch is a separate figure
    assert math.isclose(report["data_wait"]["share"], share)
    groups = report["operators"]["groups"]
    assert "gemm" in groups and math.isclose(sum(entry["share"] for entry in groups.values()), 1.0)


def test_what_was_not_measured_or_ended_early_says_why(folder: Path) -> None:
    report = make_report(folder)
    rows = dict(report_rows(report))
    assert "stopped by" not in rows
    assert (rows["GPU busy share"], rows["MFU"]) == ("no GPU", "peak of this device unknown")
    report["run"] |= {"device": "NVIDIA H200", "stopped_by": "SIGINT"}
    report["figures"]["overflows"] = [0, 1]
    del report["speed"]["mfu"]  # too few steps for the profiler
    rows = dict(report_rows(report))
    assert (rows["GPU busy share"], rows["MFU"]) == ("no step was profiled", "not counted")
    assert rows["iterations"] == "60, 0 skipped, 2 overflowed in float16"
    assert rows["stopped by"] == "SIGINT, of 60 steps; --resume continues"


def test_flops_of_the_stand_in_are_counted_by_hand(folder: Path) -> None:
    flops = json.loads((folder / "run.json").read_text())["flops"]
    products = 2 * 3 * 4 * (8 * 16 + 16 * 8)
    assert flops["forward"] == products
    # Backward: weights of both layers, and the input of the second only.
    assert flops["forward_backward"] == products + products + 2 * 3 * 4 * 16 * 8


def test_the_report_prints_as_table_and_json_and_writes_a_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert exit_code("report", str(folder), "--html", str(page)) == 0
    printed = capsys.readouterr().out
    assert "step time p50 / p99" in printed
    last = make_report(folder)["loss"]["last_tenth_mean"]
    assert f"{last:.4g} over the last" in printed
    assert "Where the time went" in page.read_text()
    exit_code("report", str(folder), "--json")
    assert json.loads(capsys.readouterr().out)["figures"]["iterations"] == 60


def test_a_validation_that_is_not_finite_is_reported_as_that(tmp_path: Path) -> None:
    metrics = {"lddt_ca": math.nan, "tm_score": 0.5}
    _run(tmp_path, 2, validate_every=1, validate=lambda: metrics)
    rows = dict(report_rows(make_report(tmp_path)))
    assert rows["validation"] == "lddt_ca not finite, tm_score 0.5 after 2 steps"


def test_a_resume_that_does_not_fit_leaves_the_configuration_of_the_run(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(folder, out)
    before = (out / "config.yaml").read_bytes()
    model, another = TinyModel(), TrainConfig(steps=99, precision="fp32", kernels="torch")
    model.second = torch.nn.Linear(16, 9)
    with pytest.raises(CheckpointError, match="second"):
        run(another, model, squared_error, TinyLoader(), world=World(), out=out, resume=True)
    assert (out / "config.yaml").read_bytes() == before


def test_out_of_memory_says_what_to_change(tmp_path: Path) -> None:
    def greedy(outputs: Any, batch: Any) -> Any:
        return torch.empty(1 << 60).sum(), {}

    with pytest.raises(TrainerError, match=r"out of memory .*activation_checkpointing"):
        _run(tmp_path, 2, loss=greedy)


def test_a_disk_that_is_full_is_reported_with_the_file(tmp_path: Path) -> None:
    (tmp_path / STEPS).symlink_to("/dev/full")
    with (
        pytest.raises(TrainerError, match=r"steps\.jsonl: cannot write it .*free space"),
        RunLog(tmp_path, steps=1) as log,
    ):
        log.times(0, {"data_wait": 0.1})


def test_a_disk_that_fills_leaves_no_half_of_a_report_and_no_run_that_never_began(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(folder, tmp_path / "reported"))
    before = write_report(out)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: Path("/dev/full").write_text("x"))
        with pytest.raises(OSError, match=rf"No space left.*{out}/report\.json"):
            write_report(out)
        with pytest.raises(OSError, match=r"No space left.*run/config\.yaml"):
            _run(tmp_path / "run", 1)
    assert json.loads((out / REPORT).read_text()) == before
    assert _run(tmp_path / "run", 1).step == 1


def test_a_folder_that_holds_a_run_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(TrainerError, match="--resume continues"):
        _run(folder, 60)


def test_resuming_a_run_that_is_done_changes_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(folder.glob("*.json*"))}
    result = _run(folder, 60, resume=True)
    assert result.step == 60 and not result.losses
    assert {path: path.read_bytes() for path in before} == before


def test_after_a_resume_times_are_of_the_new_steps_and_losses_of_all(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(folder, out)
    before = read_steps(out)
    (out / STEPS).write_text(
        "".join(json.dumps(line | {"metrics": {"lddt_ca": 0.5}}) + "\n" for line in before)
    )
    _run(out, 64, validate_every=2, resume=True, validate=lambda: {"lddt_ca": 0.75})
    report = make_report(out)
    assert [line["step"] for line in read_steps(out)] == list(range(64))
    assert report["figures"]["step_seconds"]["counted_steps"] == 2
    assert report["loss"]["first_tenth_mean"] == make_report(folder)["loss"]["first_tenth_mean"]
    scores = {entry["step"]: entry["lddt_ca"] for entry in report["validation"]}
    assert scores == dict.fromkeys(range(1, 61), 0.5) | {62: 0.75, 64: 0.75}


def test_a_run_that_was_killed_can_be_reported_on(folder: Path, tmp_path: Path) -> None:
    facts = json.loads((folder / "run.json").read_text())
    early = ("seconds", "steps", "skipped", "stopped_by", "operators", "loader", "flops")
    for name in early:  # written only at the end
        del facts[name]
    (tmp_path / "run.json").write_text(json.dumps(facts))
    lines = (folder / "steps.jsonl").read_text().splitlines()
    (tmp_path / "steps.jsonl").write_text("\n".join([*lines[:33], lines[33][:20]]))
    report = make_report(tmp_path)
    assert report["figures"]["iterations"] == 33
    assert report["run"]["stopped_by"] == "not finished"


def test_a_folder_without_a_run_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("report", str(tmp_path)) == 1
    assert "no run here" in capsys.readouterr().err


def test_kernels_find_their_group_by_name() -> None:
    for name, group in {
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>": "gemm",
        "void at::native::vectorized_layer_norm_kernel<float>": "norm",
        "backward_dkv_kernel": "attention",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "communication",
        "Memcpy HtoD (Pinned -> Device)": "memory",
        "void at::native::elementwise_kernel<neg_kernel_cuda()::{lambda(float)#1}>": "elementwise",
        "void lamb_stage_1_kernel<float>": "optimizer",
        "triangle_out_grad_kernel": "gemm",
        "something_new": "elementwise",
    }.items():
        assert group_of(name) == group, name


class Wandb:
    """Replaces the package: keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def init(self, **options: Any) -> Any:
        self.calls.append(options)
        return SimpleNamespace(
            id=options["id"] or "abc123",
            log=lambda values, step: self.logged.append((step, values)),
            finish=self._finish,
        )

    def _finish(self) -> None:
        self.finished += 1


def test_weights_and_biases_gets_every_step_and_a_resumed_run_continues_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    _run(tmp_path / "a", 3, wandb="folding")
    assert wandb.calls[0]["project"] == "folding" and wandb.calls[0]["name"] == "a"
    assert wandb.calls[0]["config"]["config"]["steps"] == 3
    assert [step for step, _ in wandb.logged] == [0, 1, 2]
    expected = {"train/loss", "train/norm", "train/samples_per_second", "time/data_wait_share"}
    assert all(expected <= values.keys() for _, values in wandb.logged)
    _run(tmp_path / "a", 5, wandb="folding", resume=True)
    assert wandb.calls[1]["id"] == "abc123"
    assert [step for step, _ in wandb.logged] == [0, 1, 2, 3, 4]
    assert wandb.finished == 2


def test_a_board_that_is_not_installed_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: dict[str, dict[str, Any]] = {
        "wandb": {"wandb": "folding"}, "torch.utils.tensorboard": {"tensorboard": True},
    }  # fmt: skip
    for package, options in missing.items():
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(TrainerError, match="pip install"):
            _run(tmp_path, 3, **options)
    _run(tmp_path / "without", 3)
