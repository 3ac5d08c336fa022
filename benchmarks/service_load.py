"""The service under load: its dearest questions, bytes through nginx, memory.

    python benchmarks/service_load.py --out benchmarks/results/service_load.json

A service of one worker, SQLite and a token, as in `service.py`, with an index of a million rows.
`dearest` asks each question once, none twice, one after the other, and times the whole answer.
`nginx` reads a shard whole, in turns: by the service's word (X-Accel-Redirect), and as a plain file
of the same nginx. `memory` is what is resident while a mixture of questions is asked.
"""

from __future__ import annotations

import argparse
import http.client
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.service import (
    ROWS,
    Asker,
    Figures,
    four_terms,
    publish,
    record,
    resident,
    running,
    write_report,
)

from evofeed.service.access.auth import create_token
from evofeed.service.database.database import Database
from evofeed.store import Dataset, DatasetWriter

PORT = 18581
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ }}
http {{
  access_log off; sendfile on;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{behind}; proxy_http_version 1.1;
                  proxy_set_header Connection ""; }}
    location /_shards/ {{ internal; alias /; disable_symlinks on; }}
    location /plain/ {{ alias {shards}/; }}
  }}
}}
"""


def dearest(asker: Asker, snapshot: str, count: int) -> Figures:
    """Seconds of the dearest questions there are, by kind."""
    kinds = {
        "exact count of four terms": lambda n: f"{snapshot}/chains?count=true&where={four_terms()}",
        "page of the browser": lambda n: f"/ui/datasets/large?where={four_terms()}",
        "page of the browser, sorted": lambda n: (
            f"/ui/datasets/large?sort=resolution&desc=true&min_length={20 + n}"
        ),
        "plan of one of 60,000 ranks": lambda n: (
            f"{snapshot}/plan?world_size={60_000 + n}&rank={n}&seed={n}"
        ),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(count):
        kind = list(kinds)[number % len(kinds)]
        path = kinds[kind](number)
        began = time.perf_counter()
        cpu[kind].append(asker.cost(lambda path=path: path, 1, 200) / 1e6)
        seconds[kind].append(time.perf_counter() - began)
    return {"questions": count, "seconds": _spread(seconds), "cpu_seconds": _spread(cpu)}


def _spread(found: dict[str, list[float]]) -> Figures:
    every = sorted(value for kind in found.values() for value in kind)
    return {
        "median": round(statistics.median(every), 3),
        "p99": round(every[math.ceil(0.99 * len(every)) - 1], 3),
        "by_kind": {
            kind: {"median": round(statistics.median(each), 3), "most": round(max(each), 3)}
            for kind, each in found.items()
        },
    }


def by_nginx(folder: Path, token: str, shard: str, turns: int) -> Figures:
    """Bytes a second through the service's word, and of nginx alone."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "no nginx here"
    shards, port = folder / "data" / "shards", PORT + 1
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, behind=PORT, shards=shards))
    command = [program, "-c", str(config), "-g", "user root;" if os.getuid() == 0 else ""]
    paths = {"service": f"/v1/datasets/data/shards/{shard}", "nginx alone": f"/plain/{shard}"}
    size = (shards / shard).stat().st_size
    rates: dict[str, list[float]] = {name: [] for name in paths}
    with running(command, port):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for turn in range(turns + 1):
            for name, path in paths.items():
                began, read = time.perf_counter(), 0
                connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
                answer = connection.getresponse()
                while piece := answer.read(1 << 20):
                    read += len(piece)
                assert answer.status == 200 and read == size, (answer.status, read)
                if turn:  # the first fills the page cache
                    rates[name].append(size / (time.perf_counter() - began))
    ratios = [ours / alone for ours, alone in zip(*rates.values(), strict=True)]
    spread = statistics.quantiles(ratios, n=4)
    return {
        "shard_bytes": size,
        "turns": turns,
        "mb_per_s": {name: round(statistics.median(r) / 1e6) for name, r in rates.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(spread[0], 3), round(spread[2], 3)],
    }


def memory(asker: Asker, snapshot: str, ref: str, requests: int) -> Figures:
    """Resident bytes every tenth of a mixture of questions: refs, manifests, chains and filters."""
    cheap = {
        "ref": lambda: ref,
        "manifest": lambda: snapshot,
        "chain": lambda: f"{snapshot}/chains/{random.randrange(ROWS):06d}_A",
    }
    begin, found = resident(asker.pid), []
    for _ in range(10):
        for _ in range(requests // 1000):  # a hundred requests
            for number, path in enumerate(cheap.values()):
                asker.cost(path, 33 if number else 32, 200)
            asker.cost(lambda: f"{snapshot}/chains?where={four_terms()}", 1, 200)
            asker.cost(lambda: f"{snapshot}/chains?count=true&where={four_terms()}", 1, 200)
        found.append(resident(asker.pid))
    return {"requests": requests, "before": begin, "each_tenth": found}


def measure(folder: Path, questions: int, turns: int, requests: int) -> Figures:
    _, large = publish(folder)
    writer = DatasetWriter(str(folder / "data"))
    for number in range(192):  # one shard, which takes longer to send than to ask for
        writer.add(record(100 + number))
    writer.commit("big")
    shard = Dataset.open(folder / "data", "big").manifest.shards[0].name
    folder.chmod(0o755)
    home = folder / "home"
    environment = os.environ | {"EVOFEED_HOME": str(home), "EVOFEED_AUTH": "on"}
    environment |= {"EVOFEED_ACCEL": "/_shards"}
    database = Database(f"sqlite:///{home / 'service.sqlite3'}")
    database.upgrade()
    token = create_token(database, label="benchmark", scopes=["read"])[1]
    database.close()
    command = [sys.executable, "-m", "evofeed.cli", "serve", "--port", str(PORT)]
    command += [f"--dataset={name}={folder / name}" for name in ("data", "large")]
    snapshot = f"/v1/datasets/large/snapshots/{large}"
    with running(command, PORT, env=environment, stdout=subprocess.DEVNULL) as pid:
        asker = Asker(PORT, pid, token)
        asker.get(snapshot)  # opens the index
        return {
            "dearest": dearest(asker, snapshot, questions),
            "nginx": by_nginx(folder, token, shard, turns),
            "memory": memory(asker, snapshot, "/v1/datasets/data/refs/main", requests),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--requests", type=int, default=60_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), args.questions, args.turns, args.requests)
    command = (
        "python benchmarks/service_load.py "
        f"--questions {args.questions} --turns {args.turns} --requests {args.requests}"
    )
    write_report(command, figures, args.out)


if __name__ == "__main__":
    main()
