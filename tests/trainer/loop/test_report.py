"""The run report: every figure there, parts that add up, a table and a picture."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error

import evofeed.kernels
from evofeed.base.errors import CheckpointError, InputError, TrainerError
from evofeed.cli import main
from evofeed.trainer.config import TrainConfig, save_config
from evofeed.trainer.log.runlog import STEPS, RunLog, StepTimes, forget_steps, read_steps
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.report.flops import count_step_flops
from evofeed.trainer.report.operators import Kernel, busy_share, group_kernels, group_of
from evofeed.trainer.report.run_report import make_report, plot_report, report_rows
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.settings import from_dict, load_config
from evofeed.trainer.run.train import run
from evofeed.viz import usual_top


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


def test_the_report_holds_the_six_figures(folder: Path) -> None:
    figures = make_report(folder)["figures"]
    assert figures["gpu_busy_share"] is None  # no GPU here, so none is given
    assert figures["iterations"] == 60
    step = figures["step_seconds"]
    assert 0 < step["p50"] <= step["p99"]
    assert 0 < figures["first_batch_seconds"] < figures["total_seconds"]
    assert len(figures["epoch_start_wait_seconds"]) == 2


def test_the_parts_add_up_to_the_wall_time_within_two_percent(folder: Path) -> None:
    breakdown = make_report(folder)["breakdown"]
    assert abs(breakdown["unaccounted_share"]) < 0.02
    for part in ("data_wait", "forward", "backward", "optimizer", "checkpoint"):
        assert breakdown["seconds"][part] > 0, part


def test_the_wait_for_data_is_one_figure_and_the_first_batch_another(folder: Path) -> None:
    report = make_report(folder)
    lines = [json.loads(line) for line in (folder / STEPS).read_text().splitlines()]
    waited = sum(line["seconds"]["data_wait"] for line in lines[1:])
    share = waited / report["breakdown"]["wall_seconds"]
    assert math.isclose(report["data_wait"]["share"], share)
    assert report["data_wait"]["share"] == report["breakdown"]["share"]["data_wait"]
    first = report["breakdown"]["seconds"]["first_batch"]
    assert math.isclose(first, lines[0]["seconds"]["data_wait"])


def test_flops_of_the_stand_in_are_counted_by_hand(folder: Path) -> None:
    flops = json.loads((folder / "run.json").read_text())["flops"]
    products = 2 * 3 * 4 * (8 * 16 + 16 * 8)
    assert flops["forward"] == products
    # Backward: weights of both layers, and the input of the second only.
    assert flops["forward_backward"] == products + products + 2 * 3 * 4 * 16 * 8


def test_operators_are_grouped_and_shares_add_up_to_one(folder: Path) -> None:
    groups = make_report(folder)["operators"]["groups"]
    assert "gemm" in groups
    assert math.isclose(sum(entry["share"] for entry in groups.values()), 1.0)


def test_the_report_prints_as_table_and_json_and_draws_a_picture(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "report.png"
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder), "--plot", str(picture)])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "step time p50 / p99" in printed
    last = make_report(folder)["loss"]["last_tenth_mean"]
    assert f"{last:.4g} over the last" in printed
    assert picture.stat().st_size > 10_000
    with pytest.raises(SystemExit):
        main(["report", str(folder), "--json"])
    assert json.loads(capsys.readouterr().out)["figures"]["iterations"] == 60


def test_a_run_that_was_stopped_early_says_by_what_and_what_to_do(folder: Path) -> None:
    report = make_report(folder)
    assert "stopped by" not in dict(report_rows(report))
    report["run"]["stopped_by"] = "SIGINT"
    assert dict(report_rows(report))["stopped by"] == "SIGINT, of 60 steps; --resume continues"


def test_what_was_not_measured_says_why(folder: Path) -> None:
    report = make_report(folder)
    assert dict(report_rows(report))["GPU busy share"] == "no GPU"
    assert dict(report_rows(report))["MFU"] == "peak of this device unknown"
    report["run"]["device"] = "NVIDIA H200"  # and too few steps for the profiler
    del report["speed"]["mfu"]
    assert dict(report_rows(report))["GPU busy share"] == "no step was profiled"
    assert dict(report_rows(report))["MFU"] == "not counted"


def test_a_validation_that_is_not_finite_is_reported_as_that(tmp_path: Path) -> None:
    config = TrainConfig(steps=2, precision="fp32", kernels="torch", validate_every=1)
    run(
        config, TinyModel(), squared_error, TinyLoader(), world=World(), out=tmp_path,
        validate=lambda: {"lddt_ca": math.nan, "tm_score": 0.5},
    )  # fmt: skip
    rows = dict(report_rows(make_report(tmp_path)))
    assert rows["validation"] == "lddt_ca not finite, tm_score 0.5 after 2 steps"
    assert plot_report(tmp_path, tmp_path / "run.png").stat().st_size > 10_000


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

    config = TrainConfig(steps=2, precision="fp32", kernels="torch")
    with pytest.raises(TrainerError, match=r"out of memory .*activation_checkpointing"):
        run(config, TinyModel(), greedy, TinyLoader(), world=World(), out=tmp_path)


def test_a_disk_that_is_full_is_reported_with_the_file(tmp_path: Path) -> None:
    (tmp_path / STEPS).symlink_to("/dev/full")
    with (
        pytest.raises(TrainerError, match=r"steps\.jsonl: cannot write it .*free space"),
        RunLog(tmp_path, steps=1) as log,
    ):
        log.times(StepTimes(step=0, seconds={"data_wait": 0.1}))


def test_a_folder_that_holds_a_run_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(TrainerError, match="--resume continues"):
        run(TrainConfig(), TinyModel(), squared_error, TinyLoader(), world=World(), out=folder)


def test_resuming_a_run_that_is_done_changes_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(folder.glob("*.json*"))}
    config = TrainConfig(steps=60, precision="fp32", kernels="torch")
    result = run(
        config, TinyModel(), squared_error, TinyLoader(), world=World(), out=folder, resume=True
    )
    assert result.step == 60 and not result.losses
    assert {path: path.read_bytes() for path in before} == before


def test_after_a_resume_times_are_of_the_new_steps_and_losses_of_all(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(folder, out)
    config = TrainConfig(steps=64, precision="fp32", kernels="torch", validate_every=2)
    before = read_steps(out)
    (out / STEPS).write_text(
        "".join(json.dumps(line | {"metrics": {"lddt_ca": 0.5}}) + "\n" for line in before)
    )
    run(
        config, TinyModel(), squared_error, TinyLoader(), world=World(), out=out, resume=True,
        validate=lambda: {"lddt_ca": 0.75},
    )  # fmt: skip
    report = make_report(out)
    assert report["figures"]["step_seconds"]["counted_steps"] == 2
    assert report["loss"]["first_tenth_mean"] == make_report(folder)["loss"]["first_tenth_mean"]
    scores = {entry["step"]: entry["lddt_ca"] for entry in report["validation"]}
    assert scores == dict.fromkeys(range(1, 61), 0.5) | {62: 0.75, 64: 0.75}


def test_lines_of_steps_that_are_done_again_are_forgotten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text((folder / "steps.jsonl").read_text())
    forget_steps(tmp_path, 25)
    assert [line["step"] for line in read_steps(tmp_path)] == list(range(25))


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
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path)])
    assert ended.value.code == 1
    assert "no run here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "gemm"),
        ("nvjet_tst_128x256_64x4_TNT", "gemm"),
        ("void at::native::vectorized_layer_norm_kernel<float>", "norm"),
        ("void (anonymous namespace)::softmax_warp_forward<float>", "attention"),
        ("void at::native::vectorized_elementwise_kernel<4>", "elementwise"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
        ("Memcpy HtoD (Pinned -> Device)", "memory"),
        ("something_new", "other"),
        ("norm_backward_kernel", "norm"),
        ("softmax_backward_kernel", "attention"),
        ("backward_dkv_kernel", "attention"),
        ("backward_kernel", "attention"),
        (
            "void at::native::elementwise_kernel<neg_kernel_cuda()::{lambda(float)#1}>",
            "elementwise",
        ),
        (
            "void at::native::reduce_kernel<func_wrapper_t<float, sum_functor::{lambda}>>",
            "elementwise",
        ),
        ("void lamb_stage_1_kernel<float>", "optimizer"),
        ("triangle_out_grad_kernel", "gemm"),
    ],
)
def test_kernels_find_their_group_by_name(name: str, group: str) -> None:
    assert group_of(name) == group


def test_every_kernel_of_our_own_has_a_group() -> None:
    folder = Path(str(evofeed.kernels.__file__)).parent
    text = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    names = re.findall(r"@(?:triton|gluon)\.jit.*?\ndef (\w+_kernel)\(", text)
    assert len(names) > 20
    assert [name for name in names if group_of(name) == "other"] == []


def test_overlapping_kernels_count_once_in_the_busy_share() -> None:
    kernels = [Kernel("a", 7, 0, 10), Kernel("b", 8, 5, 10), Kernel("c", 7, 20, 10)]
    assert busy_share(kernels) == pytest.approx(25 / 30)


def test_markers_tell_the_optimizers_kernels_and_other_streams_are_the_loaders() -> None:
    kernels = [
        Kernel("spin_kernel", 7, 0, 1),
        Kernel("elementwise", 7, 1, 10),
        Kernel("elementwise", 9, 2, 10),
        Kernel("Memcpy HtoD (Pinned -> Device)", 9, 2, 20),
        Kernel("spin_kernel", 7, 12, 1),
        Kernel("elementwise", 7, 13, 30),
    ]
    groups = group_kernels(kernels, ["forward", "optimizer"])
    assert groups["elementwise"]["seconds"] == pytest.approx(10e-9)
    assert groups["featurize"]["seconds"] == pytest.approx(10e-9)
    assert groups["h2d"]["seconds"] == pytest.approx(20e-9)
    assert groups["optimizer"] == {"seconds": pytest.approx(30e-9), "launches": 1}


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_written_as_yaml_reads_back_equal(tmp_path: Path, name: str) -> None:
    config = PRESETS[name]().train.replace(model={"c_m": 64}, seed=3)
    save_config(config, tmp_path / "run.yaml")
    assert load_config(str(tmp_path / "run.yaml")) == config


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"stepz": 3}, "no setting stepz"),
        ({"optim": {"lr": 1}}, r"no setting optim\.lr"),
        ({"precision": "fp8"}, "fp8"),
        ({"steps": 0}, "at least 1"),
        ({"preset": "huge"}, "huge"),
        ({"steps": "abc"}, "steps is 'abc' and must be a whole number"),
        ({"steps": 1.5}, "must be a whole number"),
        ({"steps": None}, "must be a whole number"),
        ({"deterministic": "yes, please"}, "must be true or false"),
        ({"optim": {"learning_rate": "fast"}}, r"optim\.learning_rate is 'fast'"),
        ({"optim": {"clip": "hard"}}, r"optim: clip is 'hard'"),
        ({"optim": 3}, "optim is 3 and must be names and values"),
        ({"model": 3}, "model is 3 and must be names and values"),
        ({"shares": 0.5}, "shares is 0.5 and must be a list"),
        ({"shares": ["half"]}, r"shares\[0\] is 'half' and must be a number"),
        ({"shares": [-1]}, "must be above 0"),
        ({"checkpoint_every": -2}, "checkpoint_every is -2, but must be at least 0"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        from_dict(values)


def test_a_rate_may_be_written_as_people_do(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("preset: tiny\noptim: {learning_rate: 5e-4, max_norm: 1}\n")
    optim = load_config(str(path)).optim
    assert (optim.learning_rate, optim.max_norm) == (5e-4, 1.0)


def test_a_broken_yaml_file_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("preset: tiny\nsteps: [1\n")
    with pytest.raises(InputError, match=r"run\.yaml:3"):
        load_config(str(path))


def test_a_file_that_is_no_text_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"\x80\x02\xff\xfe")
    with pytest.raises(InputError, match=r"model\.pt: not text"):
        load_config(str(path))


def test_one_slow_step_does_not_flatten_the_picture() -> None:
    times = np.full(40, 20.0)
    times[0] = 3500.0  # a compilation, milliseconds
    assert 20 < usual_top(times) < 100
    assert usual_top(np.linspace(10, 20, 40)) > 20
    assert usual_top(np.zeros(1)) > 0
