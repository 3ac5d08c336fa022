"""Every op whose products are made in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from benchmarks.tile_cases.attention import ATTENTION
from benchmarks.tile_cases.common import DEVICE, Case, rand, tiles

from evofeed.kernels.ops.attention import op as att

FLOAT32 = {  # the first whose name an op's begins with; what spills registers is left out
    "attention_dkv": tiles("16,64,4,1 32,64,4,1 64,16,8,1 16,32,4,1"),
    "attention_db": tiles("64,32,4,1 64,32,8,1 64,16,8,1"),
    "attention": tiles("64,32,4,1 64,16,4,1 128,32,8,1 64,32,8,1"),
    "norm_rows": tiles("32,1,8,1 64,1,8,1 16,1,4,1"),
    "pair_bias": tiles("32,1,8,1 16,1,4,1"),
    "relu_grad": tiles("64,64,8,1 128,32,8,1 64,32,4,1"),
    "mlp": tiles("16,32,4,1 32,32,8,1"),
    "gated_output_grad": tiles("32,1,4,1 64,1,4,1"),
    "gated_output": tiles("16,32,4,1 64,32,4,1 64,32,8,1"),
    "triangle_out": tiles("16,32,4,1 64,32,4,1"),
    "triangle_in": tiles("64,32,4,1 128,32,8,1 64,16,4,1"),
    "outer_dw": tiles("32,1,4,1 64,1,8,1 16,1,4,1"),
    "outer": tiles("64,32,8,1 64,32,4,1 128,32,8,1"),
}


def float32_cases(products: Iterable[Case]) -> Iterator[Case]:
    """The cases of 16 bits with tiles for float32, and attention's kernels for any card."""

    def candidates(op: str) -> list[Any]:
        return next((found for name, found in FLOAT32.items() if op.startswith(name)), [])

    for case in products:
        op = case.key["op"]
        if candidates(op):
            yield Case({**case.key, "op": f"{op}_float32"}, candidates(op), case.make)
    for name, N in (("column 128", 128), ("triangle 256", 256)):
        for part in ("forward", "dq", "dkv", "db"):
            op = f"attention_{part}"
            key = {"kind": "tile", "op": f"{op}_float32", "C": N}

            def make(name: str = name, part: str = part) -> Callable[[Any], Any]:
                R, N, H, D, has_bias = ATTENTION[name]
                q, k, v = (rand(1, R, N, H, D).requires_grad_() for _ in range(3))
                bias = rand(1, H, N, N).requires_grad_() if has_bias else None
                mask = torch.ones(1, R, N, device=DEVICE)
                if part == "forward":
                    return lambda _: att.biased_attention(q, k, v, bias, mask)
                out = att.biased_attention(q, k, v, bias, mask)
                leaves = [t for t in (q, k, v, bias) if t is not None]
                grad = torch.randn_like(out)
                return lambda _: torch.autograd.grad(out, leaves, grad, retain_graph=True)

            if part != "db" or ATTENTION[name][-1]:
                yield Case(key, candidates(op), make)
