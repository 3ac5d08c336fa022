"""Compiles the launches of operators for cards that are not installed; run by test_cards.

Operators run forward and backward on a CPU as wide as models have them, each launch noted in place
of being made. Arguments: cards, each with the shared memory its programs may have. Prints
what each kernel takes of it on each card, in bytes; for Hopper, which comes last if at all, of each
kernel laid out for it by hand the products in LLVM's code.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton._C.libtriton import llvm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction

import evofeed.kernels
from evofeed.kernels import FusedAdamEMA
from evofeed.kernels.ops.attention import inputs
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.ops.triangle_multiplication.hopper import launch as triangle_launch
from evofeed.kernels.runtime import tiles
from evofeed.kernels.runtime.backend import TensorDescriptor
from evofeed.kernels.runtime.cases import Draw, declared
from evofeed.kernels.runtime.prepared import forget_traces

CARDS = {
    "sm_80": GPUTarget("cuda", 80, 32), "sm_89": GPUTarget("cuda", 89, 32),
    "sm_100": GPUTarget("cuda", 100, 32), "gfx942": GPUTarget("hip", "gfx942", 64),
    "sm_90": GPUTarget("cuda", 90, 32),
}  # fmt: skip
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64",
         torch.float64: "fp64"}  # fmt: skip

N = 64
SAME_CODE = {"sm_89": "sm_80"}
"""Ampere's and Ada's instructions differ in nothing that Triton writes: of the second only
launches with other tiles are compiled."""
Launched = tuple[Any, tuple[Any, ...], dict[str, Any]]

_noted: dict[tuple[str, bool, str], Launched] = {}
_compiled: dict[str, int] = {}
_every = False  # whether launches of a kernel with other constants are noted apart


def _note(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]) -> None:
    """Of a kernel, and of an MLP of each kind, keeps what does most, with the largest tiles."""
    name = kernel.__name__, "WB" in kernel.arg_names and args[5] is not None, repr(meta) * _every
    if name not in _noted or _size(meta) > _size(_noted[name][2]):
        _noted[name] = kernel, args, meta


def _size(meta: dict[str, Any]) -> tuple[int, int]:
    flags = sum(value is True for value in meta.values())
    return flags, math.prod(value for name, value in meta.items() if name.startswith("BLOCK"))


def _note_run(kernel: Any, *args: Any, grid: Any, warmup: bool, **meta: Any) -> None:
    _note(kernel, grid, args, meta)


def _pretend(hopper: bool) -> None:
    """CPU tensors are taken for a GPU's, and nothing is launched."""
    JITFunction.run = _note_run
    stand_ins: dict[str, Any] = {"launch": _note, "usable": lambda *_: True}
    stand_ins |= {"sm_count": lambda _: 108} | ({"on_hopper": lambda *_: True} if hopper else {})
    for name, module in list(sys.modules.items()):
        if name.startswith(evofeed.kernels.__name__):
            for own, stand_in in stand_ins.items():
                if callable(getattr(module, own, None)):
                    setattr(module, own, stand_in)


def note_all(hopper: bool) -> None:
    """Notes the launches of every operator."""
    operators = declared().values()
    _pretend(hopper)
    for it in operators:
        for make in (*it.wide.values(), *(make for _, _, make in it.timed.values())):
            made = make(Draw(2, N, "cpu", torch.bfloat16))
            leaves = [t.requires_grad_() for t in made.tensors.values()]
            made.call(it.op)(*leaves).sum().backward()
    flat = [torch.zeros(4096) for _ in range(5)]
    FusedAdamEMA(*flat, torch.zeros(4096, dtype=torch.bfloat16), max_norm=0.1).step()


def note_attention() -> None:
    """Of short rows, long ones and far strides; of a few positions more than whole tiles."""
    for N, biased, limit in (
        (256, True, 2**31), (384, True, 2**31), (256, True, 0), (516, False, 2**31),
        (132, False, 2**31),
    ):  # fmt: skip
        inputs.LIMIT = limit
        qkv = torch.randn(3, 1, 2, N, 1, 32, dtype=torch.bfloat16).requires_grad_()
        bias = torch.zeros(1, 1, N, N, dtype=torch.bfloat16).requires_grad_() if biased else None
        biased_attention(*qkv.unbind(), bias, torch.ones(1, 2, N)).sum().backward()


def compiled(launched: Launched, card: str) -> int:
    """Shared memory, or products, of a kernel, compiled for that launch."""
    kernel, args, meta = launched
    constants = {name: value for name, value in meta.items() if name in kernel.arg_names}
    options = {
        name: value for name, value in meta.items()
        if value is not None and (name == "num_warps" or name not in constants)
    }  # fmt: skip
    types, even = {}, {}
    for place, (name, arg) in enumerate(zip(kernel.arg_names, args, strict=False)):
        if isinstance(arg, Tensor):
            types[name] = f"*{TYPES[arg.dtype]}"
        elif isinstance(arg, TensorDescriptor):
            types[name] = f"tensordesc<bf16{arg.block_shape},{arg.layout!r}>"
        elif arg is None or arg is True or arg is False:
            constants[name] = arg
        else:
            types[name] = "fp32" if isinstance(arg, float) else "i32"
        if types.get(name, "")[:1] == "*" or (isinstance(arg, int) and arg % 16 == 0):
            even[(place,)] = [["tt.divisibility", 16]]
    at = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source = source_of(kernel)(fn=kernel, signature=signature, constexprs=at, attrs=even)
    key = repr((SAME_CODE.get(card, card), kernel.__name__, signature, at, even, options))
    if key not in _compiled:
        try:
            made = triton.compile(source, target=CARDS[card], options=options)
            _compiled[key] = str(made.asm["llir"]).count("wgmma.mma_async")
        except Lowered as done:
            (_compiled[key],) = done.args
    return _compiled[key]


def source_of(kernel: Any) -> Any:
    if type(kernel) is JITFunction:
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource  # since Triton 3.6

    return GluonASTSource


class Lowered(Exception):
    """A kernel is in LLVM's dialect: its argument is the shared memory it takes, in bytes."""


def _lowered(module: Any, *_: Any) -> None:
    raise Lowered(module.get_int_attr("ttg.shared"))


def _portable(*given: Any) -> Any:
    """Refuses code for one card; the stages after LLVM take longest and refuse nothing else."""
    if not given:  # what becomes part of the cache's key
        return "stopped at LLVM", "0"
    stages = given[1]
    parse = stages["ttir"]

    def parsed(source: Any, metadata: dict[str, Any]) -> Any:
        module = parse(source, metadata)
        assert not re.search("inline_asm|extern_elementwise", str(module)), source
        return module

    stages["ttir"] = parsed
    return None


def _at_llvm(*given: Any) -> Any:
    """Products can be counted in LLVM's code: what it becomes takes as long again."""

    def named(source: Any, metadata: dict[str, Any]) -> bytes:
        metadata["name"] = "kernel"
        return b""

    if given:
        given[1].update(ptx=named, cubin=named)
    return None if given else ("stopped at LLVM, whole", "0")


def main() -> None:
    global _every
    torch.set_num_threads(1)
    to_module = llvm.to_module
    for card, limit in zip(sys.argv[1::2], map(int, sys.argv[2::2]), strict=True):
        tiles.shared_bytes = lambda limit=limit: limit
        hopper = _every = card == "sm_90"
        knobs.runtime.add_stages_inspection_hook = _at_llvm if hopper else _portable
        llvm.to_module = to_module if hopper else _lowered
        forget_traces()
        _noted.clear()
        if hopper:
            llvm.optimize_module, triangle_launch.MANY = lambda *_: None, 1
        note_all(hopper)
        if hopper:
            note_attention()
        for name, launched in _noted.items():
            if not hopper or type(launched[0]) is not JITFunction:
                print(card, name[0], compiled(launched, card))


if __name__ == "__main__":
    main()
