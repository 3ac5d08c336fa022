"""What the service costs: requests over loopback, and questions to a PDB-and-more-sized index.

    python benchmarks/service.py --out benchmarks/results/service.json

The service runs in a child process (one worker, SQLite), the client in this one, so
both share the machine's cores: requests a second are floors. CPU is the child's own,
user and system. The index has 634,434 rows, as many as OpenProteinSet's training set.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from evofeed.chain_record import ChainRecord
from evofeed.loader import LoaderConfig, plan_samples
from evofeed.service.filters.columns import Columns
from evofeed.service.snapshots import chains
from evofeed.store import Dataset, DatasetWriter
from evofeed.store.history import diff_indexes
from evofeed.store.index import index_schema
from evofeed.store.inner import column_statistics
from evofeed.store.layout import COLUMNS

ROWS = 634_434
PER_SHARD = 600
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


def timed(function: Callable[[], object], repeats: int) -> Figures:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    return {
        "best_ms": round(times[0], 3),
        "median_ms": round(statistics.median(times), 3),
        "worst_ms": round(times[-1], 3),
        "repeats": repeats,
    }


def index_figures(repeats: int) -> Figures:
    """Questions to one large index, in this process."""
    index = large_index(0)
    columns, config = chains.columns_of(index, None), LoaderConfig.initial_training()
    common = {
        "all": [
            {"column": "num_res", "op": "<=", "value": 384},
            {"column": "resolution", "op": "<=", "value": 2.5},
            {"column": "release_date", "op": ">=", "value": "2018-01-01"},
            {"column": "method", "op": "in", "value": ["X-RAY DIFFRACTION"]},
        ]
    }
    rare = {"column": "num_alignments", "op": "==", "value": 19_999}
    other = large_index(1)
    return {
        "rows": ROWS,
        "page_of_100_first": timed(lambda: chains.page(index, common, columns, 0, 100), repeats),
        "page_of_1000_middle": timed(
            lambda: chains.page(index, common, columns, ROWS // 2, 1000), repeats
        ),
        "page_of_a_rare_value": timed(lambda: chains.page(index, rare, columns, 0, 100), repeats),
        "exact_count": timed(lambda: chains.count(Columns(index), common), repeats),
        "one_chain": timed(lambda: chains.row_of(index, "600000_A"), repeats),
        "statistics_of_every_column": timed(lambda: column_statistics(index), 3),
        "difference_of_two": timed(lambda: diff_indexes(index, other), 3),
        "plan_of_a_rank_of_8": timed(lambda: plan_samples(index, config, world_size=8, rank=3), 5),
        "plan_of_a_rank_of_1024": timed(
            lambda: plan_samples(index, config, world_size=1024, rank=3), 5
        ),
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(
    url: str, pid: int, path: str, headers: dict[str, str], count: int, clients: int
) -> Figures:
    """Requests of some clients, each on one kept-alive connection."""
    parts = urlsplit(url)
    times: list[float] = []
    total = [0]

    def client() -> None:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        for _ in range(count // clients):
            start = time.perf_counter()
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
            times.append(time.perf_counter() - start)
            total[0] += len(body)
            assert response.status < 400, (response.status, body[:200])
        connection.close()

    client_threads = [threading.Thread(target=client) for _ in range(clients)]
    before, start = cpu_seconds(pid), time.perf_counter()
    for thread in client_threads:
        thread.start()
    for thread in client_threads:
        thread.join()
    seconds = time.perf_counter() - start
    times.sort()
    return {
        "clients": clients,
        "requests": len(times),
        "per_second": round(len(times) / seconds, 1),
        "p50_ms": round(times[len(times) // 2] * 1e3, 3),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1e3, 3),
        "mib_per_second": round(total[0] / seconds / 2**20, 1),
        "service_cpu_ms_a_request": round((cpu_seconds(pid) - before) / len(times) * 1e3, 3),
    }


def http_figures(folder: Path, requests: int) -> Figures:
    """Requests to a service in a child process."""
    writer = DatasetWriter(str(folder / "data"))
    for number in range(48):
        writer.add(record(number))
    digest = writer.commit("main").digest
    shard = Dataset.open(folder / "data").manifest.shards[0]
    environment = os.environ | {"EVOFEED_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "evofeed.cli", "serve", "--port", "0", "--json",
               "--dataset", f"bench={folder / 'data'}"]  # fmt: skip
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            url = json.loads(child.stdout.readline())["url"]
            base = "/v1/datasets/bench"
            known = {"If-None-Match": f'"{digest}"'}
            snapshot, bytes_of = f"{base}/snapshots/{digest}", f"{base}/shards/{shard.name}"
            small = {"Range": f"bytes=0-{(350 << 10) - 1}"}
            large = {"Range": f"bytes=0-{(4 << 20) - 1}"}
            cases: dict[str, tuple[str, dict[str, str], int]] = {
                "healthz": ("/healthz", {}, requests),
                "ref": (f"{base}/refs/main", {}, requests),
                "ref_unchanged_304": (f"{base}/refs/main", known, requests),
                "manifest_unchanged_304": (snapshot, known, requests),
                "chains_page_of_48": (f"{snapshot}/chains?max_length=999", {}, requests),
                "shard_range_of_350_KiB": (bytes_of, small, requests),
                "shard_range_of_4_MiB": (bytes_of, large, requests // 4),
                "whole_shard": (bytes_of, {}, max(requests // 40, 4)),
            }
            figures: Figures = {"shard_bytes": shard.nbytes}
            for name, (path, headers, count) in cases.items():
                load(url, child.pid, path, headers, 20, 1)
                figures[name] = [
                    load(url, child.pid, path, headers, count, clients) for clients in (1, 4)
                ]
            figures["open_dataset"] = timed(lambda: Dataset.open(f"{url}{base}"), 10)
            return figures
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="evofeed-bench-") as folder:
        over_http = http_figures(Path(folder), options.requests)
    names = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "pyarrow")
    result = {
        "command": "python benchmarks/service.py",
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load_before": os.getloadavg()[0],
        "versions": {"python": platform.python_version()} | {n: version(n) for n in names},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "http": over_http,
        "index": index_figures(options.repeats),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
