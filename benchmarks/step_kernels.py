"""Every kernel of one recorded training step: its grid and registers, how often, how long.

    PYTHONPATH=src python benchmarks/step_kernels.py --out kernels.json
    PYTHONPATH=src python benchmarks/step_kernels.py --preset tiny --device cpu   # nothing is timed

The step of `train_step.py` (fused, bf16, without recycling) is timed as CUDA graphs, then one
replay is recorded by the profiler. Kernels of one name with different grids are rows of their
own: the grid says which operator of the model launched them. `step_parts.py` says in which part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from train_step import PRESETS, Step, batch_of, result_of, times_of, usual_step  # noqa: E402

KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


def kernels_of(step: Step, batch: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    """One row for each kernel and grid of a step, longest in all first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step.run(batch, 9)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:  # what the profiler exports alone has the grids
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    rows: dict[tuple[Any, ...], list[float]] = {}
    for event in events:
        if event.get("cat") in KINDS:
            of = event.get("args", {})
            grid, threads = tuple(of.get("grid") or ()), tuple(of.get("block") or ())
            key = (event["name"][:100], grid, threads, of.get("registers per thread"))
            rows.setdefault(key, []).append(event["dur"])
    table = [
        {
            "name": name, "grid": list(grid), "threads": list(threads), "registers": registers,
            "launches": len(times), "ms": round(sum(times) / 1e3, 3),
            "us_each": round(sum(times) / len(times), 2),
        }
        for (name, grid, threads, registers), times in rows.items()
    ]  # fmt: skip
    return sorted(table, key=lambda row: -row["ms"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--preset", choices=list(PRESETS), default="initial_training")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--keep", type=int, default=60, help="kernels to write")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    step = Step(usual_step(device), options.preset, device)
    batch = batch_of(options.preset, 0, device)
    times = times_of(step, batch, options.repeats)
    if not times:
        return
    result = result_of(__file__, options) | {
        "repeats": options.repeats,
        "step_ms": {
            "median": round(statistics.median(times), 2), "min": round(min(times), 2),
            "max": round(max(times), 2),
        },
        "peak_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20),
        "kernels": kernels_of(step, batch)[: options.keep],
    }  # fmt: skip
    for row in result["kernels"]:
        print(f"{row['ms']:9.3f} ms x{row['launches']:<5} {row['name'][:70]} {row['grid']}")
    print("step", result["step_ms"], flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
