"""One optimizer step over the model's 5,044 tensors: flat and fused, beside PyTorch's best.

    PYTHONPATH=src python benchmarks/optimizers.py --out benchmarks/results/optimizers_h200.json
    PYTHONPATH=src python benchmarks/optimizers.py --table benchmarks/results/optimizers_h200.json

A step clips by the global norm, updates 93.2M weights, and moves their average. The
tensors are those of the model under OpenFold's names; PyTorch gets them one by one,
as it does in any training script, and once more as one flat tensor.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_times import Row, environment, gpu_times, graphed, peak_mb, wall_us

from evofeed.kernels import FusedAdamEMA, FusedLAMB, FusedLARS
from evofeed.kernels.drop_ins.layerwise import spans
from evofeed.trainer import initial_training
from evofeed.trainer.model.alphafold import AlphaFold

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = DEVICE == "cpu"


def shapes() -> list[torch.Size]:
    with torch.device("meta"):
        model = AlphaFold(initial_training().model)
    found = [p.shape for p in model.parameters()]
    return found[:50] if TINY else found


def measured(step: Callable[[], Any], graph: bool = True) -> Row:
    if TINY:
        step()
        return {}
    row: Row = {"gpu": gpu_times([step], 20), "wall_us": wall_us([step], 20)}
    row["extra_mb"] = peak_mb(step)
    if graph:
        row["graph"] = gpu_times([graphed(step)], 20)
    return row


def ours(sizes: list[torch.Size]) -> Iterator[Row]:
    tensors = [torch.empty(size, device="meta") for size in sizes]
    found = spans(tensors, align=128)  # as the trainer lays them out
    N = found[-1].start + -(-found[-1].size // 128) * 128
    for dtype in (torch.float32, torch.bfloat16):
        param, first, second, ema = (torch.rand(N, device=DEVICE) for _ in range(4))
        grad = torch.randn(N, device=DEVICE).to(dtype)
        low = torch.empty(N, dtype=torch.bfloat16, device=DEVICE)
        made = {
            "Adam": FusedAdamEMA(param, grad, first, second, ema, low, max_norm=0.1),
            "LAMB": FusedLAMB(param, grad, first, second, ema, low, spans=found, max_norm=0.1),
            "LARS": FusedLARS(param, grad, first, ema, low, spans=found, max_norm=0.1),
        }
        for name, optimizer in made.items():
            optimizer.rate.fill_(1e-3)
            case = f"clip + {name} + average + bf16 copy, gradient {str(dtype)[6:]}"
            yield {"case": case, "who": "evofeed", **measured(optimizer.step), "weights": N}


def peers(sizes: list[torch.Size]) -> Iterator[Row]:
    numel = sum(size.numel() for size in sizes)
    for many in (True, False):
        chosen = sizes if many else [torch.Size([numel])]
        params = [torch.rand(size, device=DEVICE).requires_grad_() for size in chosen]
        for p in params:
            p.grad = torch.randn_like(p)
        ema = [p.detach().clone() for p in params]
        adam = torch.optim.Adam(params, lr=1e-3, fused=True, capturable=not TINY)
        weights = [p.detach() for p in params]

        def clip(params: Any = params) -> None:
            torch.nn.utils.clip_grad_norm_(params, 0.1, foreach=True)

        def average(ema: Any = ema, weights: Any = weights) -> None:
            torch._foreach_lerp_(ema, weights, 0.001)

        def step(clip: Any = clip, adam: Any = adam, average: Any = average) -> None:
            clip()
            adam.step()
            average()

        where = f"{len(chosen):,} tensors" if many else "one flat tensor"
        parts = {
            "clip, foreach": clip, "Adam, fused": adam.step, "average, foreach": average,
            "clip + Adam + average": step,
        }  # fmt: skip
        for name, call in parts.items():
            # 5,044 tensors in a graph: only the whole step, which is what anybody would capture
            row = measured(call, graph=call is step)
            yield {"case": name, "who": f"torch, {where}", **row, "weights": numel}


def table(path: Path) -> str:
    """Markdown of a result file."""
    result = json.loads(path.read_text())
    env = result["environment"]
    lines = [f"{env['card']}, torch {env['torch']}, triton {env['triton']}, {env['date']}", ""]
    lines += ["| step | who | GPU, ms | in a CUDA graph, ms | wall, ms | extra MB |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for r in result["rows"]:
        graph = f"{r['graph']['us'] / 1e3:.2f}" if "graph" in r else ""
        cells = f"{r['gpu']['us'] / 1e3:.2f} | {graph} | {r['wall_us'] / 1e3:.2f} | {r['extra_mb']}"
        lines.append(f"| {r['case']} | {r['who']} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("optimizers.json"))
    parser.add_argument("--table", type=Path, help="print a result file as a table and stop")
    args = parser.parse_args()
    if args.table:
        print(table(args.table))
        return
    torch.manual_seed(0)
    sizes = shapes()
    info = {} if TINY else environment("optimizers.py", "20 calls, median and quartiles")
    result: Row = {"environment": info, "tensors": len(sizes), "rows": []}
    for rows in (ours(sizes), peers(sizes)):
        for row in rows:
            result["rows"].append(row)
            args.out.write_text(json.dumps(result, indent=1) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
