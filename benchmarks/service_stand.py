"""What `service_ratios.py` asks: a bare FastAPI, the service, and nginx in front of another."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from evofeed.store import Dataset, DatasetWriter, ShardEntry
from evofeed.store.index import canonical
from evofeed.store.refs import move_ref
from evofeed.store.storage import LocalStorage
from evofeed.store.writer import write_snapshot

small = importlib.import_module("service")  # the benchmarks beside this one
faults = importlib.import_module("faults.processes")
CONFIG = Path(__file__).resolve().parents[1] / "deploy" / "nginx.conf"
TICKS = os.sysconf("SC_CLK_TCK")
SECRET = secrets.token_hex(32)
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


def link_location(folder: Path) -> str:
    """What `deploy/nginx.conf` says of links, for datasets in `folder`/links."""
    text = CONFIG.read_text()
    begin = text.index('    location ~ "^/_links/')
    block = text[begin : text.index("\n    }\n", begin) + 7]
    (folder / "secret").write_text(f"set $evofeed_secret {SECRET};\n")
    return block.replace("/data/.links", f"{folder}/links").replace(
        "/run/secrets/evofeed_link_secret", f"{folder}/secret"
    )


def nginx(folder: Path, port: int, service: int) -> list[str]:
    """One worker: the shards by sendfile, by links, and by the service's word (X-Accel)."""
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
{link_location(folder)}
    location / {{
      proxy_pass http://service; proxy_http_version 1.1;
      proxy_set_header Connection ""; proxy_set_header Host $http_host;
    }}
  }}
}}"""
    (folder / "nginx.conf").write_text(text)
    return ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)]


def urlpath(url: str) -> str:
    return "/" + url.split("/", 3)[3]


def cpu_seconds(pids: list[int]) -> float:
    found = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += int(fields[11]) + int(fields[12])
    return found / TICKS


def spread(values: list[float], digits: int = 1) -> dict[str, float]:
    return {"median": round(statistics.median(values), digits), "least": round(min(values), digits),
            "most": round(max(values), digits)}  # fmt: skip


def family(pid: int) -> list[int]:
    """A process and those below it."""
    return [pid, *faults.descendants(pid)]


class Stand:
    """A bare FastAPI, the service, and nginx in front of a second one, all running.

    Args:
        folder: of the datasets and of what they write.
        options: of the command.
        stack: ends them.
        names: of the two datasets' snapshots and of a shard.
        settings: of the service, as in its environment.
        tokens: whether it wants them.
    """

    def __init__(
        self, folder: Path, options: argparse.Namespace, stack: contextlib.ExitStack,
        names: tuple[str, str, str], settings: dict[str, str], tokens: bool,
    ) -> None:  # fmt: skip
        self.rows, self.seconds, self.names = options.rows, options.seconds, names
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.folder.chmod(0o755)
        (self.folder / "data").symlink_to(folder / "data")
        (self.folder / "hello.py").write_text(HELLO)
        bare, own, front, behind = (options.port + i for i in range(4))
        serve = [sys.executable, "-m", "evofeed.cli", "serve", "--json"]
        serve += [] if tokens else ["--no-auth"]
        serve += ["--dataset", f"small={folder / 'data'}", "--dataset", f"large={folder / 'large'}"]

        def start(command: list[str], **more: Any) -> subprocess.Popen[str]:
            return stack.enter_context(running(command, **more))

        def service(port: int, accel: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
            home = {"EVOFEED_HOME": str(self.folder / str(port)), "EVOFEED_ACCEL": accel}
            if accel:
                home |= {"EVOFEED_LINKS": str(self.folder / "links"),
                         "EVOFEED_LINK_SECRET": SECRET}  # fmt: skip
            command = [*serve, "--port", str(port)]
            child = start(command, env=os.environ | home | settings, stdout=subprocess.PIPE)
            assert child.stdout
            return child, json.loads(child.stdout.readline())

        hello = start([sys.executable, str(self.folder / "hello.py"), str(bare)])
        ours, said = service(own, "")
        theirs, also_said = service(behind, "/_shards")
        ngx = start(nginx(self.folder, front, behind))
        for port in (bare, own, front, behind):
            wait_for(port)
        self.bare, self.url, self.front = (f"http://127.0.0.1:{p}" for p in (bare, own, front))
        self.pid = ours.pid
        self.pids = {"hello": family(hello.pid), "service": family(ours.pid),
                     "nginx": family(ngx.pid), "behind": family(theirs.pid)}  # fmt: skip
        one, other = said.get("token", ""), also_said.get("token", "")
        # A start's token is good until the next start on the same database.
        self.tokens = [other if "EVOFEED_DATABASE_URL" in settings else one, other]
        self.path = urlpath(f"{self.url}/v1/datasets/large/snapshots/{names[1]}")

    def cases(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """What is asked, by name: where, and how."""
        digest, _, shard = self.names
        base, path = f"{self.url}/v1/datasets/small", self.path
        part = ("Range: bytes=0-358399",)
        filters = (
            "max_length=384&max_resolution=2.5&released_from=2018-01-01&method=X-RAY%20DIFFRACTION"
        )
        plain = filters.replace("max_resolution=2.5&", "")
        chosen = f'"{path}/chains?{filters}&min_depth=" .. math.random(1, 60)'
        unseen = f'"{path}/chains?{plain}&max_resolution=2." .. math.random(40000, 60000)'
        chain = f'string.format("{path}/chains/%06d_A", math.random(0, {self.rows - 1}))'
        rank = f'"{path}/plan?world_size=65536&rank=" .. math.random(0, 65535)'
        cursor = 'cursors[math.random(#cursors)] .. "&limit="'
        known = {"headers": (f'If-None-Match: "{digest}"',)}

        def random(name: str, target: str) -> tuple[str, dict[str, Any]]:
            body = f'return wrk.format("GET", {target})'
            return self.url, {"script": lua(self.folder, name, body)}

        shard_path = f"v1/datasets/small/shards/{shard}"
        found: dict[str, tuple[str, dict[str, Any]]] = {
            "hello_async": (f"{self.bare}/async", {}),
            "healthz": (f"{self.url}/healthz", {}),
            "manifest": (f"{base}/snapshots/{digest}", {}),
            "manifest_304": (f"{base}/snapshots/{digest}", known),
            "ref": (f"{base}/refs/main", {}),
            "page_of_100": random("page", f"{cursor} .. 100"),
            "page_of_100_never_asked": random("new_page", f"{cursor} .. math.random(90, 110)"),
            "filter_of_4_terms": random("filter", chosen),
            "filter_of_4_terms_never_asked": random("new_filter", unseen),
            "one_chain": random("one", chain),
            "plan_of_a_rank_of_65536": random("plan", rank),
            "shard_350_KiB": (f"{self.url}/{shard_path}", {"headers": part}),
            "shard_350_KiB_by_accel": (f"{self.front}/{shard_path}", {"headers": part}),
            "shard_350_KiB_by_link": (self.link(shard), {"headers": part}),
        }
        cursors = ",".join(f'"{one}"' for one in self.pages(self.rows // 5000))
        for script in (self.folder / "page.lua", self.folder / "new_page.lua"):
            script.write_text(f"cursors = {{{cursors}}}\n{script.read_text()}")
        for name, (_, extra) in found.items():
            if (token := self.tokens["accel" in name]) and "link" not in name:
                bearer = f"Authorization: Bearer {token}"
                extra["headers"] = (*extra.get("headers", ()), bearer)
        return found

    def link(self, shard: str) -> str:
        """A link to a shard, from the service behind nginx."""
        headers = {"Content-Type": "application/json"}
        if self.tokens[1]:
            headers["Authorization"] = f"Bearer {self.tokens[1]}"
        body = json.dumps({"shards": [shard]}).encode()
        where = f"{self.front}/v1/datasets/small/urls"
        return str(json.load(urlopen(Request(where, body, headers)))["urls"][0]["url"])

    def pages(self, count: int) -> list[str]:
        """Pages of 100 from all over the index: cursors, as a client that pages gets them."""
        found, cursor = [], ""
        for _ in range(count):
            query = f"{self.path}/chains?limit=1000" + (f"&cursor={cursor}" if cursor else "")
            cursor = self.get(query)["next"]
            found.append(f"{self.path}/chains?cursor={cursor}")
        return found

    def get(self, path: str) -> Any:
        """What the service answers, as JSON."""
        bearer = {"Authorization": f"Bearer {self.tokens[0]}"} if self.tokens[0] else {}
        return json.load(urlopen(Request(self.url + path, headers=bearer)))
