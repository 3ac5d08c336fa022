"""A few steps of a run, timed, as `evofeed train` in processes of its own: faults stay there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.base.files import scratch_folder
from evofeed.base.run_files import RUN
from evofeed.trainer.config import TrainConfig, save_config
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.report.run_report import training_seconds
from evofeed.trainer.run.distributed import GONE
from evofeed.trainer.tune.search import Settings, Trial, applied

WARM_UP = 3  # steps: kernels compiled, a graph recorded, buffers grown
STEPS = 8
"""Of a trial that count."""
_CAUSE = re.compile(r"^(?:evofeed|[\w.]*Error): .*", re.MULTILINE)


def launch(
    config: TrainConfig, settings: Settings, dataset: Sequence[str], *, ranks: int, device: str,
    limit: float,
) -> Trial:  # fmt: skip
    """Run a trial with so many ranks, each with a GPU where `device` is cuda.

    It is given up after `limit` seconds; every failure is the trial's error.
    """
    few = {"steps": WARM_UP + STEPS, "checkpoint_every": 0, "validate_every": 0, "profile_steps": 0}
    try:
        changed = applied(config, settings, ranks).replace(**few)
    except InputError as error:
        return Trial(error=error.message)
    with scratch_folder("evofeed-tune-") as out:
        save_config(changed, out / "run.yaml")
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--redirects=3"]
        start += [f"--nproc-per-node={ranks}", f"--log-dir={out / 'ranks'}", "-m", "evofeed.cli"]
        words = ["train", str(out / "run.yaml"), "--out", str(out / "run"), "--device", device]
        words += [word for uri in dataset for word in ("--dataset", uri)]
        process = subprocess.Popen(
            [*start, *words], start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            failed = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return Trial(error=f"no end within {limit:.0f} s")
        finally:  # ranks of a launcher that has ended may still be there
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Trial(error=cause_in(out)) if failed else _timed(out / "run")


def _timed(run: Path) -> Trial:
    facts = json.loads((run / RUN).read_text())
    lines = read_steps(run)[WARM_UP:]
    if facts["stopped_by"] or not lines:
        return Trial(error=f"stopped by {facts['stopped_by']}")
    seconds = tuple(training_seconds(line) for line in lines)
    waited = sum(line["seconds"]["data_wait"] for line in lines)
    peak = max(facts["peak_memory_by_rank"])
    return Trial(seconds=seconds, peak_memory=peak, wait_share=waited / sum(seconds))


def cause_in(folder: Path) -> str:
    """What the ranks of a trial say they died of, a cause before what came of it."""
    texts = [path.read_text() for path in sorted(folder.glob("ranks/**/stderr.log"))]
    causes = [line for text in texts for line in _CAUSE.findall(text)]
    last = [line for text in texts for line in text.strip().splitlines()[-1:]]
    said = sorted(causes, key=lambda line: GONE in line) or last or ["it ended without a word"]
    return said[0].removeprefix("evofeed: ")[:300]
