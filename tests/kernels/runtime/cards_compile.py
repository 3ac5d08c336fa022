"""Compiles what operators launch for cards that are not here; run by test_cards.

Operators run forward and backward on a CPU as wide as models have them, each launch noted in place
of being made. Arguments: cards, each with the shared memory its programs may have. Prints
what each kernel takes of it on each card, in bytes.
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

import evofeed.kernels
from evofeed.kernels import FusedAdamEMA
from evofeed.kernels.runtime import tiles
from evofeed.kernels.runtime.cases import Draw, declared
from evofeed.kernels.runtime.prepared import forget

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

_noted: dict[tuple[str, bool], Launched] = {}
_compiled: dict[str, int] = {}


def _note(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]) -> None:
    """Of a kernel, and of an MLP of each kind, keeps what does most, with the largest tiles."""
    name = kernel.__name__, "WB" in kernel.arg_names and args[5] is not None
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


def note_all() -> None:
    """What every operator launches."""
    operators = declared().values()
    _pretend()
    for it in operators:
        for make in (*it.wide.values(), *(make for _, _, make in it.timed.values())):
            made = make(Draw(2, N, "cpu", torch.bfloat16))
            leaves = [t.requires_grad_() for t in made.tensors.values()]
            made.call(it.op)(*leaves).sum().backward()
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
        try:
            triton.compile(source, target=CARDS[card], options=options)
        except Lowered as done:
            (_compiled[key],) = done.args
    return _compiled[key]


class Lowered(Exception):
    """A kernel is in LLVM's dialect: its argument is the shared memory it takes, in bytes."""


def _lowered(module: Any, *_: Any) -> None:
    raise Lowered(module.get_int_attr("ttg.shared"))


def _portable(*given: Any) -> Any:
    """What comes then, most of the time, refuses nothing but what is written for one card."""
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


def main() -> None:
    torch.set_num_threads(1)
    knobs.runtime.add_stages_inspection_hook, llvm.to_module = _portable, _lowered
    for card, limit in zip(sys.argv[1::2], map(int, sys.argv[2::2]), strict=True):
        tiles.shared_bytes = lambda limit=limit: limit
        forget()
        _noted.clear()
        note_all()
        for name, launched in _noted.items():
            print(card, name[0], shared_bytes(launched, card))


if __name__ == "__main__":
    main()
