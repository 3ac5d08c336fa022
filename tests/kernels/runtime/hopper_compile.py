"""Compiles the kernels for sm_90, without a GPU; run by test_cards."""

from __future__ import annotations

from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import llvm
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16

from evofeed.kernels.ops.attention.hopper.backward import backward_kernel
from evofeed.kernels.ops.attention.hopper.bias_gradient import bias_gradient_kernel
from evofeed.kernels.ops.attention.hopper.forward import forward_kernel
from evofeed.kernels.ops.gated_attention.hopper import kernels as gated
from evofeed.kernels.ops.swiglu.hopper import kernels as swiglu
from evofeed.kernels.ops.transition.hopper import kernels as transition
from evofeed.kernels.ops.triangle_multiplication.hopper import kernels as triangle
from evofeed.kernels.ops.triangle_multiplication.hopper import projections

FLOAT = "STATS STATS_X STATS_Z DELTA NORM FACTOR LSE eps factor scale".split()
NUMBERS = "M N R H I_ J_".split()
EVEN = ("M", "gs_m", "dg_m", "dp_m")


def stop_at_llvm(*given: Any) -> Any:
    """Products can be counted in LLVM's code: what it becomes takes as long again."""

    def named(source: Any, metadata: dict[str, Any]) -> bytes:
        metadata["name"] = "kernel"
        return b""

    if given:
        given[1].update(ptx=named, cubin=named)
    return None if given else ("stopped at LLVM", "0")  # what becomes part of the cache's key


def compile_kernel(
    kernel: Any, tiles: dict[str, list[int]] | None = None, maxnreg: int | None = None,
    **sizes: int | None,
) -> str:  # fmt: skip
    """LLVM's code of one kernel for bfloat16; `tiles` are those that the copy engine moves."""
    constants = {"num_warps": 8, **sizes}
    types = {}
    for name in kernel.arg_names:
        kind = "fp32" if name in FLOAT or name.startswith("PARTIAL") else "bf16"
        if name in constants:
            types[name] = "constexpr"
        elif tiles and name in tiles:
            layout = NVMMASharedLayout.get_default_for(tiles[name], bfloat16)
            types[name] = f"tensordesc<bf16{tiles[name]},{layout!r}>"
        elif name.islower() or name in NUMBERS:
            types[name] = "fp32" if name in FLOAT else "i32"
        else:
            types[name] = f"*{kind}"
    at = {(kernel.arg_names.index(n),): v for n, v in constants.items() if n in kernel.arg_names}
    even = {
        (n,): [["tt.divisibility", 16]]
        for n, name in enumerate(kernel.arg_names) if types[name].startswith("*") or name in EVEN
    }  # fmt: skip
    source = GluonASTSource(fn=kernel, signature=types, constexprs=at, attrs=even)
    options = {"num_warps": constants["num_warps"]} | ({"maxnreg": maxnreg} if maxnreg else {})
    target = GPUTarget("cuda", 90, 32)
    return str(triton.compile(source, target=target, options=options).asm["llir"])


knobs.runtime.add_stages_inspection_hook = stop_at_llvm
llvm.optimize_module = lambda *_: None
HEADS = {"D": 32, "BLOCK_D": 32, "HAS_BIAS": True, "HAS_MASK": True, "PAD": False, "WIDE": False}
SMALL = HEADS | {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4}
FOUR = SMALL | {"Q_TILES": 4, "K_TILES": 4, "RESIDENT": True, "LATE": 0}
END = {**dict.fromkeys("BIAS bs_b bs_h bs_q bs_k".split()), "HAS_BIAS": False, "RESIDENT": False}
LARGE = HEADS | {"BLOCK_Q": 128, "BLOCK_K": 128, "K_TILES": 3}
ATTENTION = [
    compile_kernel(forward_kernel, **SMALL, TILES=4, LATE=0),
    compile_kernel(backward_kernel, **FOUR),
    compile_kernel(backward_kernel, **LARGE, Q_TILES=3, RESIDENT=False, LATE=0),
    compile_kernel(bias_gradient_kernel, **SMALL, STAGES=3),
    compile_kernel(bias_gradient_kernel, maxnreg=128, **HEADS, BLOCK_Q=128, BLOCK_K=64, STAGES=2),
    compile_kernel(forward_kernel, **SMALL | {"WIDE": True}, TILES=4, LATE=0),
    compile_kernel(backward_kernel, **FOUR | {"WIDE": True}),
    compile_kernel(bias_gradient_kernel, **SMALL | {"WIDE": True}, STAGES=3),
    compile_kernel(forward_kernel, maxnreg=168, **SMALL | END | {"BLOCK_K": 128}, TILES=4, LATE=16),
    compile_kernel(backward_kernel, **LARGE | END | {"K_TILES": 4}, Q_TILES=4, LATE=16),
    compile_kernel(backward_kernel, **SMALL | END, Q_TILES=2, K_TILES=2, LATE=16),
]
PAIRS = {"C": 128, "E": 128, "BLOCK_M": 64}
DROP = {"HAS_DROP": True, "DROP_STEP": 1}
TILE = [64, 128]
ROWS = {"C": 128, "K": 128, "BLOCK_M": 64, **DROP}
TEXTS = [
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
        swiglu.swiglu_rows_kernel, C=128, N=512, BLOCK_N=64, BLOCK_M=128, HAS_MASK=True,
        HAS_RES=True,
    ),
    compile_kernel(
        projections.triangle_projections_kernel,
        {"z_rows": TILE, "w_rows": [128, 128], "ab_rows": [128, 64]}, **PAIRS, num_warps=4,
    ),
]  # fmt: skip
print(*(text.count("wgmma.mma_async") for text in ATTENTION + TEXTS))
