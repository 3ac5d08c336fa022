"""What each kernel or device wins: a step with it switched off, alone, against the whole product.

    PYTHONPATH=src python benchmarks/ablation.py --out benchmarks/results/ablation_h200.json
    PYTHONPATH=src python benchmarks/ablation.py --out ... --parts finetuning   # adds to the file
    python benchmarks/ablation.py --table benchmarks/results/ablation_h200.json

Parts: `initial_training` and `finetuning`, a step in bfloat16 recorded in CUDA graphs as
`train_step.py` has it, and `af3`, forward and backward of the pair block of `af3_pair_block.py`,
384 tokens of 128 channels. Every row is a process of its own, which patches what decides on the
kernel before anything runs; one that fails is a row with its error. Median of `--repeats` steps in
milliseconds. `compiled` is without `torch.compile` of structure module and losses. `full` is
measured first and again last: the difference is noise. Rows in the file are not measured again.
Proof on a laptop: `--device cpu --repeats 1 --candidates full late`.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(ROOT / "benchmarks")]
PARTS = ("initial_training", "af3", "finetuning")
LEAST_MEMORY = 130e9  # bytes that a recorded step of finetuning needs; less recomputes

OPS, RUN = "evofeed.kernels.ops", "evofeed.kernels.runtime"
Patch = tuple[str, str, Any]


def never(*args: Any, **kwargs: Any) -> bool:
    return False


TRANSITION = f"{OPS}.transition.hopper.launch"
ATTENTION, ATTENTION_FILES = f"{OPS}.attention.hopper.launch", "ops/attention/hopper"
TRIANGLE = f"{OPS}.triangle_multiplication.hopper.launch"
CANDIDATES: dict[str, tuple[list[Patch], list[str]]] = {
    # What is patched, and the files (or `module:function`) that would go.
    "full": ([], []),
    "compiled": ([("train_step", "compile_structure", never)], []),
    "late": (
        [(ATTENTION, "_main_of", lambda N: 0)],
        [f"{ATTENTION_FILES}/tail.py"],
    ),
    "late_backward": (
        [(ATTENTION, "_tail_backward_bytes", lambda *a: 1 << 40)],
        [],
    ),
    "triangle_projections": (
        [(TRIANGLE, "MANY", 1 << 60)], ["ops/triangle_multiplication/hopper/projections.py"],
    ),
    "transition_grad": ([(TRANSITION, "fits", never)], ["ops/transition/hopper/kernels.py"]),
    "swiglu_forward": (
        [(f"{OPS}.swiglu.hopper.launch", "forward_fits", never)],
        [f"{OPS}.swiglu.hopper.launch:run", f"{OPS}.swiglu.hopper.kernels:swiglu_rows_kernel"],
    ),
    "swiglu": ([(f"{OPS}.swiglu.hopper.launch", "fits", never)], ["ops/swiglu/hopper"]),
    "gated_attention": (
        [(f"{OPS}.gated_attention.hopper.launch", "fits", never)], ["ops/gated_attention/hopper"],
    ),
    "scheduled_ahead": (
        [(f"{RUN}.private_apis", "_no_workspace", nullcontext)],
        [f"{RUN}.private_apis:{name}" for name in ("scheduled_ahead", "_no_workspace")],
    ),
    "masks": (
        [("evofeed.kernels.swap.pair_blocks", "draw_ahead", lambda key, draw: draw(1)[0])],
        [f"{RUN}.one_pass:draw_ahead"],
    ),
    "casts": (
        [(f"{RUN}.casts", "launchable", never)],
        [f"{RUN}.casts:{name}" for name in ("Casts", "cast_kernel")],
    ),
    "mlp": ([(f"{OPS}.transition.op", "WIDE", 16)], ["runtime/mlp.py"]),
    "resident_keys": (
        [(ATTENTION, "_keeps_all_keys", never)], [f"{ATTENTION}:_keeps_all_keys"],
    ),
    "triangle": ([(TRIANGLE, "fits", never)], ["ops/triangle_multiplication/hopper"]),
    "attention": ([(ATTENTION, "_fits", never)], [ATTENTION_FILES]),
    "full_again": ([], []),
}  # fmt: skip


def lines_of(places: list[str]) -> int:
    """Lines of files, folders and single functions (`module:function`)."""
    total = 0
    for place in places:
        module, _, function = place.partition(":")
        if function:
            found = getattr(import_module(module), function, None)
            total += len(inspect.getsourcelines(getattr(found, "fn", found))[0]) if found else 0
            continue
        path = ROOT / "kernels" / place
        files = [path] if path.suffix else path.rglob("*.py")
        total += sum(len(file.read_text().splitlines()) for file in files)
    return total


# --- one row, in a process of its own -------------------------------------------------------------


def switch_off(candidate: str) -> None:
    """Patches what decides on it; an attribute that is missing is an error."""
    for module, name, value in CANDIDATES[candidate][0]:
        home = import_module(module)
        getattr(home, name)
        setattr(home, name, value)


def training_ms(preset: str, device: str, repeats: int) -> dict[str, Any]:
    import torch
    import train_step

    on_gpu, where = device == "cuda", torch.device(device)
    recomputed = (
        on_gpu
        and preset == "finetuning"
        and torch.cuda.get_device_properties(0).total_memory < LEAST_MEMORY
    )
    case = train_step.Case("fused", "bf16", "graph" if on_gpu else "eager", recomputed, 0)
    name = preset if on_gpu else "tiny"
    step = train_step.Step(case, name, where)
    batch = train_step.batch_of(name, 0, where)
    if step.replay:
        step.replay.compile_ahead(batch, where)
    times = [sum(step.run(batch, number)) for number in range(3 + repeats)][3:]
    if step.replay and step.replay.why_not:
        raise RuntimeError(f"no CUDA graph: {step.replay.why_not}")
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return {"ms": times, "recomputed": recomputed, "peak_gb": round(peak / 2**30, 2)}


def af3_ms(device: str, repeats: int) -> dict[str, Any]:
    import af3_pair_block

    size, channels = (384, 128) if device == "cuda" else (8, 32)
    step = af3_pair_block.Step(af3_pair_block.Case("block", channels, size), "fused", device)
    for _ in range(3):
        step.both()  # calls are traced, and kernels compiled
    found = [af3_pair_block.gpu_ms(step.both, 5, device)[0] for _ in range(max(1, repeats // 2))]
    return {"ms": found}


def measure(options: argparse.Namespace) -> None:
    """The parts of one candidate; the file is written after each."""
    import_module("train_step"), import_module("af3_pair_block")
    sys.stdin.readline()  # everything is imported: wait for the turn
    switch_off(options.child)
    for part in options.parts:
        began, row = time.perf_counter(), {}
        try:
            if part == "af3":
                row = af3_ms(options.device, options.repeats)
            else:
                row = training_ms(part, options.device, options.repeats)
        except Exception as error:  # one part of one row
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        row["seconds"] = round(time.perf_counter() - began, 1)
        with options.out.open("a") as out:
            out.write(json.dumps({"part": part, **row}) + "\n")


# --- all rows -------------------------------------------------------------------------------------


class Child:
    """A process that imports at once, and measures when it is told."""

    def __init__(self, candidate: str, part: str, options: argparse.Namespace) -> None:
        self.candidate, self.part = candidate, part
        self.out = options.out.with_name(f"{options.out.stem}.{candidate}.{part}.part")
        self.out.unlink(missing_ok=True)
        words = ["--child", candidate, "--parts", part, "--device", options.device]
        words += ["--repeats", str(options.repeats), "--out", str(self.out)]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *words], stdin=subprocess.PIPE, env={**os.environ}
        )

    def run(self, limit: float) -> dict[str, Any]:
        try:
            self.process.communicate(b"go\n", timeout=limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return {"error": f"not done after {limit:.0f} s"}
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(self.out.read_text().splitlines()[0])
            self.out.unlink()
            return found
        return {"error": f"the process ended with {self.process.returncode} before its result"}


def row_of(child: Child, found: dict[str, Any]) -> dict[str, Any]:
    times = found.pop("ms", None)
    row = {"candidate": child.candidate, "part": child.part, **found}
    if times:
        row |= {"median_ms": round(statistics.median(times), 3)}
        row |= {"min_ms": round(min(times), 3), "max_ms": round(max(times), 3)}
    return row


def ablate(options: argparse.Namespace) -> None:
    """Rows until the time is over; the next process imports while one measures."""
    import importlib.metadata as versions

    began = time.perf_counter()
    result: dict[str, Any] = {"benchmark": "ablation", "rows": []}
    if options.out.exists():
        result = json.loads(options.out.read_text())
    result |= {
        "command": "python benchmarks/ablation.py", "repeats": options.repeats,
        "torch": versions.version("torch"), "triton": versions.version("triton"),
        "lines": {name: lines_of(places) for name, (_, places) in CANDIDATES.items()},
    }  # fmt: skip
    with suppress(OSError, subprocess.CalledProcessError):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        result["card"] = subprocess.check_output(query, text=True).strip()
    done = {(r["candidate"], r["part"]) for r in result["rows"] if "median_ms" in r}
    wanted = [(name, part) for part in options.parts for name in options.candidates]
    wanted = [pair for pair in wanted if pair not in done]
    following: Child | None = None
    for number, pair in enumerate(wanted):
        left = options.seconds - (time.perf_counter() - began)
        if left < 5:
            break
        child = following or Child(*pair, options)
        more = number + 1 < len(wanted)
        following = Child(*wanted[number + 1], options) if more else None
        row = row_of(child, child.run(min(left, options.most)))
        result["rows"] = [
            r for r in result["rows"] if (r["candidate"], r["part"]) != pair
        ] + [row]  # fmt: skip
        print(json.dumps(row), flush=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if following is not None:
        following.process.kill()
        following.process.communicate()


def table(result: dict[str, Any]) -> str:
    """Markdown: what a step takes without each, what it loses in per cent, and per 300 lines."""
    full = {r["part"]: r.get("median_ms") for r in result["rows"] if r["candidate"] == "full"}
    lines = [
        f"{result.get('card', 'CPU')}, torch {result['torch']}, triton {result['triton']}, medians "
        f"of {result['repeats']}:",
        "",
        "| without | lines | part | ms | loses, % | per 300 lines, % | peak, GiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        name, part, ms = row["candidate"], row["part"], row.get("median_ms")
        if ms is None:
            continue
        size, whole = result["lines"].get(name, 0), full.get(part)
        lost = 100 * (ms / whole - 1) if whole and name != "full" else None
        cells = [
            "nothing: all of it" if name == "full" else name, size or "", part, f"{ms:.2f}",
            "" if lost is None else f"{lost:+.2f}",
            "" if lost is None or not size else f"{300 * lost / size:+.2f}",
            row.get("peak_gb") or "",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=300.0, help="of all rows")
    parser.add_argument("--most", type=float, default=150.0, help="seconds of one row")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print this result and end")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    folder = Path(os.environ.get("OUT", "."))
    options.out = options.out or folder / "ablation.json"
    act: Callable[[argparse.Namespace], None] = measure if options.child else ablate
    act(options)


if __name__ == "__main__":
    main()
