"""Errors of ours and of PyTorch's bfloat16 against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.gpu_times import Row
from benchmarks.kernels.common import BF16, DEVICE, rand, randomise, three_way
from benchmarks.kernels.layer_norm import NORM_SHAPES

from evofeed.kernels import layer_norm, reference, to_fused
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.swap.triangles import triangle_weights
from evofeed.trainer.model.config import EvoformerConfig
from evofeed.trainer.model.evoformer import EvoformerBlock
from evofeed.trainer.model.triangle import (
    TriangleMultiplicationOutgoing,
)


def section(peers: bool) -> Iterator[Row]:
    del peers

    def show(case: str, rows: list[list[float]]) -> Row:
        worst = max((a / max(b, 1e-9) for a, b in rows), default=0.0)
        return {"case": case, "worst_ratio": round(worst, 3), "ours_and_torch": rows}

    for N, D in ((200, 32), (256, 32), (127, 16), (70, 64), (256, 8)):
        q, k, v = (rand(1, 32, N, 4, D) for _ in range(3))
        mask = (torch.rand(1, 32, N, device=DEVICE) > 0.1).to(BF16)
        mask[0, 3] = 0
        inputs = [q, k, v, rand(1, 4, N, N), mask]
        rows = three_way(biased_attention, reference.biased_attention, inputs, [0, 1, 2, 3])
        yield show(f"attention N={N} D={D}", rows)
    for shape in NORM_SHAPES[:3]:
        C = shape[-1]
        inputs = [rand(*shape), rand(C), rand(C)]
        yield show(
            f"layer norm {list(shape)}",
            three_way(layer_norm, reference.layer_norm, inputs, [0, 1, 2]),
        )
    module = randomise(TriangleMultiplicationOutgoing(128, 128)).to(DEVICE, BF16)
    inputs = [rand(1, 100, 100, 128), *(t.detach() for t in triangle_weights(module).tensors())]

    def op(which: Any) -> Any:
        return lambda z, *w: which(z, TriangleWeights(*w), outgoing=True, residual=True)

    rows = three_way(
        op(triangle_multiplication), op(reference.triangle_multiplication), inputs, list(range(17))
    )
    yield show("triangle multiplication 100", rows)
    yield show("block 32x64", block_numerics())


def block_numerics() -> list[list[float]]:
    """[ours, eager's] error of outputs and input gradients of a whole bf16 block, dropout off."""
    torch.manual_seed(0)
    exact = randomise(EvoformerBlock(EvoformerConfig(), 256, 128)).to(DEVICE, torch.float64).eval()
    m, z = rand(1, 32, 64, 256), rand(1, 64, 64, 128)
    masks = [(torch.rand(1, n, 64, device=DEVICE) > 0.1).to(BF16) for n in (32, 64)]
    for parameter in exact.parameters():
        parameter.data = parameter.data.to(BF16).double()  # the weights all three share
    results = []
    for dtype in (torch.float64, BF16, None):
        block = exact.to(dtype or BF16)
        if dtype is None:
            to_fused(block)
        kind = dtype or BF16
        inputs = [t.to(kind).requires_grad_() for t in (m, z)]
        outs = block(*inputs, *(t.to(kind) for t in masks))
        ws = [torch.linspace(-1, 1, o.numel(), device=DEVICE).view_as(o).to(kind) for o in outs]
        loss = sum((o * w).sum() for o, w in zip(outs, ws, strict=True))
        grads = torch.autograd.grad(loss, inputs)
        results.append([(o - i).detach() for o, i in zip(outs, inputs, strict=True)] + list(grads))
    true, plain, ours = results
    return [
        [float((t.double() - e).norm() / e.norm()) for t in (a, b)]
        for a, b, e in zip(ours, plain, true, strict=True)
    ]
