"""Products of matrices by cuBLAS, with the algorithm that was fastest where that was measured.

PyTorch gets the first algorithm that cuBLASLt proposes. For the products of a training step others
were tried (`benchmarks/tune_products.py`), and where one is faster it is kept in `choices.json`
beside the tiles of our kernels, for one version of the library and one card: all else, and
whatever the library refuses, is PyTorch's call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from evofeed.kernels.runtime.cublaslt import Failed, Plan, is_turned, version
from evofeed.kernels.runtime.tiles import saved_products

_SHORT = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


_plans: dict[Any, Plan | None] = {}
"""By kind of product; None where PyTorch makes it."""
MOST = 4096  # kinds: sizes are part of them


def product(
    a: Tensor, b: Tensor, *, out: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """a b.

    Args:
        a: `[M, K]`, or several `[B, M, K]`.
        b: `[K, N]`, or `[B, K, N]`.
        out: where the result goes, contiguous.
        dtype: of the result, if not theirs: float32.
    """
    plan = _plan(a, b, dtype or a.dtype) if a.is_cuda else None
    if plan is not None and has_torch_function((a, b)):  # written down, it is one step
        given = {"out": out, "dtype": dtype}
        named: dict[str, Any] = {name: x for name, x in given.items() if x is not None}
        return handle_torch_function(product, (a, b), a, b, **named)
    if plan is not None and not _odd(a, b, out):
        shape = (*a.shape[:-1], b.shape[-1])
        made = torch.empty(shape, dtype=dtype or a.dtype, device=a.device) if out is None else out
        if made.is_contiguous() and plan(a, b, made):
            return made
    return plain(a, b, out, dtype)


def plain(a: Tensor, b: Tensor, out: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    """The same by PyTorch."""
    if dtype is None or dtype is a.dtype:
        by = torch.mm if a.dim() == 2 else torch.bmm
        return by(a, b) if out is None else by(a, b, out=out)
    if dtype is torch.float32 and a.is_cuda and a.dim() == 2 and out is None:
        return torch.mm(a, b, out_dtype=dtype)
    made = plain(a, b, None, None).to(dtype)
    return made if out is None else out.copy_(made)


def _odd(*tensors: Tensor | None) -> bool:
    """Whether one does not begin at a multiple of 16 bytes, as algorithms were chosen for."""
    together = 0
    for t in tensors:
        together |= 0 if t is None else t.data_ptr()
    return bool(together & 15)


def _plan(a: Tensor, b: Tensor, dtype: torch.dtype) -> Plan | None:
    device = a.get_device()
    if device != torch.cuda.current_device():  # PyTorch makes it current for the call
        return None
    key = (a.shape, a.stride(), b.shape, b.stride(), a.dtype, b.dtype, dtype, device)
    if key not in _plans:
        if len(_plans) >= MOST:
            _plans.clear()
        _plans[key] = _made(a, b, dtype)
    return _plans.get(key)


def kind(a: Tensor, b: Tensor, dtype: torch.dtype) -> str:
    """How a product is called in `choices.json`: "tn 528 x 65536 x 128 bfloat16 to float32"."""
    sizes = (*a.shape, b.shape[-1])
    turned = "".join("nt"[is_turned(x)] for x in (a, b))
    after = "" if dtype is a.dtype else f" to {_SHORT[dtype]}"
    return f"{turned} {' x '.join(map(str, sizes))} {_SHORT[a.dtype]}{after}"


def _in_order(x: Tensor) -> bool:
    """Whether one of the last two axes lies in order, lines begin at multiples of 16 bytes."""
    strides = sorted(x.stride()[-2:])
    return strides[0] == 1 and strides[1] >= min(x.shape[-2:]) and not strides[1] % 8


def _made(a: Tensor, b: Tensor, dtype: torch.dtype) -> Plan | None:
    """A plan with the algorithm saved for such a product on this card; None without one."""
    known = a.dtype is b.dtype and {a.dtype, dtype} <= _SHORT.keys() and a.dim() == b.dim()
    if not (known and _in_order(a) and _in_order(b)):
        return None
    saved = saved_products(torch.cuda.get_device_name(a.get_device()), version())
    algorithm = saved.get(kind(a, b, dtype))
    if algorithm is None:
        return None
    like = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=dtype, device=a.device)
    try:
        plan = Plan(a, b, like)
        plan.take(algorithm)
    except Failed:
        return None
    return plan
