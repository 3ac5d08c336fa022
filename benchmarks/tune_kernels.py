"""Race tile sizes of the kernels on this GPU and print the winners as a `choices.json`.

    PYTHONPATH=src python benchmarks/tune_kernels.py --out choices.json

Candidates are compiled by several processes first (Triton's cache is shared),
then timed one after another in this one. `--float32` races the products in float32 instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.tile_cases.attention import BIAS_GRADIENT, attention_cases
from benchmarks.tile_cases.common import KINDS, Case
from benchmarks.tile_cases.float32 import float32_cases
from benchmarks.tile_cases.pairs import gated_cases, outer_cases, pair_bias_cases, triangle_cases
from benchmarks.tile_cases.rows import norm_cases, softmax_cases, swiglu_cases, transition_cases

from evofeed.kernels.runtime.tiles import hopper_tiles, override

PRODUCTS = (
    transition_cases, gated_cases, swiglu_cases, triangle_cases, outer_cases, pair_bias_cases,
    softmax_cases,
)  # fmt: skip


def every_case(float32: bool) -> list[Case]:
    """All that is raced: products in 16 bits and norms, or products in float32."""
    products = itertools.chain.from_iterable(cases() for cases in PRODUCTS)
    if float32:
        return list(float32_cases(products))
    return [*norm_cases(), *products, *attention_cases()]


def gpu_us(run: Callable[[], Any], calls: int = 8) -> float:
    """Median GPU time of a call in microseconds, launches queued ahead."""
    run()
    torch.cuda.synchronize()
    torch.cuda._sleep(6_000_000)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for first, second in events:
        first.record()
        run()
        second.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(a.elapsed_time(b) for a, b in events)


def attempt(case: Case, run: Callable[[Any], Any], choice: Any, time_it: bool) -> float | None:
    if case.key["kind"] == "tile":
        override(case.key["op"], choice)
    try:
        if time_it:
            return gpu_us(lambda: run(choice))
        run(choice)
    except Exception as error:  # a tile that does not fit: out of shared memory, compiler limits
        if "CUDA error" in str(error) or "illegal" in str(error):
            raise
        return None
    finally:
        if case.key["kind"] == "tile":
            override(case.key["op"], None)
    return None


def compile_share(worker: int, workers: int, cases: list[Case]) -> None:
    """Runs every `workers`-th candidate once, which leaves it in Triton's cache."""
    for number, case in enumerate(cases):
        mine = [c for i, c in enumerate(case.candidates) if (i + number) % workers == worker]
        if not mine:
            continue
        run = case.make()
        for choice in mine:
            attempt(case, run, choice, time_it=False)
        torch.cuda.synchronize()
        del run


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with the entries of `new` in place of its own."""
    names = {entry["name"] for entry in new["attention"]}
    attention = [e for e in old.get("attention", []) if e["name"] not in names]
    tiles = {op: list(entries) for op, entries in old.get("tiles", {}).items()}
    for op, entries in new["tiles"].items():
        widths = {entry["C"] for entry in entries}
        tiles[op] = [e for e in tiles.get(op, []) if e["C"] not in widths] + entries
    return {
        **old, "card": new["card"], "attention": attention + new["attention"], "tiles": tiles,
    }  # fmt: skip


def winners(raced: list[tuple[Case, list[tuple[float, Any]]]]) -> dict[str, Any]:
    choices: dict[str, Any] = {"card": torch.cuda.get_device_name(), "attention": [], "tiles": {}}
    by_shape: dict[str, dict[str, Any]] = {}
    for case, times in raced:
        best = min(times, default=None)
        if case.key["kind"] != "tile":
            by_shape.setdefault(case.key["name"], {"key": case.key})[case.key["part"]] = best
        elif best is not None:
            entry = {"C": case.key["C"], "tile": list(best[1]), "us": round(best[0], 2)}
            choices["tiles"].setdefault(case.key["op"], []).append(entry)
    for name, parts in by_shape.items():
        key = parts["key"]
        needed = {"forward", "backward"} | ({"bias_gradient"} if key["has_bias"] else set())
        if not needed <= parts.keys():  # still racing
            continue
        entry = {"name": name, "N": key["N"], "D": key["D"], "has_bias": key["has_bias"]}
        found = {part: best for part, best in parts.items() if part != "key" and best is not None}
        now = hopper_tiles(key["N"], key["D"], key["has_bias"])
        for part in ("forward", "backward"):  # where none fits, shorter rows still read the tile
            entry[part] = list(found[part][1] if part in found else getattr(now, part))
        tile, waves = found.get("bias_gradient", (0, (BIAS_GRADIENT[0], 1)))[1]
        entry |= {"bias_gradient": list(tile), "waves": waves}
        entry["us"] = {part: round(best[0], 1) for part, best in found.items()}
        choices["attention"].append(entry)
    return choices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("choices.json"))
    parser.add_argument("--log", type=Path, help="every candidate's time, as JSON lines")
    parser.add_argument("--float32", action="store_true", help="race the products in float32")
    parser.add_argument("--only", default="", help="only cases whose key contains this text")
    parser.add_argument("--skip", default="", help="no cases whose key contains one of these (;)")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--worker", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.float32:
        KINDS[""] = torch.float32
    cases = [c for c in every_case(args.float32) if args.only in json.dumps(c.key)]
    if args.skip:
        skip = args.skip.split(";")
        cases = [c for c in cases if not any(text in json.dumps(c.key) for text in skip)]
    if args.worker >= 0:
        compile_share(args.worker, args.workers, cases)
        return
    start = time.time()
    command = [sys.executable, __file__, *sys.argv[1:]]
    jobs = [subprocess.Popen([*command, "--worker", str(w)]) for w in range(args.workers)]
    codes = [job.wait() for job in jobs]
    print(f"compiled in {time.time() - start:.0f} s, exit codes {codes}", flush=True)
    raced: list[tuple[Case, list[tuple[float, Any]]]] = []
    log = args.log.open("w") if args.log else None
    saved = Path("kernels/runtime/choices.json")
    before = json.loads(saved.read_text()) if saved.exists() else {}
    for case in cases:
        run = case.make()
        times = [(attempt(case, run, choice, time_it=True), choice) for choice in case.candidates]
        done = sorted((t, c) for t, c in times if t is not None)
        raced.append((case, done))
        print(f"{case.key} failed {len(times) - len(done)}", *done[:3], sep="\n    ", flush=True)
        if log:
            print(json.dumps({**case.key, "times": done}), file=log, flush=True)
        args.out.write_text(json.dumps(merged(before, winners(raced)), indent=1) + "\n")
        del run
    print(f"raced in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
