"""Does a job on Ray survive whatever is killed: the same digest each time, and nothing left behind?

    python benchmarks/job_kills.py [--kills 100] [--chains 96] [--seed 0] [--out FILE]

Each trial starts `evofeed featurize --executor ray --json` on a dataset of its own, kills one
process at a random moment (of the time a job takes, or of the units it has to do), waits, and
runs the same command again until it says 0; a cluster that was damaged is started again first.
Trials that are in FILE count: it continues after them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evofeed.synth import write_synthetic

PATTERNS = {
    "driver": "evofeed.cli featurize",
    "GCS": "gcs/gcs_server",
    "raylet": "raylet/raylet --",
    "second raylet": "raylet/raylet --",
    "Ray worker": "ray::unit_on_ray",
    "worker": "worker.main",
}
PRIVATE = ("raylet", "GCS", "driver", "worker", "Ray worker")
CLUSTER = ("raylet", "second raylet", "GCS", "driver", "worker", "Ray worker")
LIMIT = 300.0  # seconds a run may take before it counts as hanging
ROUNDS = 5  # runs of the same command
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--chains", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/job_kills.json"))
    parser.add_argument("--cluster", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cluster:
        be_a_cluster()
        return
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of ours
    with tempfile.TemporaryDirectory(prefix="evofeed-kills-") as folder:
        results = campaign(Path(folder), args)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results["trials"]))


def campaign(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    raw = folder / "raw"
    write_synthetic(raw, args.chains, seed=args.seed)
    honest = run(raw, folder / "honest", ["--executor", "local"])
    assert honest["code"] == 0, honest
    began = time.monotonic()
    plain = run(raw, folder / "plain", ["--executor", "ray", "--workers", "2"])
    span = time.monotonic() - began
    assert plain["report"]["snapshot"] == honest["report"]["snapshot"]
    cluster = Cluster()
    trials: list[dict[str, Any]] = []
    if args.out.exists():
        trials = json.loads(args.out.read_text())["trials"]
    early = 0
    try:
        while len(trials) < args.kills:
            dice = random.Random(f"{args.seed} {len(trials)} {early}")
            # Two of five on a cluster, where starting again what was damaged takes long.
            targets = CLUSTER if len(trials) % 5 >= 3 else PRIVATE
            trial = {
                "where": "cluster" if targets is CLUSTER else "here",
                "target": targets[len(trials) // 5 % len(targets)],
                "by": dice.choice(("time", "units")),
                "moment": round(dice.random(), 3),
            }
            address = cluster.address() if targets is CLUSTER else ""
            data = folder / "data"
            done = Trial(raw, data, trial, cluster, address).run(span, plain["report"]["units"])
            shutil.rmtree(data, ignore_errors=True)
            early = 0 if done else early + 1
            if not done:  # it was over before
                assert early < 20, "jobs end before anything can be killed"
                continue
            right = trial["snapshot"] == honest["report"]["snapshot"]
            trial["same_digest"] = right and trial["num_good"] == args.chains
            trials.append(trial)
            print(len(trials), json.dumps(trial), flush=True)
            args.out.write_text(json.dumps(summary(trials, args), indent=1) + "\n")
    finally:
        cluster.stop()
    return summary(trials, args)


def summary(trials: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    return {
        "command": " ".join(["python", *sys.argv]),
        "chains": args.chains,
        "seed": args.seed,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "kills": len(trials),
        "same_digest": sum(trial["same_digest"] for trial in trials),
        "left_behind": sum(len(trial["left_behind"]) for trial in trials),
        "stdout_not_json": sum(trial["stdout_not_json"] for trial in trials),
        "trials": trials,
    }


class Trial:
    """One dataset, one kill, and the same command until it is through."""

    def __init__(
        self, raw: Path, data: Path, trial: dict[str, Any], cluster: Cluster, address: str
    ) -> None:
        self.raw, self.data, self.trial = raw, data, trial
        self.cluster, self.on_cluster = cluster, bool(address)

    def options(self) -> list[str]:
        place = ["--ray-address", self.cluster.address()] if self.on_cluster else ["--workers", "2"]
        return ["--executor", "ray", *place]

    def run(self, span: float, units: int) -> bool:
        """Fill in the trial; False if the job was over before anything could be killed."""
        began = time.monotonic()
        process = start(self.raw, self.data, self.options())
        killed = self.kill(process, began, span, units)
        hit = time.monotonic()
        first = wait(process, self.data)
        if not killed:
            self.clean()
            return False
        self.trial |= {
            "killed_after": round(hit - began, 2),
            "first_code": first["code"],
            "first_seconds_after_kill": round(time.monotonic() - hit, 2),
            "message": first["message"],
        }
        damaged = self.on_cluster and self.trial["target"] in ("raylet", "second raylet", "GCS")
        runs = [first]
        while runs[-1]["code"] != 0 and len(runs) < ROUNDS:
            if damaged:
                self.cluster.stop()
            runs.append(run(self.raw, self.data, self.options()))
        if damaged:
            self.cluster.stop()
        report = runs[-1]["report"] or {}
        self.trial |= {
            "runs": len(runs),
            "snapshot": report.get("snapshot"),
            "num_good": report.get("num_good"),
            "stdout_not_json": sum(not each["json"] for each in runs),
            "left_behind": self.clean(),
        }
        return True

    def kill(self, process: subprocess.Popen[bytes], began: float, span: float, units: int) -> bool:
        due = self.trial["moment"] * (span if self.trial["by"] == "time" else units)
        while process.poll() is None:
            shards = len(list(self.data.glob("shards/*.arrow")))
            reached = time.monotonic() - began if self.trial["by"] == "time" else shards
            if reached >= due and (victims := self.victims(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random.Random(due).choice(victims), signal.SIGKILL)
                    self.trial["units_done"] = shards
                    return True
            time.sleep(0.02)
        return False

    def victims(self, driver: int) -> list[int]:
        target = self.trial["target"]
        if target == "driver":
            return [driver]
        above = [driver, *([self.cluster.pid] if self.on_cluster else [])]
        found = [
            (pid, line)
            for each in above
            for pid, line in command_lines(each)
            if PATTERNS[target] in line
        ]
        if self.on_cluster and "raylet" in target:  # the driver's is the head's
            found = [(p, line) for p, line in found if ("--head" in line) == (target == "raylet")]
        return [pid for pid, _ in found]

    def clean(self) -> list[str]:
        """What is still there a while after the end; it is ended then."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            reap()
            alive = set(below(os.getpid())) - {self.cluster.pid, *below(self.cluster.pid)}
            if not alive:
                return []
            time.sleep(0.1)
        lines = dict(command_lines(os.getpid()))
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [lines.get(pid, "?")[:80] for pid in alive]


class Cluster:
    """Two nodes of one core each, in processes of their own; started when it is asked for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def address(self) -> str:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--cluster"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            assert self._process.stdout
            lines = iter(self._process.stdout.readline, "")
            self._address = next(x for x in lines if x.startswith("address ")).split()[1]
        return self._address

    def stop(self) -> None:
        if self._process is None:
            return
        for pid in [*below(self._process.pid), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


def be_a_cluster() -> None:
    """Start two nodes, say where, and be there until the other end closes."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    from ray import cluster_utils

    Path("/tmp/ray").mkdir(exist_ok=True)  # Ray's own helper writes there
    small = {"num_cpus": 1, "object_store_memory": 128 << 20}
    folder = tempfile.mkdtemp(prefix="evofeed-kc-", dir="/tmp")
    head = {**small, "include_dashboard": False, "temp_dir": folder}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**small)
    print("address", cluster.address, flush=True)
    sys.stdin.read()


def start(raw: Path, data: Path, options: list[str]) -> subprocess.Popen[bytes]:
    data.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "evofeed.cli", "featurize", str(raw), str(data), "--json"]
    with (data / "stdout").open("wb") as out, (data / "stderr").open("wb") as err:
        return subprocess.Popen([*command, *options], stdout=out, stderr=err)


def wait(process: subprocess.Popen[bytes], data: Path) -> dict[str, Any]:
    """How a run ended, and whether its standard output is JSON: one document, or nothing if the
    driver was killed or its error is one line."""
    try:
        code = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = 124
    said = (data / "stdout").read_text()
    report = None
    with contextlib.suppress(ValueError):
        report = json.loads(said)
    message = report["message"] if report else (data / "stderr").read_text()[-300:]
    return {
        "code": code,
        "report": report,
        "json": report is not None or (not said and (code < 0 or message.count("\n") == 1)),
        "message": message,
    }


def run(raw: Path, data: Path, options: list[str]) -> dict[str, Any]:
    return wait(start(raw, data, options), data)


def below(pid: int) -> list[int]:
    """Descendants of a process."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *below(child)]
    return found


def command_lines(pid: int) -> Iterator[tuple[int, str]]:
    for each in below(pid):
        with contextlib.suppress(OSError):
            yield each, Path(f"/proc/{each}/cmdline").read_text().replace("\0", " ")


def reap() -> None:
    """Take leave of orphans that ended; `subprocess` waits for its own by their id."""
    for pid in below(os.getpid()):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if stat[0] == "Z" and int(stat[1]) == os.getpid():
                os.waitpid(pid, os.WNOHANG)


def table(trials: list[dict[str, Any]]) -> str:
    kinds = sorted({(t["where"], t["target"]) for t in trials}, reverse=True)
    lines = ["| where | killed | kills | went on | run again | same digest | s to the first end |"]
    lines.append("|---|---|---|---|---|---|---|")
    for where, target in kinds:
        mine = [t for t in trials if (t["where"], t["target"]) == (where, target)]
        went_on = sum(t["first_code"] == 0 for t in mine)
        again = sum(t["runs"] - 1 for t in mine)
        same = sum(t["same_digest"] for t in mine)
        seconds = [t["first_seconds_after_kill"] for t in mine]
        lines.append(
            f"| {where} | {target} | {len(mine)} | {went_on} | {again} | {same} "
            f"| {statistics.median(seconds):.1f} (at most {max(seconds):.1f}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
