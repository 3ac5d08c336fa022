"""What an answer of the service costs beside one of a plain FastAPI route, in CPU of the server.

    python benchmarks/service.py --out benchmarks/results/service.json

Both run beside each other, each in a process of its own (uvicorn, uvloop, httptools; the service
with one worker and SQLite; both are sent its token), and are asked in turns over one kept-alive
connection each, so that whatever else the machine does falls on both. CPU is user and
system time of the server's process; `ratio` is the plain route's over ours of the same turn, so
more is better. The index has a million rows.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from evofeed.protein.chain_record import ChainRecord
from evofeed.service.access.auth import create_token
from evofeed.service.database.database import Database
from evofeed.store import Dataset, DatasetWriter, ShardEntry
from evofeed.store.index import canonical, index_schema
from evofeed.store.layout import COLUMNS
from evofeed.store.refs import move_ref
from evofeed.store.storage import LocalStorage
from evofeed.store.writer import write_snapshot

ROWS = 1_000_000
PER_SHARD = 600
PLAIN = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/")
def hello():
    return {"hello": "world"}
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False, loop="uvloop",
            http="httptools", timeout_keep_alive=30)
"""
Figures = dict[str, Any]


def record(number: int) -> ChainRecord:
    """A chain of ordinary size: 260 residues, 1,900 rows."""
    rng = np.random.default_rng(number)
    L, N = 260, 1900
    msa = rng.integers(0, 22, [N, L]).astype(np.uint8)
    msa[0] = rng.integers(0, 20, L)
    none = np.zeros(0, np.int32)
    return ChainRecord(
        chain_id=f"{number:04d}_A",
        sequence="".join("ARNDCQEGHILKMFPSTWYV"[code] for code in msa[0]),
        aatype=msa[0],
        residue_index=np.arange(L, dtype=np.int32),
        msa=msa,
        deletion_row=none,
        deletion_column=none,
        deletion_count=none,
        msa_source=np.zeros(N, np.uint8),
        msa_sources=("hits.a3m",),
        msa_species=("",) * N,
        hhblits_profile_counts=(msa[:, :, None] == np.arange(22)).sum(0).astype(np.int32),
        template_aatype=np.zeros([0, L], np.uint8),
        template_all_atom_positions=np.zeros([0, L, 37, 3], np.float32),
        template_all_atom_mask=np.zeros([0, L, 37], np.uint8),
        template_center=np.zeros([0, 3], np.float32),
        template_sum_probs=np.zeros(0, np.float32),
        resolution=1.8,
        release_date="2019-04-01",
        method="X-RAY DIFFRACTION",
    )


def large_index(seed: int, rows: int = ROWS) -> pa.Table:
    """An index of so many chains with plausible sizes, laid out in shards."""
    rng = np.random.default_rng(seed)
    length = np.clip(rng.lognormal(5.4, 0.6, rows), 20, 3000).astype(np.int32)
    depth = np.clip(rng.lognormal(7, 1.2, rows), 1, 20_000).astype(np.int32)
    dates = np.array(
        [f"{year}-{month:02d}-15" for year in range(1990, 2026) for month in range(1, 13)]
    )
    methods = np.array(["X-RAY DIFFRACTION", "SOLUTION NMR", "ELECTRON MICROSCOPY"])
    nbytes = length.astype(np.int64) * depth // 8 * 5 + 4096
    shard = np.arange(rows) // PER_SHARD
    before = np.cumsum(nbytes) - nbytes
    names = pa.array([f"{number:064x}.arrow" for number in range(shard[-1] + 1)])
    columns = {
        "chain_id": pa.array([f"{number:0{len(str(rows - 1))}d}_A" for number in range(rows)]),
        "shard": pa.DictionaryArray.from_arrays(pa.array(shard.astype(np.int32)), names),
        "offset": before - before[shard * PER_SHARD],
        "nbytes": nbytes,
        "checksum": rng.integers(0, 2**63, rows).astype(np.uint64),
        "num_res": length,
        "num_alignments": depth,
        "num_deletions": depth,
        "num_templates": rng.integers(0, 21, rows).astype(np.int32),
        "resolution": np.where(rng.random(rows) < 0.1, 0, rng.gamma(6, 0.4, rows)).astype(
            np.float32
        ),
        "release_date": pa.array(dates[rng.integers(0, len(dates), rows)]),
        "method": pa.array(methods[rng.integers(0, 3, rows)]).dictionary_encode(),
        "is_distillation": rng.random(rows) < 0.4,
        "has_structure": np.ones(rows, bool),
        "num_unknown": np.zeros(rows, np.int32),
        "max_aa_fraction": rng.random(rows).astype(np.float32),
        "cluster_size": rng.integers(1, 300, rows).astype(np.int32),
        "cost": length.astype(np.int64) * depth,
        "column_offsets": pa.FixedSizeListArray.from_arrays(
            pa.array(np.zeros(rows * (len(COLUMNS) + 1), np.uint32)), len(COLUMNS) + 1
        ),
    }
    schema = index_schema()
    empty = {field.name: np.zeros(rows, np.int64) for field in schema if field.name not in columns}
    return pa.table({field.name: (empty | columns)[field.name] for field in schema})


def publish(folder: Path) -> tuple[str, str]:
    """A small dataset, and an index of `ROWS` rows without its shards; their digests."""
    writer = DatasetWriter(str(folder / "data"))
    for number in range(8):
        writer.add(record(number))
    digest = writer.commit("main").digest
    names = [f"{number:064x}" for number in range(-(-ROWS // PER_SHARD))]
    entries = [ShardEntry(f"{name}.arrow", name, 1 << 34, PER_SHARD) for name in names]
    storage = LocalStorage(folder / "large")
    large = write_snapshot(storage, canonical([large_index(0)]), entries, parent=None, config={})
    move_ref(storage, "main", large.digest, None)
    return digest, large.digest


@contextlib.contextmanager
def running(command: list[str], port: int, **options: Any) -> Iterator[int]:
    """A server; its process id."""
    with subprocess.Popen(command, **options) as child:
        for _ in range(600):
            with contextlib.suppress(OSError):
                http.client.HTTPConnection("127.0.0.1", port).connect()
                break
            time.sleep(0.1)
        try:
            yield child.pid
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(60)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Asker:
    """One kept-alive connection."""

    def __init__(self, port: int, pid: int, token: str = "") -> None:
        self.pid = pid
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, status: int = 200, **headers: str) -> None:
        """Ask, and read the whole answer."""
        self._connection.request("GET", path, headers=self._headers | headers)
        answer = self._connection.getresponse()
        answer.read()
        assert answer.status == status, (path, answer.status)

    def cost(self, path: Callable[[], str], count: int, status: int, **headers: str) -> float:
        """CPU of the server for one request, in microseconds."""
        begun = cpu_seconds(self.pid)
        for _ in range(count):
            self.get(path(), status, **headers)
        return 1e6 * (cpu_seconds(self.pid) - begun) / count


def four_terms() -> str:
    """A filter that was not asked before."""
    terms = [
        {"column": "num_res", "op": "<=", "value": random.randint(200, 600)},
        {"column": "resolution", "op": "<=", "value": round(random.uniform(1.5, 3.5), 4)},
        {"column": "release_date", "op": ">=", "value": f"{random.randint(1995, 2020)}-05-03"},
        {"column": "method", "op": "in", "value": ["X-RAY DIFFRACTION", "SOLUTION NMR"]},
    ]
    return quote(json.dumps({"all": terms}))


def measure(folder: Path, turns: int, count: int) -> Figures:
    digest, large = publish(folder)
    ports = (18571, 18572)
    datasets = {"data": str(folder / "data"), "large": str(folder / "large")}
    home = folder / "home"
    environment = os.environ | {"EVOFEED_HOME": str(home), "EVOFEED_AUTH": "on"}
    command = [sys.executable, "-m", "evofeed.cli", "serve", "--port", str(ports[1])]
    command += [word for pair in datasets.items() for word in ("--dataset", "=".join(pair))]
    database = Database(f"sqlite:///{home / 'service.sqlite3'}")
    database.upgrade()
    token = create_token(database, label="benchmark", scopes=["read"])[1]
    database.close()
    data, big = "/v1/datasets/data", f"/v1/datasets/large/snapshots/{large}"
    page = f"{big}/chains?limit=100&where="
    shard = Dataset.open(folder / "data").manifest.shards[0].name
    tag = {"If-None-Match": f'"{digest}"'}
    questions: dict[str, tuple[Callable[[], str], int, int, dict[str, str]]] = {
        "ref": (lambda: f"{data}/refs/main", count, 200, {}),
        "manifest": (lambda: f"{data}/snapshots/{digest}", count, 200, {}),
        "manifest 304": (lambda: f"{data}/snapshots/{digest}", count, 304, tag),
        "one chain": (lambda: f"{big}/chains/{random.randrange(ROWS):06d}_A", count, 200, {}),
        "shard, 64 KiB of it": (
            lambda: f"{data}/shards/{shard}", count, 206, {"Range": "bytes=0-65535"}
        ),
        "filtered page, new": (lambda: page + four_terms(), 100, 200, {}),
        "its exact count, new": (lambda: f"{page}{four_terms()}&count=true", 30, 200, {}),
        "page of the browser, new": (
            lambda: f"/ui/datasets/large?where={four_terms()}", 10, 200, {}
        ),
    }  # fmt: skip
    plain_costs: list[float] = []
    costs: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    with (
        running([sys.executable, "-c", PLAIN, str(ports[0])], ports[0]) as plain,
        running(command, ports[1], env=environment, stdout=subprocess.DEVNULL) as ours,
    ):
        hello, service = Asker(ports[0], plain, token), Asker(ports[1], ours, token)
        hello.cost(lambda: "/", count, 200)
        for path, _, status, headers in questions.values():
            service.cost(path, 3, status, **headers)  # opens what it needs
        before = resident(ours)
        for _ in range(turns):
            for name, (path, times, status, headers) in questions.items():
                beside = hello.cost(lambda: "/", count, 200)
                cost = service.cost(path, times, status, **headers)
                plain_costs.append(beside)
                costs.setdefault(name, []).append(cost)
                ratios.setdefault(name, []).append(beside / cost)
        memory = {"before": before, "after": resident(ours)}
    return {
        "plain_us": round(statistics.median(plain_costs), 1),
        "resident_bytes": memory,
        "answers": {
            name: {
                "cpu_us": round(statistics.median(found), 1),
                "least_us": round(min(found), 1),
                "most_us": round(max(found), 1),
                "ratio": round(statistics.median(ratios[name]), 3),
                "ratio_least": round(min(ratios[name]), 3),
                "ratio_most": round(max(ratios[name]), 3),
            }
            for name, found in costs.items()
        },
    }


def write_report(command: str, figures: Figures, out: Path | None) -> None:
    """Print the figures with machine and versions, and write them where they are wanted."""
    names = ("fastapi", "starlette", "uvicorn", "pyarrow", "sqlalchemy")
    report = {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Linux",
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
        "rows": ROWS,
    } | figures
    text = json.dumps(report, indent=1)
    print(text)
    if out:
        out.write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), args.turns, args.count)
    command = f"python benchmarks/service.py --turns {args.turns} --count {args.count}"
    write_report(command, {"turns": args.turns} | figures, args.out)


if __name__ == "__main__":
    main()
