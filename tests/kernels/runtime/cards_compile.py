"""Compiles the Triton kernels of a pair block for cards that are not here; run by test_cards.

One line for each card: its name, then each kernel's shared memory in bytes.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from evofeed.kernels.ops.adaptive_norm import triton as adaptive
from evofeed.kernels.ops.attention import triton as attention
from evofeed.kernels.ops.conditioned_attention import triton as tokens
from evofeed.kernels.ops.conditioned_transition import triton as conditioned
from evofeed.kernels.ops.gated_attention import triton as gated
from evofeed.kernels.ops.swiglu import triton as swiglu
from evofeed.kernels.ops.triangle_multiplication import composed_triton as composed
from evofeed.kernels.ops.triangle_multiplication import triton as triangle
from evofeed.kernels.ops.weighted_average import op as averages
from evofeed.kernels.ops.weighted_average import triton as average
from evofeed.kernels.runtime.tiles import DEFAULTS, AttentionTiles, Tile
from evofeed.kernels.runtime.tiles import tile as tile_of

CARDS = {
    "sm_80": GPUTarget("cuda", 80, 32), "sm_89": GPUTarget("cuda", 89, 32),
    "sm_100": GPUTarget("cuda", 100, 32), "gfx942": GPUTarget("hip", "gfx942", 64),
}  # fmt: skip
FLOAT32 = {"STATS", "STATS_X", "LSE", "DELTA", "FACTOR", "PARTIAL", "PARTIAL_DB"}
SCALARS = {"eps": "fp32", "factor": "fp32", "scale": "fp32"}


def shared_bytes(kernel: Any, card: str, warps: int, stages: int, **sizes: Any) -> int:
    """Shared memory of a kernel for bfloat16."""
    types = {}
    for name in kernel.arg_names:
        if name in sizes:
            types[name] = "constexpr"
        elif name.isupper() and (len(name) > 1 or name in "AGPQKVWXYZ") and name != "MQ":
            types[name] = "*fp32" if name in FLOAT32 else "*bf16"
        else:
            types[name] = SCALARS.get(name, "i32")
    for name in ("M", "N", "C", "E", "K", "H", "R", "D", "I_", "J_", "NQ", "NK"):
        if name in types and types[name] != "constexpr" and not _is_pointer(kernel, name):
            types[name] = "i32"
    at = {(kernel.arg_names.index(n),): v for n, v in sizes.items()}
    even = {
        (n,): [["tt.divisibility", 16]]
        for n, name in enumerate(kernel.arg_names)
        if types[name].startswith("*") or (types[name] == "i32" and name[-2:] in ("_n", "_m"))
        or name in ("C", "E", "N", "K")
    }  # fmt: skip
    source = ASTSource(fn=kernel, signature=types, constexprs=at, attrs=even)
    options = {"num_warps": warps, "num_stages": stages}
    compiled = triton.compile(source, target=CARDS[card], options=options)
    return int(compiled.metadata.shared)


def _is_pointer(kernel: Any, name: str) -> bool:
    return name == "K" and "Q" in kernel.arg_names


def kernels() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    """Kernel, tile and sizes by name: C 128, 4 heads of 32, SwiGLU of 512."""
    wide = {"BLOCK_C": 128, "PRECISION": "ieee"}
    tiles = AttentionTiles()
    core = {
        "D": 32, "BLOCK_D": 32, "HAS_BIAS": True, "HAS_MASK": True, "PAD": True,
        "PRECISION": "ieee", "WIDE": True,
    }  # fmt: skip

    def attend(tile: Any) -> dict[str, Any]:
        return {**core, "BLOCK_Q": tile.rows, "BLOCK_K": tile.columns}

    found: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "attention": (attention.forward_kernel, tiles.forward, attend(tiles.forward)),
        "attention_dq": (attention.backward_dq_kernel, tiles.dq, attend(tiles.dq)),
        "attention_dkv": (attention.backward_dkv_kernel, tiles.dkv, attend(tiles.dkv)),
        "attention_db": (attention.backward_db_kernel, tiles.db, attend(tiles.db)),
    }
    for name, kernel in (
        ("swiglu", swiglu.swiglu_mlp_kernel), ("swiglu_backward", swiglu.swiglu_backward_kernel)
    ):  # fmt: skip
        tile = tile_of(name, 128, torch.bfloat16)
        sizes = {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "HAS_MASK": True, "HAS_RES": True}
        found[name] = kernel, tile, {**wide, **sizes}
    for name in ("triangle_in", "triangle_in_grad", "triangle_out", "triangle_out_grad"):
        chosen, out = tile_of(name, 128, torch.bfloat16), "out" in name
        sizes = {**wide, "BLOCK_M": chosen.rows}
        sizes |= {"BLOCK_E": 128, "BLOCK_N": chosen.columns} if out else {}
        sizes |= {"HAS_DROP": True} if out else {"BLOCK_E": chosen.columns}
        sizes |= {"HAS_RES": True} if name == "triangle_out" else {}
        found[name] = (getattr(triangle, f"{name}_kernel"), chosen, sizes)
    for name in ("columns", "columns_grad", "norm", "norm_grad"):
        chosen = tile_of(f"triangle_{name}", 256, torch.bfloat16)
        kernel = name.replace("norm", "norm_columns") if "norm" in name else f"gated_{name}"
        sizes = {"BLOCK_M": chosen.rows, "BLOCK_E": 256 if "norm" in name else chosen.columns}
        found[kernel] = (getattr(composed, f"{kernel}_kernel"), chosen, sizes)
    for name in ("average", "shares_grad"):
        chosen, sizes = averages.block_of(8, 256, name, torch.bfloat16)
        sizes = {k: v for k, v in sizes.items() if not k.startswith("num_")} | {"PRECISION": "ieee"}
        sizes |= {"BACK": True} if name == "average" else {}
        found[name] = (getattr(average, f"{name}_kernel"), chosen, sizes)
    row = {"BLOCK_M": 16, "BLOCK_N": 256, "HAS_DROP": True}
    plain = Tile(16, 256, 4, 1)
    found["gated_rows"] = (composed.gated_rows_kernel, plain, {**row, "HAS_RES": True})
    found["gated_rows_grad"] = (composed.gated_rows_grad_kernel, plain, row)
    row = {"BLOCK_M": 4, "BLOCK_C": 1024}
    for name in ("adaptive_norm", "adaptive_norm_grad"):
        more = {"HAS_RES": True, "STAGES": 3} if "grad" in name else {}
        found[name] = (getattr(adaptive, f"{name}_kernel"), plain, row | more)
    row |= {"HAS_MASK": True}
    found["gated_sum"] = conditioned.gated_sum_kernel, plain, row | {"HAS_RES": True}
    found["gated_sum_grad"] = conditioned.gated_sum_grad_kernel, plain, row
    for name, kernel in (
        ("swiglu_hidden", swiglu.swiglu_kernel), ("swiglu_grad", swiglu.swiglu_grad_kernel)
    ):  # fmt: skip
        found[name] = kernel, plain, {"BLOCK_M": 16, "BLOCK_N": 256, "THIRD": True}
    found["gated_heads"] = tokens.gated_heads_kernel, plain, {"BLOCK_M": 4, "BLOCK_K": 1024}
    row = {"H": 16, "D": 48, "BLOCK_M": 64, "BLOCK_D": 64}
    found["gated_heads_grad"] = tokens.gated_heads_grad_kernel, plain, row
    tile = DEFAULTS["gated_output"]
    found["gated_output"] = (
        gated.gated_output_kernel, tile,
        {"BLOCK_M": tile.rows, "BLOCK_K": 128, "BLOCK_N": 128, "HAS_DROP": True, "HAS_RES": True,
         "PRECISION": "ieee"},
    )  # fmt: skip
    return found


def main() -> None:
    for card in sys.argv[1:]:
        line = []
        for name, (kernel, tile, sizes) in kernels().items():
            stages = max(2, tile.stages) if name.startswith("attention") else tile.stages
            line.append(f"{name}={shared_bytes(kernel, card, tile.warps, stages, **sizes)}")
        print(card, *line, flush=True)


main()
