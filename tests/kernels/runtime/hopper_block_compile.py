"""Compiles the blocks' kernels for sm_90, without a GPU; run by test_hopper_compile."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from evofeed.kernels.ops.gated_attention.hopper import kernels as gated
from evofeed.kernels.ops.swiglu.hopper import kernels as swiglu
from evofeed.kernels.ops.transition.hopper import kernels as transition
from evofeed.kernels.ops.triangle_multiplication.hopper import kernels as triangle

FLOAT = "STATS STATS_X STATS_Z DELTA".split()
NUMBERS = "M gs_m dg_m dp_m ds_b ds_i ds_j ds_h I_ J_ drop_1 drop_2 drop_rows".split()


def compile_kernel(kernel: Any, **sizes: int) -> str:
    """PTX of one kernel for bfloat16."""
    constants = {"num_warps": 8, **sizes}
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name == "eps":
            types[name] = "fp32"
        elif name in NUMBERS:
            types[name] = "i32"
        elif name in FLOAT or name.startswith("PARTIAL"):
            types[name] = "*fp32"
        else:
            types[name] = "*bf16"
    at = {(kernel.arg_names.index(n),): v for n, v in constants.items() if n in kernel.arg_names}
    even = {
        (n,): [["tt.divisibility", 16]]
        for n, name in enumerate(kernel.arg_names)
        if types[name].startswith("*") or name in ("M", "gs_m", "dg_m", "dp_m")
    }
    source = GluonASTSource(fn=kernel, signature=types, constexprs=at, attrs=even)
    target = GPUTarget("cuda", 90, 32)
    options = {"num_warps": constants["num_warps"]}
    return str(triton.compile(source, target=target, options=options).asm["ptx"])


PAIRS = {"C": 128, "E": 128, "BLOCK_M": 64}
DROP = {"HAS_DROP": True, "DROP_STEP": 1}
ROWS = {"C": 128, "K": 128, "BLOCK_M": 64, **DROP}
TEXTS = [
    compile_kernel(triangle.triangle_in_kernel, **PAIRS),
    compile_kernel(triangle.triangle_out_kernel, **PAIRS, **DROP, HAS_RES=True),
    compile_kernel(triangle.triangle_out_grad_kernel, **PAIRS, **DROP),
    compile_kernel(triangle.triangle_in_grad_kernel, **PAIRS, BLOCK_E=64, num_warps=4),
    compile_kernel(gated.gated_output_kernel, **ROWS, BLOCK_C=128, HAS_RES=True),
    compile_kernel(gated.gated_output_grad_kernel, **ROWS, D=32, BLOCK_K=128),
    compile_kernel(transition.transition_grad_kernel, C=128, N=512, BLOCK_N=128, BLOCK_M=64),
    compile_kernel(
        swiglu.swiglu_weights_kernel, C=128, N=512, BLOCK_N=64, BLOCK_M=64, HAS_MASK=True
    ),
    compile_kernel(
        swiglu.swiglu_rows_kernel,
        C=128,
        N=512,
        BLOCK_N=64,
        BLOCK_M=128,
        HAS_MASK=True,
        HAS_RES=True,
    ),
]
print(*(text.count("wgmma.mma_async") for text in TEXTS))
