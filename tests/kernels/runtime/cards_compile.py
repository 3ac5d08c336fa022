"""Compiles what blocks launch for cards that are not here; run by test_cards.

Blocks of AF2 and of AF3-class models run forward and backward on a CPU, each launch noted in
place of being made. Arguments: cards, each with the shared memory its programs may have. Prints
what each kernel takes of it on each card, in bytes.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor, nn
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import evofeed.kernels
from evofeed.kernels import (
    FusedAdamEMA,
    layer_norm,
    masked_softmax,
    template_attention,
    to_fused,
)
from evofeed.kernels.runtime import tiles
from evofeed.kernels.runtime.prepared import forget
from evofeed.trainer.model.evoformer import EvoformerBlock
from evofeed.trainer.model.extra_msa import ExtraMSABlock

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.kernels.af3 import openfold3

CARDS = {
    "sm_80": GPUTarget("cuda", 80, 32), "sm_89": GPUTarget("cuda", 89, 32),
    "sm_100": GPUTarget("cuda", 100, 32), "gfx942": GPUTarget("hip", "gfx942", 64),
}  # fmt: skip
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64",
         torch.float64: "fp64"}  # fmt: skip

N = 64
SAME_CODE = {"sm_89": "sm_80"}
"""Ampere's and Ada's instructions differ in nothing that Triton writes: of the second only
launches with other tiles are compiled."""
Launched = tuple[Any, tuple[Any, ...], dict[str, Any]]

_noted: dict[str, Launched] = {}
_compiled: dict[str, int] = {}


def _note(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]) -> None:
    """Keeps one launch of a kernel: of those that do most, the one with the largest tiles."""
    name = kernel.__name__
    if name not in _noted or _size(meta) > _size(_noted[name][2]):
        _noted[name] = kernel, args, meta


def _size(meta: dict[str, Any]) -> tuple[int, int]:
    flags = sum(value is True for value in meta.values())
    return flags, math.prod(value for name, value in meta.items() if name.startswith("BLOCK"))


def _note_run(kernel: Any, *args: Any, grid: Any, warmup: bool, **meta: Any) -> None:
    _note(kernel, grid, args, meta)


def _pretend() -> None:
    """CPU tensors are taken for a GPU's, and nothing is launched."""
    triton.JITFunction.run = _note_run
    for name, module in list(sys.modules.items()):
        if name.startswith(evofeed.kernels.__name__):
            for own, stand_in in (("launch", _note), ("usable", lambda *_: True),
                                  ("sm_count", lambda _: 108)):  # fmt: skip
                if callable(getattr(module, own, None)):
                    setattr(module, own, stand_in)


def _run(module: nn.Module, *inputs: Tensor, more: tuple[Any, ...] = ()) -> None:
    to_fused(module.train())
    _pretend()
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.autocast("cpu", torch.bfloat16):
        out = module(*leaves, *more)
    outs = [out] if isinstance(out, Tensor) else list(out)
    torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])


def note_all() -> None:
    """What every operator launches."""
    z, mask, s = torch.randn(1, N, N, 128), torch.ones(1, N, N), torch.randn(1, N, 384)
    many, m = torch.ones(1, 16, N), torch.randn(1, 16, N, 64)
    a, of_a = torch.randn(1, 4, N, 768), torch.randn(1, 4, N, 384)
    _run(openfold3.PairBlock(128, 128, 32, 4, "swiglu", 4, 0.25, False, 1e9), z, more=(mask,))
    wide = openfold3.TriangleMultiplicationOutgoing(256, 256)
    _run(wide, torch.randn(1, N, N, 256), more=(mask,))
    _run(openfold3.MSAPairWeightedAveraging(64, 32, 128, 8), m, z, more=(mask,))
    _run(openfold3.OuterProductMean(64, 128, 32), m, more=(many,))
    tokens = openfold3.DiffusionTransformerBlock(768, 384, 128, 48, 16, 2, True, None, None)
    _run(tokens, a, of_a, z[:, None], more=(torch.ones(1, 1, N),))
    _run(openfold3.SingleAttentionPairBias(384, 128, 24, 16), s, z, more=(torch.ones(1, N),))
    widths: dict[str, Any] = {
        "c_z": 128, "c_hidden_opm": 32, "c_hidden_mul": 128, "c_hidden_pair_att": 32,
        "no_heads_msa": 8, "no_heads_pair": 4, "transition_n": 4, "msa_dropout": 0.15,
        "pair_dropout": 0.25,
    }  # fmt: skip
    block = EvoformerBlock(c_m=256, c_hidden_msa_att=32, **widths)
    _run(block, torch.randn(1, 16, N, 256), z, more=(many, mask))
    _run(ExtraMSABlock(c_m=64, c_hidden_msa_att=8, **widths), m, z, more=(many, mask))
    logits = torch.randn(1, N, 4, N, N, requires_grad=True)
    masked_softmax(logits, mask, torch.randn(1, 4, N, N)).sum().backward()
    q, k, v = (torch.randn(*n, N, N, 64, requires_grad=True) for n in ((1,), (1, 4), (1, 4)))
    template_attention(q, k, v, 4, torch.ones(1, 4)).sum().backward()
    x = torch.randn(1 << 15, 128, requires_grad=True)
    layer_norm(x, torch.ones(128), torch.zeros(128)).sum().backward()
    flat = [torch.zeros(4096) for _ in range(5)]
    FusedAdamEMA(*flat, torch.zeros(4096, dtype=torch.bfloat16), max_norm=0.1).step()


def shared_bytes(launched: Launched, card: str) -> int:
    """Shared memory of a kernel, compiled for that launch."""
    kernel, args, meta = launched
    constants = {name: value for name, value in meta.items() if name in kernel.arg_names}
    options = {name: value for name, value in meta.items() if name not in constants}
    types, even = {}, {}
    for place, (name, arg) in enumerate(zip(kernel.arg_names, args, strict=False)):
        if isinstance(arg, Tensor):
            types[name] = f"*{TYPES[arg.dtype]}"
        elif arg is None or arg is True or arg is False:
            constants[name] = arg
        else:
            types[name] = "fp32" if isinstance(arg, float) else "i32"
        if types.get(name, "")[:1] == "*" or (isinstance(arg, int) and arg % 16 == 0):
            even[(place,)] = [["tt.divisibility", 16]]
    at = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=at, attrs=even)
    key = repr((SAME_CODE.get(card, card), kernel.__name__, signature, at, even, options))
    if key not in _compiled:
        ready = triton.compile(source, target=CARDS[card], options=options)
        _compiled[key] = int(ready.metadata.shared)
    return _compiled[key]


def main() -> None:
    for card, limit in zip(sys.argv[1::2], map(int, sys.argv[2::2]), strict=True):
        tiles.shared_bytes = lambda limit=limit: limit
        forget()
        _noted.clear()
        note_all()
        for name, launched in _noted.items():
            print(card, name, shared_bytes(launched, card))


main()
