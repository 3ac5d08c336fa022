"""What goes on while processes are killed: publishers, jobs, tickets and loaders."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import io
import random
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from benchmarks.faults.processes import Service

from evofeed.store import Dataset

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
PUBLISHED = 6  # snapshots that publishers move to, each half of them: no two ask for the same
SEQUENCES = 40


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
