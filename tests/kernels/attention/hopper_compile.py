"""Compiles the Hopper attention kernels for sm_90, without a GPU; run by test_hopper_attention."""

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from evofeed.kernels.ops.attention.hopper.backward import backward_kernel
from evofeed.kernels.ops.attention.hopper.bias_gradient import bias_gradient_kernel
from evofeed.kernels.ops.attention.hopper.forward import forward_kernel
from evofeed.kernels.ops.attention.hopper.late import late_forward_kernel
from evofeed.kernels.ops.attention.hopper.late_backward import late_backward_kernel

POINTERS = "Q K V BIAS TERM OUT DO DQ DK DV".split()


def compile_kernel(kernel, warps, maxnreg=None, **sizes):
    """PTX of one kernel for bfloat16 heads of width 32, with bias and mask."""
    constants = {
        "D": 32, "BLOCK_D": 32, "HAS_BIAS": True, "HAS_MASK": True, "PAD": False,
        "WIDE": False,
        "num_warps": warps, **sizes,
    }  # fmt: skip
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name in POINTERS:
            types[name] = "*bf16"
        elif name.isupper() and len(name) > 1:
            types[name] = "*fp32"
        else:
            types[name] = "fp32" if name in ("factor", "scale") else "i32"
    at = {(kernel.arg_names.index(n),): v for n, v in constants.items() if n in kernel.arg_names}
    even = {
        (n,): [["tt.divisibility", 16]]
        for n, name in enumerate(kernel.arg_names) if types[name].startswith("*")
    }  # fmt: skip
    source = GluonASTSource(fn=kernel, signature=types, constexprs=at, attrs=even)
    options = {"num_warps": warps} | ({"maxnreg": maxnreg} if maxnreg else {})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


TILE = {"BLOCK_Q": 64, "BLOCK_K": 64}
FOUR = {**TILE, "Q_TILES": 4, "K_TILES": 4}
WIDE = {"BLOCK_Q": 128, "BLOCK_K": 128, "K_TILES": 3}
TEXTS = [
    compile_kernel(forward_kernel, 4, **TILE, TILES=4),
    compile_kernel(backward_kernel, 4, **FOUR, RESIDENT=True),
    compile_kernel(backward_kernel, 8, **WIDE, Q_TILES=3, RESIDENT=False),
    compile_kernel(bias_gradient_kernel, 4, **TILE, STAGES=3),
    compile_kernel(bias_gradient_kernel, 8, 128, BLOCK_Q=128, BLOCK_K=64, STAGES=2),
    compile_kernel(forward_kernel, 4, **TILE, TILES=4, WIDE=True),
    compile_kernel(backward_kernel, 4, **FOUR, RESIDENT=True, WIDE=True),
    compile_kernel(bias_gradient_kernel, 4, **TILE, STAGES=3, WIDE=True),
    compile_kernel(late_forward_kernel, 4, 168, BLOCK_Q=64, BLOCK_K=128, TILES=4, LATE=16),
    compile_kernel(late_backward_kernel, 8, **WIDE | {"K_TILES": 4}, Q_TILES=4),
    compile_kernel(late_backward_kernel, 4, **TILE, Q_TILES=2, K_TILES=2),
]
print(*(text.count("wgmma.mma_async") for text in TEXTS))
