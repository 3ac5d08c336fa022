"""Float32 products of a few hundred rows, as exact as without tensor cores.

The structure module's layers have a row a residue, its attention a product a head. cuBLAS makes
such float32 products on the plain units, in 7 to 40 us each; here tensor cores multiply, each
factor split into two numbers (`projection.EXACT`), and bias, relu and the bias's gradient need no
launch of their own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from evofeed.kernels.runtime.backend import launchable, triton, usable
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import EXACT, padded
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.structure.exact_linear.triton import exact_product_kernel

MOST_ROWS = 4096  # of a layer: beyond, cuBLAS fills the card too
MOST_SIDE = 512  # of products
PART = 576  # of K in one program: a step of 64 takes 0.7 us, and another waits for it
SIDE, ENOUGH = 32, 132  # of a program's tile; with fewer programs it has half the rows


def _product(
    a: Tensor, b: Tensor, bias: Tensor | None = None, plus: Tensor | None = None,
    mask: Tensor | None = None, relu: bool = False, sums: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """a b^T for `[B, Z, M, K]` and `[B, Z, N, K]` of any strides, see the kernel."""
    (B, Z, M, K), N = a.shape, b.shape[2]
    parts = 1 if relu or plus is not None or sums is not None else triton.cdiv(K, PART)
    out = a.new_empty(parts, B, Z, M, N)
    few = triton.cdiv(M, SIDE) * triton.cdiv(N, SIDE) * B * Z * parts < ENOUGH
    rows, columns = min(SIDE // 2 if few else SIDE, padded(M)), min(SIDE, padded(N))
    launch(
        exact_product_kernel, (triton.cdiv(M, rows), triton.cdiv(N, columns), B * Z * parts),
        (a, b, bias, plus, mask, out, sums, B * Z, Z, M, N, K, PART if parts > 1 else K,
         *a.stride(), *b.stride()),
        {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": min(64, padded(K)),
         "HAS_BIAS": bias is not None, "HAS_PLUS": plus is not None, "RELU": relu,
         "MASKED": mask is not None, "HAS_SUMS": sums is not None,
         "PRECISION": EXACT, "num_warps": 2, "num_stages": 3},
    )  # fmt: skip
    if parts == 1:
        return out[0]
    return column_sums([out.view(parts, -1)], out.dtype)[0].view(B, Z, M, N)


class _ExactLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, relu: bool, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = _product(x[None, None], weight[None, None], bias, relu=relu)[0, 0]
        ctx.save_for_backward(x, weight, out if relu else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Any:
        x, weight, out = ctx.saved_tensors
        dout = dout.contiguous()[None, None]
        mask = None if out is None else out[None, None]
        dx = _product(dout, weight.t()[None, None], mask=mask) if ctx.needs_input_grad[1] else None
        dbias = dout.new_empty(dout.shape[3])
        mask = None if mask is None else mask.mT
        dweight = _product(dout.mT, x.t()[None, None], mask=mask, sums=dbias)
        return None, None if dx is None else dx[0, 0], dweight[0, 0], dbias


class _ExactBmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, plus: Tensor | None) -> Tensor:
        ctx.save_for_backward(a, b)
        return _product(a, b, plus=plus)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Any:
        a, b = ctx.saved_tensors
        dout = dout.contiguous()
        da = _product(dout, b.mT) if ctx.needs_input_grad[0] else None
        db = None
        if ctx.needs_input_grad[1]:  # as b lies
            db = _product(dout.mT, a.mT) if b.stride(3) == 1 else _product(a.mT, dout.mT).mT
        return da, db, dout if ctx.needs_input_grad[2] else None


def exact_linear_fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes these rows: float32, and few."""
    few = 0 < x.numel() // x.shape[-1] <= MOST_ROWS
    return few and x.dtype is weight.dtype is torch.float32 and usable(x, weight)


def exact_linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """x weight^T + bias, with `relu` its positive part; PyTorch's where the kernel does not fit.

    Args:
        x: `[*, K]`.
        weight: `[N, K]`.
        bias: `[N]`.
        relu: whether negative numbers become 0.
    """
    if not (exact_linear_fits(x, weight) and launchable(x, weight, bias)):
        out = F.linear(x, weight, bias)
        return torch.relu(out) if relu else out
    flat = x.reshape(-1, x.shape[-1])
    found: Tensor = _ExactLinear.apply(relu, flat, weight, bias)  # type: ignore[no-untyped-call]
    return found.view(*x.shape[:-1], weight.shape[0])


def exact_bmm_fits(a: Tensor, b: Tensor) -> bool:
    """Whether the kernel takes these products: float32, a few hundred rows and columns each."""
    few = max(a.shape[-2], b.shape[-2]) <= MOST_SIDE and a.numel() > 0 and b.numel() > 0
    return a.dim() == 4 and few and a.dtype is b.dtype is torch.float32 and usable(a, b)


def exact_bmm(a: Tensor, b: Tensor, plus: Tensor | None = None) -> Tensor:
    """a b^T `[B, Z, M, N]`, plus a tensor of that shape; never TF32 where PyTorch is set to it.

    Args:
        a: `[B, Z, M, K]`, for which `exact_bmm_fits`.
        b: `[B, Z, N, K]`; either may be a view.
        plus: `[B, Z, M, N]`, or None.
    """
    plus = None if plus is None else plus.contiguous()
    found: Tensor = _ExactBmm.apply(a, b, plus)  # type: ignore[no-untyped-call]
    return found
