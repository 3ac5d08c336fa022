"""Ops on pairs of residues and rows of sequences: gated attention, triangles, outer products."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.tile_cases.common import DEVICE, Case, norm, rand, weights
from torch import Tensor

from evofeed.kernels.ops.gated_attention.op import gated_attention
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.outer_product_mean.op import outer_product_mean
from evofeed.kernels.ops.outer_product_mean.reference import OuterWeights
from evofeed.kernels.ops.pair_bias.op import pair_bias_with_input
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.runtime.tiles import Tile


def gated_cases() -> Iterator[Case]:
    shapes = {64: (1024, 256, 64, 8), 128: (256, 256, 128, 4), 256: (128, 256, 256, 8)}
    small = [Tile(*c) for c in itertools.product((64, 128), (64, 128), (4, 8), (1, 2))]
    for C, (R, N, width, H) in shapes.items():

        def make(backward: bool, shape: tuple[int, ...] = (R, N, C, width, H)) -> Any:
            R, N, C, width, H = shape
            x = rand(1, R, N, C).requires_grad_()
            w = [*norm(C), *(rand(width, C, scale=C**-0.5) for _ in range(4))]
            w += [rand(width), rand(C, width, scale=0.1), rand(C)]
            drop = rand(1, N, C)

            def forward() -> Tensor:
                return gated_attention(x, AttentionWeights(*w), H, residual=True, drop_mask=drop)

            if not backward:
                return lambda _: forward()
            out = forward()
            grad = torch.randn_like(out)
            return lambda _: torch.autograd.grad(out, x, grad, retain_graph=True)

        thin = [Tile(*c) for c in itertools.product((16, 32, 64), (128,), (4, 8), (1,))]
        for op, backward in (("gated_output", False), ("gated_output_grad", True)):
            yield Case(
                {"kind": "tile", "op": op, "C": width}, thin if backward else small,
                lambda make=make, backward=backward: make(backward),
            )  # fmt: skip


def triangle_cases() -> Iterator[Case]:
    small = [Tile(*c) for c in itertools.product((32, 64, 128), (32, 64, 128), (4, 8), (1, 2))]
    whole = [Tile(*c) for c in itertools.product((32, 64, 128), (128,), (4, 8, 16), (1, 2))]
    parts = [Tile(*c) for c in itertools.product((32, 64, 128), (32, 64, 128), (4, 8), (1,))]
    lines = [Tile(*c) for c in itertools.product((16, 32, 64, 128), (1,), (4, 8, 16), (1,))]

    def make(backward: bool, C: int = 128) -> Any:
        z = rand(1, 256, 256, C).requires_grad_()
        layers = [t for _ in range(4) for t in weights(C, C)]
        w = TriangleWeights(*norm(C), *layers, *norm(C), *weights(C, C), *weights(C, C))
        drop = rand(1, 256, C)

        def forward() -> Tensor:
            return triangle_multiplication(z, w, outgoing=True, residual=True, drop_mask=drop)

        if not backward:
            return lambda _: forward()
        out = forward()
        grad = torch.randn_like(out)
        return lambda _: torch.autograd.grad(out, z, grad, retain_graph=True)

    for op in ("triangle_in", "triangle_in_grad", "triangle_out", "triangle_out_grad"):
        yield Case(
            {"kind": "tile", "op": op, "C": 128}, whole if "out" in op else small,
            lambda op=op: make("grad" in op),
        )  # fmt: skip
    for op in ("columns", "columns_grad", "norm", "norm_grad"):  # between cuBLAS's products
        yield Case(
            {"kind": "tile", "op": f"triangle_{op}", "C": 256}, lines if "norm" in op else parts,
            lambda op=op: make("grad" in op, 256),
        )  # fmt: skip


def outer_cases() -> Iterator[Case]:
    def make(backward: bool) -> Any:
        m, z = rand(1, 128, 256, 256).requires_grad_(), rand(1, 256, 256, 128)
        w = OuterWeights(*norm(256), *weights(256, 32), *weights(256, 32), *weights(1024, 128))
        mask = torch.ones(1, 128, 256, device=DEVICE)

        def forward() -> Tensor:
            return outer_product_mean(m, w, mask, z=z)

        if not backward:
            return lambda _: forward()
        out = forward()
        grad = torch.randn_like(out)
        return lambda _: torch.autograd.grad(out, m, grad, retain_graph=True)

    for op in ("outer_project", "outer_dproject", "outer_dw"):
        stages = (2, 3, 4) if op == "outer_project" else (1, 2, 3)
        columns = (128,) if op == "outer_dw" else (32, 64, 128)
        candidates = [Tile(*c) for c in itertools.product((64, 128), columns, (4, 8), stages)]
        yield Case(
            {"kind": "tile", "op": op, "C": 128}, candidates,
            lambda backward=op != "outer_project": make(backward),
        )  # fmt: skip


def pair_bias_cases() -> Iterator[Case]:
    def pair() -> Callable[[Any], Any]:
        z = rand(1, 256, 256, 128).requires_grad_()
        bias, through = pair_bias_with_input(z, *norm(128), rand(8, 128))
        grads = torch.randn_like(bias), torch.randn_like(through)
        return lambda _: torch.autograd.grad((bias, through), z, grads, retain_graph=True)

    walks = itertools.product((16, 32, 64), (1,), (2, 4, 8), (1,), (2, 4, 6))
    key = {"kind": "tile", "op": "pair_bias_grad", "C": 128}
    yield Case(key, [Tile(*c) for c in walks], pair)
