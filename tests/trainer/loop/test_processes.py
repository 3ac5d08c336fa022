"""The loop in processes of its own: several ranks, and death at any moment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from train_standin import train_standin

from evofeed.trainer.run.checkpoint import newest_checkpoint
from evofeed.trainer.run.loop import CHECKPOINTS

SCRIPT = Path(__file__).with_name("train_standin.py")
SOURCE = Path(__file__).parents[3] / "src"


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **more}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _ranks(out: Path, steps: int, ranks: int, accumulate: int, clip: str) -> dict[str, Any]:
    """Run the script on some ranks; what the first one printed."""
    port = _free_port()
    processes = []
    for rank in range(ranks):
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, str(SCRIPT), str(out), str(steps), str(accumulate), clip]
        processes.append(
            subprocess.Popen(
                command,
                env=_environment(**variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    outputs = [process.communicate(timeout=120) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors.decode()
    return json.loads(outputs[0][0].decode().splitlines()[-1])


@pytest.mark.slow
def test_four_ranks_that_clip_each_sample_train_the_same_model_as_one(tmp_path: Path) -> None:
    alone = train_standin(tmp_path / "one", 6, 4, "per_example")
    four = _ranks(tmp_path / "four", 6, 4, 1, "per_example")
    assert four["losses"] == pytest.approx(alone.losses, rel=1e-5)
    one, other = (newest_checkpoint(tmp_path / name / CHECKPOINTS) for name in ("one", "four"))
    assert one is not None and other is not None
    for name, weight in one.tensors("model").items():
        torch.testing.assert_close(other.tensors("model")[name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_killed_at_any_moment_a_run_goes_on_from_a_whole_checkpoint(tmp_path: Path) -> None:
    expected = train_standin(tmp_path / "whole", 40, 1, "global").losses
    command = [sys.executable, str(SCRIPT), str(tmp_path / "killed"), "40", "1", "global"]
    deaths, losses = 0, []
    for delay in (0.0, 0.013, 0.031, 0.002):
        process = subprocess.Popen(
            command, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        before = newest_checkpoint(tmp_path / "killed" / CHECKPOINTS)
        _wait_for_a_newer(tmp_path / "killed" / CHECKPOINTS, before, process)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        deaths += process.returncode == -signal.SIGKILL
        assert newest_checkpoint(tmp_path / "killed" / CHECKPOINTS) is not None
        losses = output.decode().splitlines()
    last = json.loads(losses[-1]) if losses else _ranks(tmp_path / "killed", 40, 1, 1, "global")
    assert deaths >= 1
    assert last["losses"] == expected[last["first"] :]


def _wait_for_a_newer(folder: Path, before: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    names = {before.path.name} if before else set()
    while time.monotonic() < deadline and process.poll() is None:
        if {path.name for path in folder.glob("step_*")} - names:
            return
        time.sleep(0.002)
