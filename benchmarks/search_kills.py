"""Searches killed at random moments end with the same results, and search nothing twice.

    python benchmarks/search_kills.py [--kills 50] [--out benchmarks/results/search_kills.json]

SIGKILL goes to the driver, to a worker or to the program that a worker has started, after a
random number of calls of the program. A killed driver is started again. Each search that ends
must have the digest of one that nobody disturbed, and no call may be for a sequence whose
result was in the cache when its driver began. Needs jackhmmer on the PATH. The service that
answers tickets is killed by `service_faults.py`.
"""

from __future__ import annotations

import argparse
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
from collections import Counter
from pathlib import Path
from typing import Any

from evofeed.featurize.search import Database, SearchCache, SearchConfig, SearchOptions
from evofeed.featurize.search.fasta_search import read_sequences
from evofeed.featurize.search.programs import descendants, version
from evofeed.featurize.search.search import Search
from evofeed.featurize.search.work import look_at

_LETTERS = "ARNDCQEGHILKMFPSTWYV"
_SEQUENCES, _RECORDS = 16, 80
_WRAPPER = """#!/bin/sh
if [ "$1" != -h ]; then
  for last in "$@"; do query=$before; before=$last; done
  sed -n 2p "$query" >> {log}
fi
exec {real} "$@"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/search_kills.json"))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evofeed-kills-"))
    try:
        found = campaign(folder, args.kills, args.seed)
    finally:
        shutil.rmtree(folder)
    found |= {
        "command": "python " + " ".join(sys.argv),
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "program": version("jackhmmer"),
        "date": datetime.date.today().isoformat(),
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    sys.exit(0 if found["same_digest"] == found["searches"] and not found["twice"] else 1)


def campaign(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill so many times; what became of the searches.

    Returns:
        `kills` by what was killed, `searches` that ended, how many of them had the `same_digest`,
        and `twice`: calls for sequences whose results were there.
    """
    draw = random.Random(seed)
    fasta, database = _families(folder, draw)
    environ = _logged(folder)
    want = _report(_start(fasta, database, folder / "undisturbed", environ), "undisturbed")
    done: Counter[str] = Counter()
    digests, twice = [], 0
    while sum(done.values()) < kills:
        out = folder / f"out{len(digests)}"
        while True:
            known, before = _known(fasta, database, out), _calls(folder)
            process = _start(fasta, database, out, environ)
            while process.poll() is None and sum(done.values()) < kills:
                if (victim := _victim(process, folder, draw)) is not None:
                    done[victim] += 1
            output = _report_or_none(process)
            twice += sum(call in known for call in _calls(folder)[len(before) :])
            if output is not None:
                digests.append(output["digest"])
                break
    same = sum(digest == want["digest"] for digest in digests)
    return {"kills": dict(done), "searches": len(digests), "same_digest": same, "twice": twice}


def _families(folder: Path, draw: random.Random) -> tuple[str, str]:
    """Sequences to search, and a database with relatives of all."""
    first = ["".join(draw.choices(_LETTERS, k=90)) for _ in range(_SEQUENCES)]
    text = "".join(f">q{n}\n{s}\n" for n, s in enumerate(first))
    (folder / "queries.fasta").write_text(text)
    rows = []
    for number in range(_RECORDS):
        kin = first[number % _SEQUENCES]
        row = "".join(draw.choice(_LETTERS) if draw.random() < 0.2 else c for c in kin)
        rows.append(f">r{number}\n{row}\n")
    (folder / "database.fasta").write_text("".join(rows))
    return str(folder / "queries.fasta"), str(folder / "database.fasta")


def _logged(folder: Path) -> dict[str, str]:
    """An environment whose jackhmmer writes down which sequence it is called for."""
    real = shutil.which("jackhmmer")
    assert real, "jackhmmer is not on the PATH"
    tool = folder / "bin" / "jackhmmer"
    tool.parent.mkdir()
    tool.write_text(_WRAPPER.format(log=folder / "calls", real=real))
    tool.chmod(0o755)
    (folder / "calls").touch()
    return {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}


def _start(fasta: str, database: str, out: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    arguments = ["search", fasta, str(out), "--db", database, "--workers", "2", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "evofeed.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )


def _victim(process: subprocess.Popen[str], folder: Path, draw: random.Random) -> str | None:
    """Wait for some calls of the program, then kill something; what it was."""
    wanted = len(_calls(folder)) + draw.randint(1, 6)
    while len(_calls(folder)) < wanted:
        if process.poll() is not None:
            return None
        time.sleep(0.002)
    kind = draw.choice(["driver", "worker", "program"])
    below = [(pid, _name(pid)) for pid in descendants(process.pid)]
    pids = {
        "driver": [process.pid],
        "worker": [pid for pid, name in below if name.startswith(("python", "evofeed"))],
        "program": [pid for pid, name in below if name == "jackhmmer"],
    }[kind]
    if not pids:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(pids), signal.SIGKILL)
        return kind
    return None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _known(fasta: str, database: str, out: Path) -> set[str]:
    """The sequences whose results are in the cache."""
    cache = SearchCache(out / "cache")
    with contextlib.closing(cache):
        sequences = [chain.sequence for chain in read_sequences(fasta)]
        databases, config = [Database.parse(database)], SearchConfig()
        search = Search(sequences, databases, config, SearchOptions(), cache)
        search.infos = [look_at(databases[0], config)]
        keys = {search.key(0, sequence): sequence for sequence in search.sequences}
        return {keys[key] for key in cache.find(keys)}


def _calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


def _report_or_none(process: subprocess.Popen[str]) -> dict[str, Any] | None:
    out, error = process.communicate()
    if process.returncode == -signal.SIGKILL:
        return None
    assert process.returncode == 0, error
    report: dict[str, Any] = json.loads(out)
    return report


def _report(process: subprocess.Popen[str], what: str) -> dict[str, Any]:
    report = _report_or_none(process)
    assert report is not None, f"the {what} search was killed"
    return report


if __name__ == "__main__":
    main()
