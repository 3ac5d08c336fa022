"""Ops on rows of channels: norms, transitions, softmax."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.tile_cases.common import BF16, DEVICE, KINDS, Case, norm, rand, weights

from evofeed.kernels.ops.layer_norm.op import layer_norm, norm_rows_grad
from evofeed.kernels.ops.softmax.op import masked_softmax
from evofeed.kernels.ops.swiglu.op import swiglu_transition
from evofeed.kernels.ops.swiglu.reference import SwigluWeights
from evofeed.kernels.ops.transition.op import relu_grad
from evofeed.kernels.ops.transition.reference import TransitionWeights
from evofeed.kernels.runtime import projection as proj
from evofeed.kernels.runtime.mlp import mlp
from evofeed.kernels.runtime.tiles import Tile

PAIRS = {64: 262144, 128: 65536, 256: 32768}  # channels: rows


def norm_cases() -> Iterator[Case]:
    sizes = [Tile(*c) for c in itertools.product((8, 16, 32), (1,), (1, 2, 4), (1,))]
    walks = [Tile(*c) for c in itertools.product((8, 16), (1,), (2, 4), (3,), (2, 3, 4, 6, 8))]
    shapes = {64: 262144, 128: 65536, 256: 33792, 1024: 25600}
    for (C, M), dtype in itertools.product(shapes.items(), (BF16, torch.float32)):

        def forward(M: int = M, C: int = C, dtype: torch.dtype = dtype) -> Callable[[Any], Any]:
            turn = itertools.cycle([rand(M, C, dtype=dtype) for _ in range(4)])
            return lambda _: layer_norm(next(turn), *norm(C))

        def backward(M: int = M, C: int = C, dtype: torch.dtype = dtype) -> Callable[[Any], Any]:
            turn = itertools.cycle([[rand(M, C, dtype=dtype) for _ in "xy"] for _ in range(4)])
            gamma, beta = norm(C)
            stats = torch.zeros(2, M, device=DEVICE)

            def run(_: Any) -> Any:
                x, dy = next(turn)
                return norm_rows_grad(dy, x, stats, gamma, beta)

            return run

        wide = "_float32" if dtype is torch.float32 else ""
        yield Case({"kind": "tile", "op": f"norm_forward{wide}", "C": C}, sizes, forward)
        yield Case({"kind": "tile", "op": f"norm_backward{wide}", "C": C}, walks, backward)


def transition_cases() -> Iterator[Case]:
    """The norm and the products of a transition, each by itself."""
    rows = (64, 128)
    gemm = [
        Tile(*c)
        for c in itertools.product(rows, (64, 128), (4, 8), (2, 3))
        if c != (128, 128, 4, 3)
    ]
    for C, M in PAIRS.items():

        def key(op: str, C: int = C) -> dict[str, Any]:
            return {"kind": "tile", "op": op, "C": C}

        def norm_rows(M: int = M, C: int = C) -> Callable[[Any], Any]:
            x, w = rand(M, C), rand(8, C) if C == 128 else None
            return lambda _: proj.norm_rows(
                x, *norm(C), 1e-5, KINDS[""], pair_weight=w, pair_length=256, pair_scale=5.6
            )

        def whole(M: int = M, C: int = C) -> Callable[[Any], Any]:
            x = rand(M, C)
            w = TransitionWeights(*norm(C), *weights(C, 4 * C), *weights(4 * C, C))
            return lambda _: mlp(
                "mlp", x, (w.norm_weight, w.norm_bias), w.w1, w.w2, ba=w.b1, bo=w.b2, eps=1e-5,
                mask=None, residual=True,
            )  # fmt: skip

        thin = [Tile(*c) for c in itertools.product((16, 32, 64, 128), (128,), (4, 8), (1,))]
        yield Case(key("norm_rows"), thin, norm_rows)
        mlp_tiles = [Tile(*c) for c in itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2))]
        yield Case(key("mlp"), mlp_tiles, whole)

        def masked(M: int = M, C: int = C) -> Callable[[Any], Any]:
            a, b, hidden = rand(M, C), rand(C, 4 * C), rand(M, 4 * C)
            return lambda _: relu_grad(a, b, hidden)

        yield Case({"kind": "tile", "op": "relu_grad", "C": 4 * C}, gemm, masked)


def swiglu_cases() -> Iterator[Case]:
    tiles = [Tile(*c) for c in itertools.product((64, 128), (32, 64), (4, 8), (2, 3))]

    def make() -> Any:
        x = rand(1, 256 * 256, 128).requires_grad_()
        layers = [rand(512, 128, scale=0.1), rand(512, 128, scale=0.1), rand(128, 512, scale=0.05)]
        w = SwigluWeights(*norm(128), *layers)
        return lambda _: swiglu_transition(x, w)

    yield Case({"kind": "tile", "op": "swiglu", "C": 128}, tiles, make)


def softmax_cases() -> Iterator[Case]:
    for op in ("softmax", "softmax_grad"):
        for N in (256, 384, 512):

            def make(op: str = op, N: int = N) -> Callable[[Any], Any]:
                x, bias = rand(1, N, 4, N, N).requires_grad_(), rand(1, 4, N, N).requires_grad_()
                mask = torch.ones(1, N, N, device=DEVICE, dtype=BF16)
                if op == "softmax":
                    return lambda _: masked_softmax(x, mask, bias)
                y = masked_softmax(x, mask, bias)
                grad = torch.randn_like(y)
                return lambda _: torch.autograd.grad(y, (x, bias), grad, retain_graph=True)

            lines = itertools.product((4, 8, 16), (1,), (1, 2, 4), (1, 3, 4), (8, 16, 32))
            yield Case({"kind": "tile", "op": op, "C": N}, [Tile(*c) for c in lines], make)
