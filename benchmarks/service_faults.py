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
import functools
import hashlib
import io
import itertools
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

from evofeed.files import write_atomic
from evofeed.service.jobs import runner
from evofeed.store import Dataset, DatasetWriter
from evofeed.synth import write_synthetic

PUBLISHED = 6  # snapshots that publishers move to, each half of them: no two ask for the same
SEQUENCES = 40
KINDS = ("service", "leader", "worker", "driver", "job_worker", "search", "database",
         "database_restart")  # fmt: skip
_SHOWN = ("between", "chains", "jobs", "batches", "seed")
LOADER = """
import hashlib, sys, torch
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
torch.set_num_threads(1)
config = LoaderConfig(crop_size=32, max_msa_clusters=8, max_extra_msa=16, max_templates=1,
                      outage_seconds=600)
loader = FeatureLoader(Dataset.open(sys.argv[1]), config, seed=int(sys.argv[2]), device="cpu")
done, stop = 0, int(sys.argv[3])
while done < stop:
    for batch in loader:
        digest = hashlib.sha256()
        for name in sorted(batch):
            digest.update(name.encode() + batch[name].contiguous().numpy().tobytes())
        print(digest.hexdigest(), flush=True)
        done += 1
        if done == stop:
            break
        if len(sys.argv) > 4:
            sys.stdin.readline()
loader.close()
"""


class Postgres:
    """A PostgreSQL in a folder, on a Unix socket."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.data = folder, folder / "data"
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))  # mostly not on the PATH
        self.binaries = Path(shutil.which("initdb") or found[-1]).resolve().parent
        self.user = "nobody" if os.getuid() == 0 else None  # it refuses to run as root
        if self.user:
            shutil.chown(folder, self.user)
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "evofeed")
        self.start()
        self.run("createdb", "-h", folder, "-U", "evofeed", "service")

    @property
    def url(self) -> str:
        return f"postgresql://evofeed@/service?host={self.folder}"

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c max_connections=80"
        end = time.monotonic() + 60
        while not self.run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "-o",
                           options, "start", check=False):  # fmt: skip
            assert time.monotonic() < end, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.5)  # backends of the killed one still end

    def kill(self) -> None:
        os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        time.sleep(random.uniform(0, 2))
        self.start()

    def restart(self) -> None:
        self.stop()
        time.sleep(random.uniform(0, 2))
        self.start()

    def stop(self) -> None:
        self.run("pg_ctl", "-D", self.data, "-m", "fast", "-w", "stop", check=False)

    def run(self, program: str, *arguments: object, check: bool = True) -> bool:
        command = [str(self.binaries / program), *map(str, arguments)]
        done = subprocess.run(
            command, user=self.user, cwd=self.folder, check=False, text=True,
            stdout=subprocess.PIPE if check else subprocess.DEVNULL, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout
        return done.returncode == 0


class Service:
    """`evofeed serve --workers 2`, started again when it was killed."""

    def __init__(self, home: Path, port: int, **settings: Any) -> None:
        given = {"home": home, "port": port, "keep_days": 0, "grace_seconds": 600} | settings
        values = {name: v if isinstance(v, str) else str(v) for name, v in given.items()}
        values |= {n: json.dumps(v) for n, v in given.items() if isinstance(v, dict | list)}
        self.environment = os.environ | {f"EVOFEED_{n.upper()}": v for n, v in values.items()}
        self.home, self.url = home, f"http://127.0.0.1:{port}"
        home.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "evofeed.cli", "serve", "--no-auth", "--workers", "2"]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Until it answers; started again if it could not start: its database may be away."""
        end = time.monotonic() + 240
        while time.monotonic() < end:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200:
                    return
            if self.process.poll() is not None:
                self.start()
            time.sleep(0.3)
        raise RuntimeError("it does not answer: " + (self.home / "log").read_text()[-3000:])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def kill(self) -> None:
        """Whatever still runs of it: nothing, unless a check failed."""
        if self.process.poll() is None:
            for pid in (self.process.pid, *descendants(self.process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def victims(self) -> dict[str, list[int]]:
        """Processes that may be killed, by what they are."""
        found: dict[str, list[int]] = {"service": [self.process.pid]}
        lock = str(self.home / "leader.lock")
        for pid in descendants(self.process.pid):
            words = cmdline(pid)
            if b"spawn_main" in words and parent(pid) == self.process.pid:
                found.setdefault("leader" if lock in files(pid) else "worker", []).append(pid)
            elif runner.__name__.encode() in words:
                found.setdefault("driver", []).append(pid)
                found.setdefault("job_worker", []).extend(descendants(pid))
            elif b"resource_tracker" not in words:
                found.setdefault("search", []).append(pid)
        of_jobs = set(found.get("job_worker", ())) | set(found.get("driver", ()))
        found["search"] = [pid for pid in found.get("search", ()) if pid not in of_jobs]
        return {what: pids for what, pids in found.items() if pids}


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def files(pid: int) -> set[str]:
    with contextlib.suppress(OSError):
        return {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115
    return set()


def parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


class Load:
    """What goes on meanwhile; every answer is noted."""

    def __init__(self, service: Service, digests: list[str]) -> None:
        self.service, self.digests = service, digests
        self.stop = threading.Event()
        self.moved: dict[str, str] = {}  # message to digest, of moves answered with 200
        self.counts: collections.Counter[str] = collections.Counter()
        self.threads: list[threading.Thread] = []
        self.failed: list[str] = []
        self.left: list[str] = []  # why jobs had to be retried by their owner

    def start(self, work: Callable[..., None], *given: Any) -> None:
        def run() -> None:
            try:
                work(*given)
            except BaseException as error:
                self.failed.append(f"{work.__name__}: {error!r}")

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def publish(self, who: int) -> None:
        """Move the ref on and on, by compare and swap."""
        path = f"{self.service.url}/v1/datasets/race/refs/main"
        number = 0
        with httpx.Client(timeout=40) as client:
            while not self.stop.is_set():
                number += 1
                message = f"{who}.{number}"
                try:
                    now = client.get(path)
                    if now.status_code != 200:
                        self.counts[f"publish_{now.status_code}"] += 1
                        time.sleep(0.2)
                        continue
                    target = self.digests[who::2][number % (PUBLISHED // 2)]
                    if target == now.json()["digest"]:
                        continue
                    answer = client.put(
                        path,
                        json={"digest": target, "message": message},
                        headers={"If-Match": f'"{now.json()["digest"]}"'},
                    )
                except httpx.HTTPError:
                    self.counts["publish_cut_off"] += 1
                    time.sleep(0.2)
                    continue
                self.counts[f"publish_{answer.status_code}"] += 1
                if answer.status_code == 200:
                    self.moved[message] = target
                time.sleep(0.02)

    def jobs(self, raw: Path, count: int, digests: dict[str, str]) -> None:
        """One job for each dataset; one that ended badly is counted and retried."""
        for number in range(count):
            name = f"out{number}"
            body = {"dataset": name, "input_uri": str(raw), "executor": "local", "workers": 2}
            key = {"Idempotency-Key": f"job-{number}"}
            jobs = f"{self.service.url}/v1/jobs"
            send = functools.partial(httpx.post, jobs, json=body, headers=key, timeout=40)
            job = f"{jobs}/{self.until(send)['id']}"
            ask = functools.partial(httpx.get, job, timeout=40)
            while (view := self.until(ask))["state"] != "succeeded":
                if view["state"] == "failed":
                    self.left.append(view["error"])
                    self.until(functools.partial(httpx.post, f"{job}/retry", timeout=40))
                time.sleep(0.3)
            digests[name] = view["result"]["snapshot"]
            self.counts["job_attempts"] += view["attempts"]
            if self.stop.is_set() and number >= 2:
                return

    def tickets(self, sequences: list[str], found: dict[str, str]) -> None:
        """Hand sequences in and fetch what is found, one after the other."""
        for sequence in sequences:
            found[sequence] = fetch_ticket(self, self.service.url, sequence)

    def until(self, ask: Callable[[], httpx.Response]) -> Any:
        """The answer, once there is one."""
        end = time.monotonic() + 400
        while time.monotonic() < end:
            try:
                answer = ask()
            except httpx.HTTPError:
                self.counts["asked_again_cut_off"] += 1
            else:
                if answer.status_code in (200, 202):
                    kind = answer.headers["content-type"]
                    return answer.json() if kind == "application/json" else answer.content
                if answer.status_code not in (409, 429, 500, 502, 503):
                    raise RuntimeError(f"{answer.request.url}: {answer.status_code} {answer.text}")
                self.counts[f"asked_again_{answer.status_code}"] += 1
            time.sleep(0.2)
        raise RuntimeError("no answer")


def fetch_ticket(load: Load, url: str, sequence: str) -> str:
    """The digest of a ticket's files."""
    form = {"q": f">101\n{sequence}\n", "mode": "all"}
    while True:
        ticket = load.until(lambda: httpx.post(f"{url}/ticket/msa", data=form, timeout=40))
        while ticket["status"] in ("PENDING", "RUNNING"):
            time.sleep(0.1)
            path = f"{url}/ticket/{ticket['id']}"
            ticket = load.until(functools.partial(httpx.get, path, timeout=40))
        if ticket["status"] == "COMPLETE":
            break
        load.counts["tickets_handed_in_again"] += 1
        time.sleep(0.3)
    path = f"{url}/result/download/{ticket['id']}"
    data = load.until(lambda: httpx.get(path, timeout=40))
    digest = hashlib.sha256()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for name in sorted(tar.getnames()):
            file = tar.extractfile(name)
            digest.update(name.encode() + (file.read() if file else b""))
    return digest.hexdigest()


def search_database(path: Path) -> list[str]:
    """A FASTA of made-up families; their first members."""
    draw, letters, first, lines = random.Random(0), "ACDEFGHIKLMNPQRSTVWY", [], []
    for family in range(SEQUENCES):
        ancestor = "".join(draw.choices(letters, k=80))
        first.append(ancestor)
        for n in range(1, 8):
            kin = (draw.choice(letters) if draw.random() < 0.05 * n else c for c in ancestor)
            lines.append(f">UniRef100_{family}_{n}\n{''.join(kin)}\n")
    path.write_text("".join(lines))
    return first


def job_digest(folder: Path, raw: Path) -> str:
    """The snapshot of a job that nothing disturbs."""
    command = [sys.executable, "-m", "evofeed.cli", "featurize", str(raw), str(folder)]
    subprocess.run([*command, "--executor", "local", "--workers", "2"], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    return Dataset.open(folder).digest


def history(url: str) -> list[dict[str, Any]]:
    """All moves of the raced ref, oldest first."""
    moves: list[dict[str, Any]] = []
    before: int | None = None
    while True:
        query = {"limit": 1000} | ({"before": before} if before is not None else {})
        page = httpx.get(f"{url}/v1/datasets/race/refs/main/history", params=query, timeout=60)
        moves += page.raise_for_status().json()["moves"]
        before = page.json()["next"]
        if before is None:
            return moves[::-1]


@contextlib.contextmanager
def two_loaders(url: str, batches: int, out: Path) -> Iterator[list[subprocess.Popen[str]]]:
    script = out / "loader.py"
    script.write_text(LOADER)
    loaders = []
    for seed in (1, 2):
        command = [sys.executable, str(script), f"{url}/v1/datasets/read", str(seed)]
        command += [str(batches), "paced"]
        said, err = (out / f"loader{seed}{end}" for end in ("", ".err"))
        with said.open("w") as stdout, err.open("w") as stderr:
            loaders.append(
                subprocess.Popen(
                    command, text=True, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr
                )
            )
    try:
        yield loaders
    finally:
        for loader in loaders:
            if loader.poll() is None:
                loader.kill()


def pace(load: Load, loaders: list[subprocess.Popen[str]]) -> None:
    """A batch every so often, so that reading lasts as long as the faults do; then all the rest."""
    while any(loader.poll() is None for loader in loaders):
        for loader in loaders:
            with contextlib.suppress(OSError, ValueError):
                assert loader.stdin
                loader.stdin.write("\n")
                loader.stdin.flush()
        time.sleep(0.01 if load.stop.is_set() else 0.5)


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


def check_tickets(found: dict[str, str], wanted: dict[str, str]) -> dict[str, int]:
    assert found == wanted, [s for s in wanted if found.get(s) != wanted[s]]
    return {"asked": len(wanted), "as_undisturbed": len(found)}


def check_history(
    moves: list[dict[str, Any]], moved: dict[str, str], url: str
) -> dict[str, int | bool]:
    """Whole, and with every move that somebody was told of."""
    chain = all(b["previous"] == a["digest"] for a, b in itertools.pairwise(moves))
    said = collections.Counter(move["message"] for move in moves if move["message"])
    lost = [m for m, digest in moved.items()
            if [x["digest"] for x in moves if x["message"] == m] != [digest]]  # fmt: skip
    now = httpx.get(f"{url}/v1/datasets/race/refs/main", timeout=60).json()["digest"]
    found = {
        "moves": len(moves),
        "answered": len(moved),
        "made_but_cut_off": len(set(said) - set(moved)),
        "of_the_store": sum(move["principal"] == "store" for move in moves),
        "told_twice": sum(count > 1 for count in said.values()),
        "lost": len(lost),
        "a_chain": chain,
        "ends_where_the_ref_is": moves[-1]["digest"] == now,
    }
    assert chain and not lost and not found["told_twice"], (found, lost)
    assert found["ends_where_the_ref_is"], found
    return found


def check_loaders(folder: Path, batches: int) -> dict[str, Any]:
    """The batches of an undisturbed loader, of the folder itself."""
    found: dict[str, Any] = {"batches_each": batches}
    for seed in (1, 2):
        command = [sys.executable, str(folder / "loader.py"), str(folder / "read"), str(seed)]
        calm = subprocess.run([*command, str(batches)], capture_output=True, text=True, check=True)
        got = (folder / f"loader{seed}").read_text()
        assert got == calm.stdout, (folder / f"loader{seed}.err").read_text()[-2000:]
        found[f"loader_{seed}_as_undisturbed"] = len(got.split()) == batches
    return found


def check_kills(kills: list[dict[str, Any]]) -> int:
    assert {kill["what"] for kill in kills} == set(KINDS), set(KINDS) - {k["what"] for k in kills}
    restarts = [kill["loaders"] for kill in kills if kill["what"].startswith("database")]
    assert set(restarts) == {2}, "loaders were done too early: give them more batches"
    return len(restarts)


def check_jobs(folder: Path, jobs: dict[str, str], wanted: str, left: list[str]) -> dict[str, Any]:
    assert not left, f"jobs had to be retried by their owner: {left}"
    for name, digest in jobs.items():
        dataset = Dataset.open(folder / name)
        assert digest == dataset.digest == wanted, (name, digest, dataset.digest, wanted)
        assert not (faults := dataset.verify(deep=True)), (name, faults)
    return {
        "ended": len(jobs),
        "digest_as_undisturbed": len(jobs),
        "verified_deep": len(jobs),
    }


def stopped(service: Service) -> int:
    """What still runs half a minute after SIGTERM; the exit code has to be 0."""
    below = descendants(service.process.pid)
    assert service.stop() == 0
    end = time.monotonic() + 30
    while time.monotonic() < end and any(cmdline(pid) for pid in below):
        time.sleep(0.2)
    left = sum(bool(cmdline(pid)) for pid in below)
    assert not left, [cmdline(pid) for pid in below]
    return left


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
