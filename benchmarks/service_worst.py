"""The dearest questions at once, for `service_ratios.py`: how long they and others wait."""

from __future__ import annotations

import importlib
import json
import re
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Protocol
from urllib.request import Request, urlopen

cpu_seconds = importlib.import_module("service").cpu_seconds  # beside this one
CALLERS = 60
QUESTION = """
local columns = {"num_res", "num_alignments", "num_deletions", "num_templates", "cost"}
local most = {900, 9000, 9000, 20, 5000000}
local signs = {"<", "<=", ">", ">=", "==", "!="}
local kinds = {"one", "many", "ids", "mixed"}
local function term(column, op, value)
  return string.format('{"column": "%s", "op": "%s", "value": %s}', column, op, value)
end
local function any_of()
  local i = math.random(#columns)
  return term(columns[i], signs[math.random(#signs)], math.random(most[i]))
end
local function terms(kind, n)
  local found = {}
  for i = 1, 199 do
    if kind == "one" then
      found[i] = term("num_alignments", "==", (i * 97 + n * 31) % 20000)
    elseif kind == "many" then
      local at = i % 5 + 1
      found[i] = term(columns[at], "==", (i * 4999 + n * 977) % most[at])
    elseif kind == "ids" then
      found[i] = term("chain_id", "==", string.format('"%06d_A"', (i * 4999 + n) % 1000000))
    elseif i <= 66 then
      found[i] = string.format('{"all": [%s, %s]}', any_of(), any_of())
    end
  end
  return table.concat(found, ",")
end
local n = 0
request = function()
  n = n + 1
  local headers = {["Content-Type"] = "application/json"}
  if #tokens > 0 then headers["Authorization"] = "Bearer " .. tokens[n % #tokens + 1] end
  if n % 5 == 0 then
    local query = "/plan?world_size=65536&rank=" .. math.random(0, 65535) .. "&seed=" .. n
    return wrk.format("GET", path .. query, headers)
  end
  local where = '{"where": {"any": [' .. terms(kinds[n % 5], n) .. ']}, '
  local body = where .. '"limit": 1000, "count": true}'
  return wrk.format("POST", path .. "/chains/search", headers, body)
end
"""


class Stand(Protocol):
    """What is asked: a running service with a large dataset."""

    url: str
    path: str
    pid: int
    folder: Path
    tokens: list[str]


def memory(pid: int) -> float:
    """MiB that are this process's own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    anonymous = next(line for line in lines if line.startswith("Anonymous:"))
    return round(int(anonymous.split()[1]) / 1024, 1)


def worst(stand: Stand, seconds: int) -> dict[str, Any]:
    """60 callers of the dearest requests at once; how long others wait, and what memory does.

    Filters of 199 nodes, each one new and with a count over all rows: of values on one column, on
    five, of ids, and of pairs of comparisons that have no column in common; and plans of seeds that
    nobody asked for. With tokens, each caller has one of its own.
    """
    bearer = {"Authorization": f"Bearer {stand.tokens[0]}"} if stand.tokens[0] else {}
    tokens = [_new_token(stand.url, bearer) for _ in range(CALLERS)] if bearer else []
    script = stand.folder / "worst.lua"
    script.write_text(f"path = {stand.path!r}\ntokens = {{{str(tokens)[1:-1]}}}\n{QUESTION}")
    times: dict[str, list[float]] = {"healthz": [], "ref": []}
    peak, stop = [0.0], threading.Event()

    def look(name: str, path: str) -> None:
        while not stop.is_set():
            began = time.perf_counter()
            urlopen(Request(stand.url + path, headers=bearer), timeout=60).read()
            times[name].append(time.perf_counter() - began)
            peak[0] = max(peak[0], memory(stand.pid))
            time.sleep(0.02)

    before, spent = memory(stand.pid), cpu_seconds(stand.pid)
    asked = {"healthz": "/healthz", "ref": "/v1/datasets/large/refs/main"}
    lookers = [threading.Thread(target=look, args=pair) for pair in asked.items()]
    for looker in lookers:
        looker.start()
    said = subprocess.run(
        ["wrk", "-t1", f"-c{CALLERS}", f"-d{seconds}s", "--timeout", "60s", "--latency",
         "-s", str(script), stand.url],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    spent = cpu_seconds(stand.pid) - spent
    stop.set()
    for looker in lookers:
        looker.join()
    time.sleep(5)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    answered = re.search(r"(\d+) requests in", said)
    count = int(answered[1]) if answered else 0
    return {
        "clients": CALLERS,
        "seconds": seconds,
        "answered": count,
        "cpu_ms_an_answer": round(spent * 1e3 / count, 1) if count else 0.0,
        "of_them_refused": int(refused[1]) if refused else 0,
        "latency": dict(re.findall(r"(50%|75%|90%|99%)\s+(\S+)", said)),
        **{f"{name}_meanwhile_ms": _waited(found) for name, found in times.items()},
        "rss_mib": {"before": before, "peak": peak[0], "5_s_after": memory(stand.pid)},
    }


def _waited(seconds: list[float]) -> dict[str, float]:
    return {
        "p50": round(statistics.median(seconds) * 1e3, 1),
        "p99": round(sorted(seconds)[int(len(seconds) * 0.99)] * 1e3, 1),
        "requests": len(seconds),
    }


def _new_token(url: str, bearer: dict[str, str]) -> str:
    body = json.dumps({"label": "caller", "scopes": ["read"]}).encode()
    headers = bearer | {"Content-Type": "application/json"}
    token: str = json.load(urlopen(Request(f"{url}/v1/tokens", body, headers)))["token"]
    return token
