"""Compiles the blocks' kernels for sm_90, without a GPU; run by test_hopper_compile."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16

from evofeed.kernels.ops.gated_attention.hopper import kernels as gated
from evofeed.kernels.ops.swiglu.hopper import kernels as swiglu
from evofeed.kernels.ops.transition.hopper import forward
from evofeed.kernels.ops.transition.hopper import kernels as transition
from evofeed.kernels.ops.triangle_multiplication.hopper import kernels as triangle
from evofeed.kernels.ops.triangle_multiplication.hopper import projections

FLOAT = "STATS STATS_X STATS_Z DELTA NORM".split()
NUMBERS = "M gs_m dg_m dp_m ds_b ds_i ds_j ds_h I_ J_ drop_1 drop_2 drop_rows".split()


def compile_kernel(kernel: Any, tiles: dict[str, list[int]] | None = None, **sizes: int) -> str:
    """PTX of one kernel for bfloat16; `tiles` are those that the copy engine moves."""
    constants = {"num_warps": 8, **sizes}
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif tiles and name in tiles:
            layout = NVMMASharedLayout.get_default_for(tiles[name], bfloat16)
            types[name] = f"tensordesc<bf16{tiles[name]},{layout!r}>"
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
TILE = [64, 128]
ROWS = {"C": 128, "K": 128, "BLOCK_M": 64, **DROP}
TEXTS = [
    compile_kernel(triangle.triangle_in_kernel, **PAIRS),
    compile_kernel(triangle.triangle_out_kernel, **PAIRS, **DROP, HAS_RES=True),
    compile_kernel(triangle.triangle_out_grad_kernel, **PAIRS, **DROP),
    compile_kernel(triangle.triangle_in_grad_kernel, **PAIRS, BLOCK_E=64, num_warps=4),
    compile_kernel(
        gated.gated_output_kernel,
        {**dict.fromkeys("o_rows gate_rows res_rows out_rows".split(), TILE), "w_rows": [128, 128]},
        **ROWS, BLOCK_C=128, HAS_RES=True,
    ),
    compile_kernel(
        gated.gated_output_grad_kernel,
        {**dict.fromkeys("d_rows o_rows gate_rows do_rows dgate_rows".split(), TILE),
         "w_rows": [128, 128]},
        **ROWS, D=32, BLOCK_K=128,
    ),
    compile_kernel(
        forward.transition_kernel,
        {"x_rows": [128, 128], "w1_rows": TILE, "w2_rows": [128, 64], "out_rows": [128, 128]},
        C=128, N=512, BLOCK_M=128, BLOCK_N=64, STAGES=4, HAS_MASK=True, HAS_RES=True,
    ),
    compile_kernel(
        transition.transition_grad_kernel, {"x_rows": TILE, "dy_rows": TILE}, C=128, N=512,
        BLOCK_N=128, BLOCK_M=64, BY_ENGINE=False,
    ),
    compile_kernel(
        transition.transition_grad_kernel, {"x_rows": [64, 256], "dy_rows": [64, 256]}, C=256,
        N=1024, BLOCK_N=64, BLOCK_M=64, BY_ENGINE=True,
    ),
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
    compile_kernel(
        projections.triangle_projections_kernel,
        {"z_rows": TILE, "w_rows": [128, 128], "ab_rows": [128, 64]}, **PAIRS, num_warps=4,
    ),
]  # fmt: skip
print(*(text.count("wgmma.mma_async") for text in TEXTS))
