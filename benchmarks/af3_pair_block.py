"""A pair block of Boltz, OpenFold3 and Protenix, forward and backward, before and after `to_fused`.

    PYTHONPATH=src python benchmarks/af3_pair_block.py --out benchmarks/results/af3_pair_block_h200.json

Modules with the projects' names and mathematics (`tests/kernels/af3`), C 128, 4 heads of 32, a
SwiGLU transition four times as wide, bfloat16 by autocast, no dropout. Peers: the same module eagerly and under
torch.compile. Milliseconds are medians of CUDA events around single calls; memory is what the block keeps until its backward
pass. Proof on a laptop: `--device cpu --sizes 8 --repeats 1`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels import to_fused

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.kernels.af3 import boltz, openfold3, protenix

C, HEADS, WIDTH = 128, 4, 32


def modules(project: str) -> dict[str, nn.Module]:
    """The block, and its last part by itself."""
    if project == "boltz":
        block: nn.Module = boltz.PairformerNoSeqLayer(C, 0.0, WIDTH, HEADS)
        return {"block": block, "transition": boltz.Transition(C, 4 * C)}
    if project == "openfold3":
        block = openfold3.PairBlock(C, C, WIDTH, HEADS, "swiglu", 4, 0.0, False, 1e9)
        return {"block": block, "transition": openfold3.SwiGLUTransition(C, 4)}
    block = protenix.PairformerBlock(16, C, 0, C, WIDTH, HEADS, 4, 0.0)
    return {"block": block, "transition": protenix.Transition(C, 4)}


def arguments(project: str, part: str, z: Tensor, mask: Tensor) -> tuple[Any, ...]:
    if part == "transition":
        return (z,)
    return (None, z, mask) if project == "protenix" else (z, mask)


def measured(step: Callable[[], None], repeats: int, device: str) -> float:
    """Median milliseconds."""
    for _ in range(2 if repeats > 1 else 1):
        step()
    found = []
    for _ in range(repeats):
        if device == "cuda":
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            torch.cuda._sleep(2_000_000)  # the launches of a step are queued meanwhile
            marks[0].record()
            step()
            marks[1].record()
            torch.cuda.synchronize()
            found.append(marks[0].elapsed_time(marks[1]))
        else:
            began = time.perf_counter()
            step()
            found.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(found), 3)


def row(
    project: str, part: str, how: str, size: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One way of one block at one size."""
    device = options.device
    torch.manual_seed(0)
    module = modules(project)[part].to(device)
    if how == "fused":
        to_fused(module)
    call: Callable[..., Any] = torch.compile(module) if how == "compiled" else module
    # Boltz's dropout masks are float32, and make its pairs float32
    kind = torch.float32 if project == "boltz" else torch.bfloat16
    z = torch.randn(1, size, size, C, device=device, dtype=kind, requires_grad=True)
    mask = torch.ones(1, size, size, device=device)
    given = arguments(project, part, z, mask)
    leaves = [z, *module.parameters()]

    def forward() -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            out = call(*given)
        return out[-1] if isinstance(out, tuple) else out

    def both() -> None:
        out = forward()
        torch.autograd.grad(out, leaves, torch.ones_like(out))

    def alone() -> None:
        with torch.no_grad():
            forward()

    found: dict[str, Any] = {"project": project, "part": part, "how": how, "size": size}
    try:
        found["both_ms"] = measured(both, options.repeats, device)
        found["forward_ms"] = measured(alone, options.repeats, device)
        if device == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            out = forward()
            found["kept_mb"] = round((torch.cuda.memory_allocated() - before) / 1e6)
            del out
    except torch.OutOfMemoryError:
        found["error"] = "out of memory"
    except Exception as error:  # a peer's
        found["error"] = f"{type(error).__name__}: {error}"[:200]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 384, 640, 768])
    parser.add_argument("--projects", nargs="+", default=["boltz", "openfold3", "protenix"])
    parser.add_argument("--ways", nargs="+", default=["eager", "compiled", "fused"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for project in options.projects:
        for part in ("block", "transition"):
            for size in options.sizes:
                for how in options.ways:
                    torch._dynamo.reset()
                    rows.append(row(project, part, how, size, options))
                    print(json.dumps(rows[-1]), flush=True)
                    if options.out:
                        card = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
                        result = {
                            "command": " ".join(sys.argv), "card": card,
                            "torch": torch.__version__, "rows": rows,
                        }  # fmt: skip
                        options.out.write_text(json.dumps(result, indent=1) + "\n")
                    if options.device == "cuda":
                        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
