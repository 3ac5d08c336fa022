"""What a request costs, as shares of the smallest request there is: a bare FastAPI's hello.

    python benchmarks/service_ratios.py --out benchmarks/results/service_ratios.json

`wrk` (8 connections, one thread) asks, in turns so that a busy machine slows all alike: a FastAPI
with one `def` route that returns {"hello": "world"}, on the same uvicorn (uvloop, httptools, one
process); the service, likewise one process, on SQLite; and nginx (one worker, sendfile) for the
same 350 KiB of the same shard. Ratios are of each round; their median and spread are kept.
Chains and ranks are other ones in each request; pages are some 200, filters 60, so that most were
asked before, or as good as never asked. The index has a million rows.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import importlib
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from evofeed.store import Dataset, DatasetWriter, ShardEntry
from evofeed.store.index import canonical
from evofeed.store.refs import move_ref
from evofeed.store.storage import LocalStorage
from evofeed.store.writer import write_snapshot

small = importlib.import_module("service")  # the benchmark beside this one
HELLO = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/")
def hello():
    return {"hello": "world"}
@app.get("/async")
async def hello_async():
    return {"hello": "world"}
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False, loop="uvloop",
            http="httptools")
"""
TARGETS = {
    "manifest": 0.9, "manifest_304": 0.9, "ref": 0.6, "page_of_100": 0.5, "filter_of_4_terms": 0.3,
    "one_chain": 0.6, "shard_350_KiB": 0.7, "shard_350_KiB_by_accel": 0.7,
}  # fmt: skip


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, text=True, **options) as child:
        try:
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(30)


def wait_for(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.connect()
            connection.close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"nobody listens on {port}")


def ask(
    url: str, seconds: int, *, script: Path | None = None, headers: tuple[str, ...] = ()
) -> float:
    """Requests a second; refuses to count answers that are none."""
    time.sleep(1)  # what callers before left behind counts for the same address
    command = ["wrk", "-t1", "-c8", f"-d{seconds}s"]
    command += ["-s", str(script)] if script else []
    for header in headers:
        command += ["-H", header]
    said = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError(f"{url}: {said}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert found, said
    return float(found[1])


def publish(folder: Path, rows: int) -> tuple[str, str, str]:
    """Two datasets: chains of ordinary size, and an index of `rows` rows without its shards."""
    writer = DatasetWriter(str(folder / "data"))
    for number in range(48):
        writer.add(small.record(number))
    digest = writer.commit("main").digest
    names = [f"{number:064x}" for number in range(-(-rows // small.PER_SHARD))]
    entries = [ShardEntry(f"{name}.arrow", name, 1 << 28, small.PER_SHARD) for name in names]
    storage = LocalStorage(folder / "large")
    large = write_snapshot(
        storage, canonical([small.large_index(0, rows)]), entries, parent=None, config={}
    )
    move_ref(storage, "main", large.digest, None)
    shard = Dataset.open(folder / "data").manifest.shards[0].name
    return digest, large.digest, shard


def lua(folder: Path, name: str, body: str) -> Path:
    path = folder / f"{name}.lua"
    path.write_text(f"math.randomseed(os.time())\nrequest = function()\n{body}\nend\n")
    return path


def nginx(folder: Path, port: int, service: int) -> list[str]:
    """One worker: the shards by sendfile, and the service behind X-Accel."""
    user = "user root;" if os.getuid() == 0 else ""
    text = f"""{user} worker_processes 1; pid {folder}/nginx.pid; daemon off;
error_log {folder}/nginx.err;
events {{ }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream service {{ server 127.0.0.1:{service}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port};
    location /plain/ {{ alias {folder}/data/shards/; }}
    location /_shards/ {{ internal; alias /; }}
    location / {{
      proxy_pass http://service; proxy_http_version 1.1;
      proxy_set_header Connection ""; proxy_set_header Host $host;
    }}
  }}
}}"""
    (folder / "nginx.conf").write_text(text)
    return ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)]


def worst(url: str, folder: Path, pid: int, seconds: int) -> dict[str, Any]:
    """60 callers of the dearest requests at once; how long others wait, and what memory does."""
    base = f"{url}/v1/datasets/large"
    digest = json.load(urlopen(f"{base}/refs/main"))["digest"]
    terms = [{"column": "num_alignments", "op": "==", "value": 30_000 + i} for i in range(199)]
    deep = json.dumps({"where": {"any": terms}, "limit": 1000, "count": True})
    path = urlpath(f"{base}/snapshots/{digest}")
    search = lua(
        folder,
        "worst",
        f"""n = (n or 0) + 1
        if n % 2 == 0 then
          local rank = math.random(0, 65535)
          local query = "/plan?world_size=65536&rank=" .. rank .. "&seed=" .. n
          return wrk.format("GET", "{path}" .. query)
        end
        local json = {{["Content-Type"] = "application/json"}}
        return wrk.format("POST", "{path}/chains/search", json, [=[{deep}]=])""",
    )
    times: dict[str, list[float]] = {"healthz": [], "ref": []}
    peak, stop = [0.0], threading.Event()

    def look(name: str, path: str) -> None:
        while not stop.is_set():
            began = time.perf_counter()
            urlopen(path, timeout=60).read()
            times[name].append(time.perf_counter() - began)
            peak[0] = max(peak[0], memory(pid))
            time.sleep(0.02)

    before = memory(pid)
    lookers = [threading.Thread(target=look, args=pair) for pair in
               (("healthz", f"{url}/healthz"), ("ref", f"{base}/refs/main"))]  # fmt: skip
    for looker in lookers:
        looker.start()
    said = subprocess.run(
        ["wrk", "-t1", "-c60", f"-d{seconds}s", "--timeout", "60s", "--latency",
         "-s", str(search), url],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    stop.set()
    for looker in lookers:
        looker.join()
    time.sleep(5)
    latency = dict(re.findall(r"(50%|99%)\s+(\S+)", said))
    return {
        "clients": 60,
        "seconds": seconds,
        "wrk": [line.strip() for line in said.splitlines() if line.strip()],
        "latency": latency,
        **{
            f"{name}_meanwhile_ms": {
                "p50": round(statistics.median(found) * 1e3, 1),
                "p99": round(sorted(found)[int(len(found) * 0.99)] * 1e3, 1),
                "requests": len(found),
            }
            for name, found in times.items()
        },
        "rss_mib": {"before": before, "peak": peak[0], "5_s_after": memory(pid)},
    }


def urlpath(url: str) -> str:
    return "/" + url.split("/", 3)[3]


def memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    anonymous = next(line for line in lines if line.startswith("Anonymous:"))
    return round(int(anonymous.split()[1]) / 1024, 1)


def starts(folder: Path, repeats: int) -> dict[str, float]:
    """Seconds from the command to the line that says it serves, with a database that is there."""
    environment = os.environ | {"EVOFEED_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "evofeed.cli", "serve", "--port", "0", "--json", "--no-auth"]
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        with running(command, env=environment, stdout=subprocess.PIPE) as child:
            assert child.stdout
            child.stdout.readline()
            times.append(time.perf_counter() - began)
    return {"best": round(min(times[1:]), 2), "median": round(statistics.median(times[1:]), 2)}


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    digest, large, shard = publish(folder, options.rows)
    ports = [options.port + i for i in range(3)]
    hello = folder / "hello.py"
    hello.write_text(HELLO)
    environment = os.environ | {"EVOFEED_HOME": str(folder / "home"), "EVOFEED_ACCEL": ""}
    serve = [sys.executable, "-m", "evofeed.cli", "serve", "--no-auth", "--json"]
    serve += ["--dataset", f"small={folder / 'data'}", "--dataset", f"large={folder / 'large'}"]
    accel = environment | {"EVOFEED_ACCEL": "/_shards", "EVOFEED_HOME": str(folder / "home2")}
    with contextlib.ExitStack() as stack:
        stack.enter_context(running([sys.executable, str(hello), str(ports[0])]))
        service = stack.enter_context(
            running([*serve, "--port", str(ports[1])], env=environment, stdout=subprocess.DEVNULL)
        )
        stack.enter_context(running(nginx(folder, ports[2], ports[1] + 50)))
        stack.enter_context(
            running([*serve, "--port", str(ports[1] + 50)], env=accel, stdout=subprocess.DEVNULL)
        )
        for port in (*ports, ports[1] + 50):
            wait_for(port)
        bare, url, front = (f"http://127.0.0.1:{port}" for port in ports)
        base, big = f"{url}/v1/datasets/small", f"{url}/v1/datasets/large/snapshots/{large}"
        part = ("Range: bytes=0-358399",)
        path = urlpath(big)
        filters = (
            "max_length=384&max_resolution=2.5&released_from=2018-01-01&method=X-RAY%20DIFFRACTION"
        )
        chosen = f'"{path}/chains?{filters}&min_depth=" .. math.random(1, 60)'
        chain = f'string.format("{path}/chains/%06d_A", math.random(0, {options.rows - 1}))'
        rank = f'"{path}/plan?world_size=65536&rank=" .. math.random(0, 65535)'
        plain = filters.replace("max_resolution=2.5&", "")
        unseen = f'"{path}/chains?{plain}&max_resolution=2." .. math.random(40000, 60000)'
        cursor = 'cursors[math.random(#cursors)] .. "&limit="'
        known = {"headers": (f'If-None-Match: "{digest}"',)}

        def random(name: str, target: str) -> tuple[str, dict[str, Any]]:
            return url, {"script": lua(folder, name, f'return wrk.format("GET", {target})')}

        shard_path = f"v1/datasets/small/shards/{shard}"
        cases: dict[str, tuple[str, dict[str, Any]]] = {
            "hello_async": (f"{bare}/async", {}),
            "healthz": (f"{url}/healthz", {}),
            "manifest": (f"{base}/snapshots/{digest}", {}),
            "manifest_304": (f"{base}/snapshots/{digest}", known),
            "ref": (f"{base}/refs/main", {}),
            "page_of_100": random("page", f"{cursor} .. 100"),
            "page_of_100_never_asked": random("new_page", f"{cursor} .. math.random(90, 110)"),
            "filter_of_4_terms": random("filter", chosen),
            "filter_of_4_terms_never_asked": random("new_filter", unseen),
            "one_chain": random("one", chain),
            "plan_of_a_rank_of_65536": random("plan", rank),
            "shard_350_KiB": (f"{url}/{shard_path}", {"headers": part}),
            "shard_350_KiB_by_accel": (f"{front}/{shard_path}", {"headers": part}),
        }
        cursors = ",".join(f'"{one}"' for one in pages(url, path, options.rows // 5000))
        for script in (folder / "page.lua", folder / "new_page.lua"):
            script.write_text(f"cursors = {{{cursors}}}\n{script.read_text()}")
        found: dict[str, list[float]] = {name: [] for name in ("hello", "nginx", *cases)}
        for where, extra in cases.values():  # warm
            ask(where, 1, **extra)
        ratios: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(options.repeats):
            for name, (where, extra) in cases.items():
                against = "nginx" if name.startswith("shard") else "hello"
                if against == "hello":
                    other = ask(f"{bare}/", options.seconds)
                else:
                    other = ask(f"{front}/plain/{shard}", options.seconds, headers=part)
                mine = ask(where, options.seconds, **extra)
                found[against].append(other)
                found[name].append(mine)
                ratios[name].append(mine / other)
        one = json.dumps(json.load(urlopen(f"{big}/plan?world_size=65536&rank=7")))
        return {
            "per_second": {n: spread(v) for n, v in found.items()},
            "ratio": {n: spread(v, 3) for n, v in ratios.items()},
            "bytes_of_the_plan_of_a_rank": len(one),
            "worst": worst(url, folder, service.pid, options.seconds * 5),
        }


def pages(url: str, path: str, count: int) -> list[str]:
    """Pages of 100 from all over the index: cursors, as a client that pages gets them."""
    found, cursor = [], ""
    for _ in range(count):
        query = f"{path}/chains?limit=1000" + (f"&cursor={cursor}" if cursor else "")
        cursor = json.load(urlopen(url + query))["next"]
        found.append(f"{path}/chains?cursor={cursor}")
    return found


def spread(values: list[float], digits: int = 1) -> dict[str, float]:
    return {"median": round(statistics.median(values), digits), "least": round(min(values), digits),
            "most": round(max(values), digits)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
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
        figures["start_seconds"] = starts(folder, 3)
    names = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pyarrow", "orjson")
    result = {
        "command": "python benchmarks/service_ratios.py",
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load_before": begun,
        "versions": {"python": platform.python_version()} | {n: version(n) for n in names},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rows": options.rows, "seconds": options.seconds, "repeats": options.repeats,
        "targets": TARGETS,
        **figures,
    }  # fmt: skip
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
