"""Attention whose offsets are 32 bits wide beside the same in 64, in turn, on one GPU.

    PYTHONPATH=src python benchmarks/attention_offsets.py --out benchmarks/results/attention_offsets_h200.json

bfloat16, forward and forward plus backward; median and quartiles of 40 queued calls a turn, of
each width the faster of two turns. The kernels choose by themselves (`kernels/ops/attention/offsets.py`); here
the wide one is forced by a limit of 0.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.gpu_times import environment, gpu_times

from evofeed.files import write_atomic
from evofeed.kernels.ops.attention import offsets
from evofeed.kernels.ops.attention.op import biased_attention

SHAPES = {  # rows, positions, heads, width, bias
    "triangle 256": (256, 256, 4, 32, True),
    "triangle 384": (384, 384, 4, 32, True),
    "row 128x256": (128, 256, 8, 32, True),
    "column 128x256": (256, 128, 8, 32, False),
    "extra row 1024x256": (1024, 256, 8, 8, True),
}
LIMITS = {"32 bits": 2**31, "64 bits": 0}


def inputs(R: int, N: int, H: int, D: int, has_bias: bool) -> list[Tensor | None]:
    q, k, v = (torch.randn(1, R, N, H, D, device="cuda").bfloat16() for _ in range(3))
    bias = torch.randn(1, H, N, N, device="cuda").bfloat16() if has_bias else None
    for t in (q, k, v, bias):
        if t is not None:
            t.requires_grad_()
    return [q, k, v, bias, (torch.rand(1, R, N, device="cuda") > 0.1).float()]


def measured(case: str) -> dict[str, Any]:
    given = inputs(*SHAPES[case])
    leaves = [t for t in given[:4] if t is not None]
    grad = torch.randn_like(leaves[0])

    def both() -> None:
        torch.autograd.grad(biased_attention(*given), leaves, grad)  # type: ignore[arg-type]

    def forward() -> None:
        biased_attention(*given)  # type: ignore[arg-type]

    found: dict[str, Any] = {"case": case}
    for width, limit in [*LIMITS.items(), *reversed(LIMITS.items())]:
        offsets.LIMIT = limit
        for name, call in (("forward", forward), ("both", both)):
            turn = gpu_times([call])
            best = found.setdefault(width, {}).get(name, turn)
            found[width][name] = min(best, turn, key=lambda t: t["us"])
    offsets.LIMIT = LIMITS["32 bits"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    head = environment("attention_offsets.py", "40 calls a turn, the faster of two turns")
    rows = []
    for case in SHAPES:
        rows.append(measured(case))
        print(json.dumps(rows[-1]), flush=True)
        write_atomic(out, json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
