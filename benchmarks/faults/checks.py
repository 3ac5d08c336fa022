"""What must hold when the faults are over."""

from __future__ import annotations

import collections
import itertools
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from benchmarks.faults.processes import Service, cmdline, descendants

from evofeed.store import Dataset


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
