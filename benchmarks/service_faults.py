"""The service killed at random moments under load: nothing lost, nothing half, histories whole.

    python benchmarks/service_faults.py --kills 60 --out benchmarks/results/service_faults.json

A service of two workers on a PostgreSQL of its own. At work are: two publishers who race to move
one ref; two `FeatureLoader`s that read through it; featurize jobs, one after the other into
datasets of their own; tickets of the MSA server. Meanwhile whoever is drawn is killed by SIGKILL:
the service's first process, its worker that leads, its other one, a job's driver, a worker
of a job, a search or what it runs, PostgreSQL's first process; PostgreSQL is also restarted. What
was killed and is not replaced by the service is started again, as an init system would.

It fails unless: every move that was answered with 200 is in the ref's history once, and each move
begins where the one before it ended; both loaders gave the batches that an undisturbed one gives
and read on during every restart; every job ended without its owner's help, its snapshot has the
digest that a job without faults makes, and passes a deep check; every kind of process was killed;
every ticket's files are those that a service without faults gives; nothing of it runs at the end.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evofeed.base.files import write_atomic
from evofeed.store import Dataset, DatasetWriter
from evofeed.synth import write_synthetic

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.faults.checks import (
    check_history,
    check_jobs,
    check_loaders,
    check_tickets,
    stopped,
)
from benchmarks.faults.load import (
    PUBLISHED,
    Load,
    history,
    job_digest,
    pace,
    search_database,
    two_loaders,
)
from benchmarks.faults.processes import Postgres, Service

KINDS = ("service", "worker", "driver", "job_worker", "search", "database",
         "database_restart")  # fmt: skip
_SHOWN = ("between", "chains", "jobs", "batches", "seed")


def storm(
    service: Service,
    database: Postgres,
    loaders: list[subprocess.Popen[str]],
    kills: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """Kill what is drawn, `kills` times beside restarts; what, when and how many loaders read."""
    done: list[dict[str, Any]] = []
    began = time.monotonic()
    while sum(kill["what"] != "database_restart" for kill in done) < kills:
        time.sleep(random.uniform(0.1, seconds))
        there = service.victims()
        # Each kind as often as the others, as far as there are such.
        counted = collections.Counter(kill["what"] for kill in done)
        possible = [k for k in KINDS if k in there or k.startswith("database")]
        what = min(possible, key=lambda kind: (counted[kind], random.random()))
        at = round(time.monotonic() - began, 2)
        reading = sum(loader.poll() is None for loader in loaders)
        if what == "database":
            database.kill()
        elif what == "database_restart":
            database.restart()
        else:
            pid = random.choice(there[what])
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            if what == "service":
                service.process.wait()
                time.sleep(random.uniform(0, 2))
                service.start()
        done.append({"what": what, "at": at, "loaders": reading})
        print(f"{len(done):3} {at:7.1f} s  {what}", file=sys.stderr, flush=True)
        if what in ("service", "database", "database_restart"):
            service.wait()
    return done


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    random.seed(options.seed)
    raw = folder / "raw"
    write_synthetic(raw, options.chains, seed=0)
    wanted_job = job_digest(folder / "undisturbed", raw)
    shutil.copytree(folder / "undisturbed", folder / "read")
    digests, expect = [], None
    read = Dataset.open(folder / "read")
    for number in range(PUBLISHED):
        writer = DatasetWriter(str(folder / "race"))
        for row in range(number + 2):
            writer.add(read[row])
        expect = writer.commit("main", expect=expect).digest
        digests.append(expect)
    sequences = search_database(folder / "uniref.fasta")
    names = {f"out{n}": str(folder / f"out{n}") for n in range(options.jobs)}
    names |= {"race": str(folder / "race"), "read": str(folder / "read")}
    shared = {"datasets": names, "max_jobs": 1, "msa_workers": 1,
              "msa_databases": {"uniref": str(folder / "uniref.fasta")}}  # fmt: skip
    calm = Service(folder / "calm", options.port + 1, **(shared | {"datasets": {}}))
    calm.wait()
    wanted: dict[str, str] = {}
    quiet = Load(calm, [])
    try:
        quiet.tickets(sequences, wanted)
        assert calm.stop() == 0
    finally:
        calm.kill()
    database = Postgres(folder / "pg")
    migrate = os.environ | {"EVOFEED_DATABASE_URL": database.url}
    subprocess.run([sys.executable, "-m", "evofeed.cli", "serve", "--migrate"], env=migrate,
                   check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    service = Service(folder / "home", options.port, database_url=database.url, **shared)
    with contextlib.ExitStack() as stack:
        stack.callback(database.stop)
        stack.callback(service.kill)
        return under_fire(folder, options, service, database, digests, sequences, wanted, raw,
                          wanted_job)  # fmt: skip


def under_fire(
    folder: Path,
    options: argparse.Namespace,
    service: Service,
    database: Postgres,
    digests: list[str],
    sequences: list[str],
    wanted: dict[str, str],
    raw: Path,
    wanted_job: str,
) -> dict[str, Any]:
    """The storm, and what came of it."""
    service.wait()
    load = Load(service, digests)
    jobs: dict[str, str] = {}
    tickets: dict[str, str] = {}
    with two_loaders(service.url, options.batches, folder) as loaders:
        for who in range(2):
            load.start(load.publish, who)
        load.start(load.jobs, raw, options.jobs, jobs)
        load.start(load.tickets, sequences, tickets)
        load.start(pace, load, loaders)
        try:
            kills = storm(service, database, loaders, options.kills, options.between)
            service.wait()
        finally:
            load.stop.set()
            for thread in load.threads:
                thread.join(600)
    assert not load.failed, load.failed
    by_kind = collections.Counter(kill["what"] for kill in kills)
    figures: dict[str, Any] = {
        "kills": dict(by_kind),
        "sigkills": len(kills) - by_kind["database_restart"],
        "seconds": kills[-1]["at"],
        "counts": dict(sorted(load.counts.items())),
        "failures": [],
    }
    checks: dict[str, Callable[[], Any]] = {
        "restarts_while_both_read": lambda: check_kills(kills),
        "history": lambda: check_history(history(service.url), load.moved, service.url),
        "tickets": lambda: check_tickets(tickets, wanted),
        "jobs": lambda: check_jobs(folder, jobs, wanted_job, load.left),
        "loaders": lambda: check_loaders(folder, options.batches),
        "left_running": lambda: stopped(service),
    }
    for name, check in checks.items():
        try:
            figures[name] = check()
        except Exception as error:
            figures["failures"].append(f"{name}: {error!r}"[:2000])
    return figures | {"at": kills}


def check_kills(kills: list[dict[str, Any]]) -> int:
    assert {kill["what"] for kill in kills} == set(KINDS), set(KINDS) - {k["what"] for k in kills}
    restarts = [kill["loaders"] for kill in kills if kill["what"].startswith("database")]
    assert set(restarts) == {2}, "loaders were done too early: give them more batches"
    return len(restarts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--between", type=float, default=4.0, help="seconds between kills, at most")
    parser.add_argument("--chains", type=int, default=96)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--batches", type=int, default=1200)
    parser.add_argument("--port", type=int, default=9400, help="and the one behind it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="evf-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        load = os.getloadavg()[0]
        try:
            figures = measure(Path(name), options)
        except BaseException:
            for log in (Path(name) / "home" / "log", *Path(name).glob("loader*.err")):
                if log.exists():
                    print(log.read_text()[-4000:], file=sys.stderr)
            raise
    result = {
        "command": " ".join(
            ["python benchmarks/service_faults.py"]
            + [f"--{n} {getattr(options, n)}" for n in ("kills", *_SHOWN)]
        ),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load_before": load,
        "versions": {"python": platform.python_version()}
        | {n: version(n) for n in ("fastapi", "uvicorn", "sqlalchemy", "psycopg")},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **figures,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        write_atomic(options.out, text + "\n")
    sys.exit(1 if figures["failures"] else 0)


if __name__ == "__main__":
    main()
