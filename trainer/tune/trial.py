"""A few steps of a run, timed, in processes of their own: what fails there fails alone.

    python -m evofeed.trainer.tune.trial FOLDER/trial.json      # by torchrun for several ranks

`trial.json` holds `config`, `dataset`, `steps` and `device`; the first rank, and each that failed,
writes what it found beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evofeed.base.errors import TrainerError
from evofeed.base.files import write_atomic
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.log.runlog import RunLog, read_steps
from evofeed.trainer.report.run_report import training_seconds
from evofeed.trainer.run.build import build_loader, build_model, set_precision
from evofeed.trainer.run.distributed import GONE, join_world
from evofeed.trainer.run.loop import Loop
from evofeed.trainer.run.settings import from_dict
from evofeed.trainer.run.train import peak_memory
from evofeed.trainer.tune.search import Trial

WARM_UP = 3  # steps: kernels compiled, a graph recorded, buffers grown
_RANKS = "rank{}.json"  # what they found, beside the trial: what they print may run together
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def launch(
    config: TrainConfig,
    dataset: Sequence[str],
    *,
    steps: int,
    ranks: int,
    device: str,
    limit: float,
) -> Trial:
    """Run a trial in processes of its own; every failure is the trial's error.

    Args:
        config: the run with the settings to try.
        dataset: URIs.
        steps: that count, after `WARM_UP` others.
        ranks: processes, each with a GPU of this machine where `device` is cuda.
        device: cpu or cuda.
        limit: seconds until it is given up.
    """
    task = {"config": config.to_dict(), "dataset": list(dataset), "steps": steps, "device": device}
    start = [sys.executable, "-m"]
    if ranks > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    environment = {name: value for name, value in os.environ.items() if name not in _TORCHRUN}
    with tempfile.TemporaryDirectory(prefix="evofeed-tune-") as folder:
        path = Path(folder) / "trial.json"
        path.write_text(json.dumps(task))
        command = [*start, "evofeed.trainer.tune.trial", str(path)]
        with subprocess.Popen(
            command, env=environment, text=True, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                _, errors = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return Trial(error=f"no end within {limit:.0f} s")
            finally:  # ranks of a launcher that has ended may still be there
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return _said(path.parent, errors)


def _said(folder: Path, errors: str) -> Trial:
    """A trial from its ranks' lines: errors before results, causes before what came of them."""
    said = [json.loads(path.read_text()) for path in sorted(folder.glob(_RANKS.format("*")))]
    found = min(said, key=lambda line: (not line["error"], GONE in line["error"]), default=None)
    if found is None:
        return Trial(error=(errors.strip().splitlines() or ["it ended without a word"])[-1][:300])
    return Trial(**found | {"seconds": tuple(found["seconds"])})


def run_trial(config: TrainConfig, dataset: Sequence[str], steps: int, device: str) -> Trial:
    """Some steps of a run, in this process: one rank's part of it."""
    few = config.replace(
        steps=WARM_UP + steps, checkpoint_every=0, validate_every=0, profile_steps=0
    )
    with join_world(device, few.axial) as world, contextlib.ExitStack() as cleanup:
        set_precision(few)
        model, loss = build_model(few, world.device, None, world.axis)
        loader = build_loader(few, list(dataset), world)
        cleanup.callback(getattr(loader, "close", lambda: None))
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="evofeed-trial-")))
        log = cleanup.enter_context(RunLog(folder, steps=few.steps)) if world.is_first else None
        done = TimedLoop(few, model, loss, loader, out=folder, world=world, log=log).run()
        if done.stopped_by:
            raise TrainerError(f"stopped by {done.stopped_by}")
        peak = max(world.collect(peak_memory(world.device)))
        lines = read_steps(folder)[WARM_UP:]
    seconds = tuple(training_seconds(line) for line in lines)
    waited = sum(line["seconds"]["data_wait"] for line in lines)
    share = waited / sum(seconds) if seconds else 0.0
    return Trial(seconds=seconds, peak_memory=peak, wait_share=share)


class TimedLoop(Loop):
    """A training loop that leaves no checkpoint behind."""

    def _save(self) -> None:
        pass


def main(path: Path) -> int:
    """A trial from its description; the first rank, and who failed, writes what was found."""
    task: Mapping[str, Any] = json.loads(path.read_text())
    rank = os.environ.get("RANK", "0")
    try:
        found = run_trial(from_dict(task["config"]), task["dataset"], task["steps"], task["device"])
    except Exception as error:  # whatever it is, it is what this trial found
        found = Trial(error=f"{type(error).__name__}: {error}".partition("\n")[0][:300])
    if found.error or rank == "0":
        write_atomic(path.with_name(_RANKS.format(rank)), json.dumps(asdict(found)))
    return int(bool(found.error))


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
