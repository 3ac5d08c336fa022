"""The attention core beside SDPA, flex_attention and PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.gpu_times import Row
from benchmarks.kernels.common import DEVICE, both_ways, rand
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.attention.op import biased_attention

ATTENTION_SHAPES = {  # rows, positions, heads, width, bias
    "triangle 256": (256, 256, 4, 32, True),
    "triangle 384": (384, 384, 4, 32, True),
    "triangle 512": (512, 512, 4, 32, True),
    "row 128x256": (128, 256, 8, 32, True),
    "row 512x384": (512, 384, 8, 32, True),
    "column 128x256": (256, 128, 8, 32, False),
    "extra row 1024x256": (1024, 256, 8, 8, True),
    "template 256": (256, 256, 4, 16, True),
}


def sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor) -> Tensor:
    """Memory-efficient SDPA: bias and mask must be one tensor, expanded over rows."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (t[0].transpose(1, 2) for t in (q, k, v))
    extra = ((mask[0] - 1) * 1e9)[:, None, None, :].to(q.dtype)
    extra = extra.expand(-1, q.shape[1], q.shape[2], -1) if bias is None else extra + bias
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, extra)
    return out.transpose(1, 2)[None]


def flex_op() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)

    def op(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor) -> Tensor:
        shift = (mask[0] - 1) * 1e9

        def with_bias(score: Any, row: Any, head: Any, i: Any, j: Any) -> Any:
            return score + bias[0, head, i, j] + shift[row, j]  # type: ignore[index]

        def without(score: Any, row: Any, head: Any, i: Any, j: Any) -> Any:
            return score + shift[row, j]

        q, k, v = (t[0].transpose(1, 2) for t in (q, k, v))
        out = compiled(q, k, v, score_mod=without if bias is None else with_bias)
        return out.transpose(1, 2)[None]

    return op


def section(peers: bool) -> Iterator[Row]:
    for case, (R, N, H, D, has_bias) in ATTENTION_SHAPES.items():

        def inputs(R: int = R, N: int = N, H: int = H, D: int = D, b: bool = has_bias) -> Any:
            sets = []
            for _ in range(3):
                q, k, v = (rand(1, R, N, H, D) for _ in range(3))
                mask = (torch.rand(1, R, N, device=DEVICE) > 0.1).float()
                sets.append([q, k, v, rand(1, H, N, N) if b else None, mask])
            return sets

        grads = [0, 1, 2, 3] if has_bias else [0, 1, 2]
        flops = 4 * R * H * N * N * D

        head = {"case": case, "forward_flops": flops}
        ours = both_ways(biased_attention, inputs(), grads, wall=False)
        yield {**head, "who": "evofeed", **ours}
        if peers:
            peer_ops: dict[str, Any] = {"SDPA mem-efficient": sdpa}
            if N <= 256:
                peer_ops["torch eager"] = reference.biased_attention
            if D >= 16:
                peer_ops["flex_attention"] = flex_op()
            for who, op in peer_ops.items():
                torch.compiler.reset()
                try:
                    row = both_ways(op, inputs(), grads, wall=False)
                    yield {**head, "who": who, **row}
                except Exception as error:  # a peer that cannot run is a result too
                    yield {"case": case, "who": who, "failed": str(error)[:200]}
