"""Checkpoints are complete or absent, and their errors name what does not fit."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.trainer.forked import fork
from torch import nn

from evofeed.base.errors import CheckpointError
from evofeed.trainer.config import OptimConfig
from evofeed.trainer.run import checkpoint
from evofeed.trainer.run.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    checkpoint_in,
    newest_checkpoint,
    read_checkpoint,
    restore,
)
from evofeed.trainer.run.flat import FlatOptimizer


def optimizer(width: int = 3, seed: int = 0) -> FlatOptimizer:
    torch.manual_seed(seed)
    flat = FlatOptimizer(nn.Linear(4, width), OptimConfig())
    for role, buffer in flat.state().items():
        for _, view in flat.views(buffer):
            view.copy_(torch.randn(view.shape))
        assert buffer.any(), role
    return flat


def save(folder: Path, *steps: int, keep: int = 3) -> None:
    writer = CheckpointWriter(folder, keep=keep)
    for step in steps:
        writer.save(optimizer(seed=step), step, {"loader": {"position": step}})
    writer.wait()


def newest(folder: Path) -> Checkpoint:
    newest_complete = newest_checkpoint(folder)
    assert newest_complete is not None
    return newest_complete


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path, 7)
    newest_complete, flat = newest(tmp_path), optimizer(seed=99)
    restore(newest_complete, flat)
    assert newest_complete.step == 7 and newest_complete.state == {"loader": {"position": 7}}
    for role, buffer in optimizer(seed=7).state().items():
        assert torch.equal(flat.state()[role], buffer), role


def test_the_newest_is_picked_and_only_some_are_kept(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4, 5, keep=2)
    assert newest(tmp_path).step == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000004", "step_00000005"]


@pytest.mark.parametrize(
    ("name", "damage"), [("model", "gone"), ("ema", "short"), ("optimizer", "flipped")]
)
def test_a_damaged_checkpoint_is_skipped_and_one_line_says_why(
    tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1, 2)
    file = tmp_path / "step_00000002" / f"{name}.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    else:
        content[-5] ^= 1
        file.write_bytes(content if damage == "flipped" else content[:-1])
    with pytest.raises(CheckpointError, match=f"{name}.safetensors: damaged"):
        read_checkpoint(file.parent)
    assert newest(tmp_path).step == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"step_00000002/{name}.safetensors" in line and line.endswith("; step 1 is used")


@pytest.mark.parametrize("text", ["", "{", "{}", '{"step": 2}'])
def test_a_checkpoint_without_a_readable_state_is_skipped(tmp_path: Path, text: str) -> None:
    save(tmp_path, 1, 2)
    (tmp_path / "step_00000002" / "state.json").write_text(text)
    assert newest(tmp_path).step == 1


def test_a_folder_without_a_checkpoint_says_what_to_give_instead(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a run's folder"):
        checkpoint_in(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        checkpoint_in(tmp_path)


def test_leftovers_of_a_killed_write_are_never_picked_and_swept_away(tmp_path: Path) -> None:
    save(tmp_path, 1)
    left = tmp_path / ".step_00000002.123.partial"
    left.mkdir()
    (left / "state.json").write_text((tmp_path / "step_00000001" / "state.json").read_text())
    assert newest(tmp_path).step == 1
    CheckpointWriter(tmp_path)
    assert not left.exists()


def test_a_write_cut_short_at_any_of_its_steps_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Like SIGKILL, not caught by any `except Exception`."""

    cuts = 0
    while True:
        folder, left = tmp_path / str(cuts), cuts
        save(folder, 1)

        def step(original: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **options: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return original(*args, **options)

            return counted

        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, "_sync", step(checkpoint._sync))
            patched.setattr(checkpoint, "_digest", step(checkpoint._digest))
            patched.setattr(Path, "write_text", step(Path.write_text))
            patched.setattr(Path, "rename", step(Path.rename))
            patched.setattr("safetensors.torch.save_file", step(safetensors.torch.save_file))
            try:
                files = {"model": {"w": torch.ones(3)}, "ema": {"w": torch.zeros(3)}}
                checkpoint.write_checkpoint(folder / "step_00000002", files, 2, {})
            except Killed:
                cut_short = True
            else:
                cut_short = False
        renamed = (folder / "step_00000002").exists()
        assert newest(folder).step == (2 if renamed else 1)
        if not cut_short:
            break
        cuts += 1
    assert cuts > 8 and renamed


def test_another_model_is_refused_by_name_and_shape(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"weight is of shape \[3, 4\].*\[5, 4\]"):
        restore(newest(tmp_path), optimizer(width=5))


def test_a_disk_that_cannot_be_written_is_reported_at_the_next_save(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    writer = CheckpointWriter(blocked)
    writer.save(optimizer(), 1, {})
    with pytest.raises(CheckpointError, match="cannot write"):
        writer.wait()


def test_weights_are_plain_safetensors_under_the_models_names(tmp_path: Path) -> None:
    save(tmp_path, 3)
    assert set(newest(tmp_path).tensors("model")) == {"weight", "bias"}
    listing = json.loads((tmp_path / "step_00000003" / "state.json").read_text())["files"]
    assert set(listing) == {"model.safetensors", "ema.safetensors", "optimizer.safetensors"}


def write_with_a_limit(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))
    with pytest.raises(CheckpointError, match="files may have 99 bytes here: raise the limit"):
        save(folder, 1)


def test_a_limit_of_file_sizes_is_named_as_such(tmp_path: Path) -> None:
    process = fork(write_with_a_limit, tmp_path / "run", log=tmp_path / "log")
    process.join(120)
    assert process.exitcode == 0
