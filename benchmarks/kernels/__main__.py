"""Checks and times every fused op beside its peers on one GPU.

    PYTHONPATH=src python -m benchmarks.kernels --out benchmarks/results/kernels_h200.json
    PYTHONPATH=src python -m benchmarks.kernels --sections blocks --out ... (other sections stay)
    PYTHONPATH=src python -m benchmarks.kernels --merge NEW.json --out ... (sections it finished)
    PYTHONPATH=src python -m benchmarks.kernels --table benchmarks/results/kernels_h200.json

GPU time is the median of events around single calls that were queued ahead of
the GPU; wall time is a loop of calls, launch cost included. Inputs rotate over
several sets. Peers: PyTorch eager, torch.compile (default mode, static shapes),
SDPA and flex_attention where they apply, all in this process.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from benchmarks.gpu_times import Row
from benchmarks.kernel_table import load, merge, save, table
from benchmarks.kernels import (
    attention,
    blocks,
    ceilings,
    layer_norm,
    numerics,
    operators,
    optimizer,
    softmax,
)
from benchmarks.recording import about

SECTIONS: dict[str, Callable[[bool], Iterator[Row]]] = {
    **{name: partial(operators.section, name) for name in operators.TIMED},
    "ceilings": ceilings.section,
    "numerics": numerics.section,
    "layer_norm": layer_norm.section,
    "attention": attention.section,
    "softmax": softmax.section,
    "blocks": blocks.section,
    "optimizer": optimizer.section,
}


def run(sections: list[str], peers: bool, out: Path, only: str, compiled_too: bool) -> None:
    torch.manual_seed(0)
    makers: dict[str, Callable[[], Iterator[Row]]] = {
        name: lambda section=section: section(peers)
        for name, section in SECTIONS.items()  # type: ignore[misc]
    }
    makers["blocks"] = lambda: blocks.section(peers, only, compiled_too)
    repeats = "40 calls (10 for blocks), median and quartiles"
    result = load(out)
    for section in sections or list(makers):
        rows: list[Row] = []
        result[section] = {
            "environment": about("torch", "triton", device="cuda") | {"repeats": repeats},
            "rows": rows,
        }
        start = time.time()
        try:
            for row in makers[section]():
                rows.append(row)
                save(out, result)
                print(
                    section,
                    json.dumps({k: v for k, v in row.items() if k != "kernels"}),
                    flush=True,
                )
                for line in row.get("kernels", [])[:28]:
                    print("   ", *line, flush=True)
            result[section]["seconds"] = round(time.time() - start, 1)
        except Exception:  # one section must not cost the others their device time
            traceback.print_exc()
            rows.append({"case": "failed", "failed": traceback.format_exc()[-1500:]})
        print(f"{section}: {time.time() - start:.0f} s", flush=True)
        save(out, result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels.json"))
    parser.add_argument("--sections", nargs="*", default=[])
    parser.add_argument("--only", default="", help="blocks: only cases containing this text")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-compiled-blocks", action="store_true", help="a minute each")
    parser.add_argument("--merge", type=Path, nargs="+", help="put their sections into --out")
    parser.add_argument("--table", type=Path, help="print a result file as a table and stop")
    args = parser.parse_args()
    if args.merge:
        print("merged:", *merge(args.out, args.merge))
        return
    if args.table:
        print(table(args.table))
        return
    run(args.sections, not args.no_peers, args.out, args.only, not args.no_compiled_blocks)


if __name__ == "__main__":
    main()
