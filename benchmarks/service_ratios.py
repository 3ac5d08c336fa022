"""What a request costs, as shares of the smallest request there is: a bare FastAPI's hello.

    python benchmarks/service_ratios.py --out benchmarks/results/service_ratios.json

`wrk` (8 connections, one thread) asks in short turns, a turn of the other beside each of ours, so
that a busy machine slows both alike: a FastAPI with one `def` route that returns {"hello":
"world"}, on the same uvicorn (uvloop, httptools, one process); the service, likewise one process;
and nginx (one worker, sendfile) for the same 350 KiB of the same shard, which the service sends by
itself, and by that nginx: on its word (X-Accel), or by a link that nginx checks. Ratios are of each
pair of turns; `cpu_us` is what the processes that answer spend on a request (user and system),
which other programs disturb least. Chains and ranks are other ones in each request; pages are some
200, filters 60, so that most were asked before, or as good as never asked. The index has a million
rows. The first table is on SQLite without tokens; then come shorter ones with tokens, with tokens
on PostgreSQL, and with `--workers 2`. `service_loader.py` reads the chains of the small dataset
with a loader: from the service, from nginx on its word, and by links. `service_worst.py` asks the
dearest questions there are: from one address, which may have 16 of them waiting, and with 60
tokens, so that every one is admitted.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

faults = importlib.import_module("faults.processes")  # beside this one
stand = importlib.import_module("service_stand")
worst = importlib.import_module("service_worst").worst
loader_ways = importlib.import_module("service_loader").loader_ways
SHORT = ("manifest", "ref", "page_of_100_never_asked", "filter_of_4_terms_never_asked",
         "one_chain", "shard_350_KiB", "shard_350_KiB_by_link")  # fmt: skip
TARGETS = {
    "manifest": 0.9, "manifest_304": 0.9, "ref": 0.6, "page_of_100": 0.5, "filter_of_4_terms": 0.3,
    "one_chain": 0.6, "shard_350_KiB": 0.7, "shard_350_KiB_by_accel": 0.7,
    "shard_350_KiB_by_link": 0.7,
}  # fmt: skip


def ask(
    url: str, seconds: int, *, script: Path | None = None, headers: tuple[str, ...] = ()
) -> float:
    """Requests a second; refuses to count answers that are none."""
    time.sleep(0.1)
    command = ["wrk", "-t1", "-c8", f"-d{seconds}s"]
    command += ["-s", str(script)] if script else []
    for header in headers:
        command += ["-H", header]
    for _ in range(5):
        said = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
        if "Non-2xx" in said or "Socket errors" in said:
            raise RuntimeError(f"{url}: {said}")
        found = re.search(r"Requests/sec:\s+([\d.]+)", said)
        if found and float(found[1]):  # on a busy machine a turn may go by without an answer
            return float(found[1])
    raise RuntimeError(f"{url}: no answer in five turns")


def turn(pids: list[int], url: str, seconds: int, **more: Any) -> tuple[float, float]:
    """Requests a second, and microseconds of CPU a request."""
    before = stand.cpu_seconds(pids)
    rate = ask(url, seconds, **more)
    return rate, (stand.cpu_seconds(pids) - before) / (rate * seconds) * 1e6


def starts(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds from the command to the line that says it serves, with a database that is there."""
    environment = os.environ | {"EVOFEED_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "evofeed.cli", "serve", "--port", "0", "--json", "--no-auth"]
    times, costs = [], []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        with stand.running(command, env=environment, stdout=subprocess.PIPE) as child:
            assert child.stdout
            child.stdout.readline()
            times.append(time.perf_counter() - began)
            costs.append(stand.cpu_seconds([child.pid]))
    return {"wall": stand.spread(times[1:], 2), "cpu": stand.spread(costs[1:], 2)}


def table(on: Any, names: Iterable[str], repeats: int) -> dict[str, Any]:
    """Requests a second, CPU and ratios."""
    cases = on.cases()
    cases = {name: cases[name] for name in names or cases}
    plain = f"{on.front}/plain/{on.names[2]}", ("Range: bytes=0-358399",)
    rates: dict[str, list[float]] = {name: [] for name in ("hello", "nginx", *cases)}
    costs: dict[str, list[float]] = {name: [] for name in rates}
    ratios: dict[str, list[float]] = {name: [] for name in cases}
    by_cpu: dict[str, list[float]] = {name: [] for name in cases}
    for where, extra in cases.values():  # warm
        ask(where, 1, **extra)
    for _ in range(repeats):
        for name, (where, extra) in cases.items():
            against = "nginx" if name.startswith("shard") else "hello"
            pids = on.pids["hello" if name == "hello_async" else "service"]
            pids = on.pids["nginx"] + on.pids["behind"] if "_by_" in name else pids
            if against == "hello":
                other = turn(on.pids["hello"], f"{on.bare}/", on.seconds)
            else:
                other = turn(on.pids["nginx"], plain[0], on.seconds, headers=plain[1])
            mine = turn(pids, where, on.seconds, **extra)
            for one, (rate, cost) in ((against, other), (name, mine)):
                rates[one].append(rate)
                costs[one].append(cost)
            ratios[name].append(mine[0] / other[0])
            by_cpu[name].append(other[1] / mine[1])
    return {
        "repeats": repeats,
        "per_second": {n: stand.spread(v) for n, v in rates.items() if v},
        "ratio": {n: stand.spread(v, 3) for n, v in ratios.items()},
        "cpu_us": {n: stand.spread(v) for n, v in costs.items() if v},
        "ratio_by_cpu": {n: stand.spread(v, 3) for n, v in by_cpu.items()},
    }


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    names = stand.publish(folder, options.rows)
    found: dict[str, Any] = {"ways": {}}
    with contextlib.ExitStack() as stack:
        on = stand.Stand(folder, options, stack, names, {}, tokens=False)
        found |= table(on, options.cases, options.repeats)
        if options.out:
            options.out.with_suffix(".part").write_text(json.dumps(found))
        one = json.dumps(on.get(f"{on.path}/plan?world_size=65536&rank=7"))
        found["bytes_of_the_plan_of_a_rank"] = len(one)
        found["loader"] = loader_ways(on, options.seconds * 5, min(options.repeats, 5))
        if options.cases:
            return found
        found["worst"] = {"one_address": worst(on, options.seconds * 10)}
    for way in options.ways:
        with contextlib.ExitStack() as stack:
            settings = {"EVOFEED_WORKERS": "2"} if way.endswith("workers_2") else {}
            if way == "postgresql_tokens":
                database = faults.Postgres(folder / "postgres")
                stack.callback(database.stop)
                settings["EVOFEED_DATABASE_URL"] = database.url
                migrate = [sys.executable, "-m", "evofeed.cli", "serve", "--migrate"]
                subprocess.run(migrate, env=os.environ | settings, check=True)
            on = stand.Stand(folder, options, stack, names, settings, tokens="tokens" in way)
            found["ways"][way] = table(on, SHORT, max(3, options.repeats // 2))
            if options.out:  # what there is, should the rest fail
                options.out.with_suffix(".part").write_text(json.dumps(found))
            if way.startswith("tokens"):
                found["worst"][f"sixty_{way}"] = worst(on, options.seconds * 10)
    return found


def given(arguments: list[str]) -> list[str]:
    """The options of a command, where it writes left out."""
    left_out = {at + more for at, one in enumerate(arguments) if one == "--out" for more in (0, 1)}
    return [one for at, one in enumerate(arguments) if at not in left_out]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--cases", nargs="*", default=[],
        help="these rows of the first table and the loader, nothing else",
    )  # fmt: skip
    parser.add_argument(
        "--ways", nargs="*", help="further tables",
        default=["tokens", "tokens_workers_2", "postgresql_tokens", "workers_2"],
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=9200)
    options = parser.parse_args()
    for program in ("wrk", "nginx"):
        if shutil.which(program) is None:
            parser.error(f"this needs {program}: apt-get install wrk nginx-light")
    with tempfile.TemporaryDirectory(prefix="evofeed-ratios-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        begun = os.getloadavg()[0]
        figures = measure(folder, options)
        if not options.cases:
            figures["start_seconds"] = starts(folder, 5)
    names = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pyarrow", "orjson")
    result = {
        "command": " ".join(["python benchmarks/service_ratios.py", *given(sys.argv[1:])]),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load_before": begun,
        "versions": {"python": platform.python_version()} | {n: version(n) for n in names},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rows": options.rows, "seconds": options.seconds,
        "targets": TARGETS,
        **figures,
    }  # fmt: skip
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
