"""Attention: its kernels for Hopper cards in 16 bits, those for any card in float32."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.tile_cases.common import BF16, DEVICE, Case, rand, tiles

from evofeed.kernels.ops.attention import op as att
from evofeed.kernels.ops.attention.hopper import launch as hopper
from evofeed.kernels.runtime.tiles import HopperTiles

ATTENTION = {  # name: rows, positions, heads, width, bias
    "triangle 256": (256, 256, 4, 32, True),
    "triangle 384": (384, 384, 4, 32, True),
    "triangle 512": (512, 512, 4, 32, True),
    "triangle 768": (768, 768, 4, 32, True),  # too long for the backward kernel, not for the others
    "column 128": (256, 128, 8, 32, False),
    "column 132": (256, 132, 8, 32, False),  # with four templates
    "column 512": (384, 512, 8, 32, False),
    "column 516": (384, 516, 8, 32, False),
    "extra row 256": (1024, 256, 8, 8, True),
    "template 256": (256, 256, 4, 16, True),
}
FORWARD = tiles("64,32,4,2 64,64,4,2 64,128,4,2 128,64,8,2 128,128,8,2")
BACKWARD = tiles("64,64,4,2 64,128,8,2 128,64,4,2 128,128,8,2")
BIAS_GRADIENT = tiles("64,64,4,2 64,64,4,3 128,64,8,2 128,64,8,3 64,128,8,2 128,128,16,2")


def attention_inputs(name: str) -> att.BackwardInputs:
    R, N, H, D, has_bias = ATTENTION[name]
    packed = rand(1, R, N, 3, H, D)
    q, k, v = packed.unbind(3)
    bias = rand(1, H, N, N) if has_bias else None
    mask = att.prepare_mask((torch.rand(1, R, N, device=DEVICE) > 0.1).to(BF16), D**-0.5, BF16)
    out, do = torch.empty(1, R, N, H, D, device=DEVICE, dtype=BF16), rand(1, R, N, H, D)
    lse = hopper.run_forward(q, k, v, bias, mask, D**-0.5, out, HopperTiles())
    grads = torch.empty_like(packed).unbind(3)
    return att.BackwardInputs(
        do, q, k, v, bias, mask, lse, att.output_delta(out, do), D**-0.5, grads
    )


def attention_cases() -> Iterator[Case]:
    for name, (_, N, _, D, has_bias) in ATTENTION.items():
        key = {"kind": "attention", "name": name, "N": N, "D": D, "has_bias": has_bias}

        def make(part: str, name: str = name) -> Callable[[Any], Any]:
            given = attention_inputs(name)
            out = torch.empty_like(given.do)

            def run(choice: Any) -> Any:
                if part == "forward":
                    tiles = HopperTiles(forward=choice)
                    return hopper.run_forward(*given[1:6], given.scale, out, tiles)
                if part == "backward":
                    return hopper.run_backward_of_rows(given, choice)
                assert given.bias is not None
                tiles = HopperTiles(bias_gradient=choice[0], waves=choice[1])
                return hopper.run_bias_gradient(given, tiles)

            return run

        parts: list[tuple[str, list[Any]]] = [("forward", FORWARD), ("backward", BACKWARD)]
        if has_bias:
            candidates = list(itertools.product(BIAS_GRADIENT, (1, 2, 3, 4)))
            parts.append(("bias_gradient", candidates))
        for part, candidates in parts:
            yield Case({**key, "part": part}, candidates, lambda make=make, part=part: make(part))
