"""Parts of an Evoformer block in float32: what each way takes and how exact it is, on one GPU.

    PYTHONPATH=src python benchmarks/float32_block.py --out benchmarks/results/float32_block_h200.json

Initial training's shapes (256 residues, 128 sequences; of an extra-MSA block 1,024), forward and
backward. Ways: `plain` PyTorch; `recomputed`, the same that keeps its inputs alone; `plain_tf32`
with TF32, for scale; `fused` as `to_fused` runs it; `fused_ieee` with products on the plain
units. `ms`: median and quartiles of
calls queued ahead; `first_s`: the first call, compiling included; `error`: of the output and the
inputs' gradients from float64, norm of the difference over the norm, worst of them; `kernels`:
those with most time in a call. Proof on a laptop: `--device cpu --size 8 --ways plain`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.gpu_times import environment, gpu_times

from evofeed.files import write_atomic
from evofeed.kernels import to_fused
from evofeed.kernels.runtime import projection
from evofeed.trainer import AlphaFold, initial_training

WAYS = ("plain", "recomputed", "fused", "plain_tf32", "fused_ieee")
Call = Callable[[nn.Module, Tensor, Tensor], Tensor]
PARTS: dict[str, tuple[str, str, Call]] = {  # block, module, call of m and z
    "triangle multiplication": ("evoformer", "pair_stack.tri_mul_out", lambda f, m, z: f(z)),
    "triangle attention": ("evoformer", "pair_stack.tri_att_start", lambda f, m, z: f(z)),
    "pair transition": ("evoformer", "pair_stack.pair_transition", lambda f, m, z: f(z)),
    "row attention": ("evoformer", "msa_att_row", lambda f, m, z: f(m, z)),
    "column attention": ("evoformer", "msa_att_col", lambda f, m, z: f(m)),
    "MSA transition": ("evoformer", "msa_transition", lambda f, m, z: f(m)),
    "outer product mean": ("evoformer", "outer_product_mean", lambda f, m, z: f(m)),
    "extra row attention": ("extra", "msa_att_row", lambda f, m, z: f(m, z)),
    "extra column attention": ("extra", "msa_att_col", lambda f, m, z: f(m)),
}


def blocks(size: int, device: str) -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """One block of each stack with inputs of its shapes; no weight is zero."""
    torch.manual_seed(0)
    config = initial_training().model
    for stack in ("evoformer", "extra_msa"):
        one = dataclasses.replace(getattr(config, stack), no_blocks=1)
        config = dataclasses.replace(config, **{stack: one})
    model = AlphaFold(config).to(device)
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    found = {}
    for name, stack, rows in (
        ("evoformer", model.evoformer, size // 2), ("extra", model.extra_msa_stack, 4 * size),
    ):  # fmt: skip
        block: Any = stack.blocks[0]
        c_m = block.msa_att_row.layer_norm_m.weight.shape[0]
        c_z = block.msa_att_row.layer_norm_z.weight.shape[0]
        m = torch.randn(1, rows, size, c_m, device=device)
        found[name] = (block, m, torch.randn(1, size, size, c_z, device=device))
    return found


def forward_backward(part: nn.Module, call: Call, m: Tensor, z: Tensor) -> Callable[[], Any]:
    """A function that gives the output and the gradients of m and z."""
    m, z = m.detach().requires_grad_(), z.detach().requires_grad_()
    grad = None

    def run() -> list[Tensor]:
        nonlocal grad
        out = call(part, m, z)
        if grad is None:
            grad = torch.randn(out.shape, generator=torch.manual_seed(1)).to(out)
        inputs = [m, z, *part.parameters()]
        found = torch.autograd.grad(out, inputs, grad, allow_unused=True)
        return [out.detach(), *(g for g in found[:2] if g is not None)]

    return run


def way_of(way: str, call: Call) -> Call:
    """The call, or one that recomputes."""
    if way != "recomputed":
        return call
    return lambda f, m, z: checkpoint(call, f, m, z, use_reentrant=False)


def prepared(way: str, part: nn.Module) -> nn.Module:
    """A copy of the part, and the process set for this way."""
    torch.backends.cuda.matmul.allow_tf32 = way == "plain_tf32"
    projection.EXACT = "ieee" if way == "fused_ieee" else EXACT
    part = copy.deepcopy(part)
    return to_fused(part) if way.startswith("fused") else part


EXACT = projection.EXACT


def top_kernels(run: Callable[[], Any], count: int = 5) -> list[list[Any]]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    return [[e.key[:60], round(e.self_device_time_total / 1e3, 3), e.count] for e in events[:count]]


def measured(name: str, ways: list[str], size: int, device: str) -> dict[str, Any]:
    block, path, call = PARTS[name]
    whole, m, z = blocks(size, device)[block]
    part = whole.get_submodule(path)
    exact = forward_backward(copy.deepcopy(part).double(), call, m.double(), z.double())()
    row: dict[str, Any] = {"part": name}
    for way in ways:
        try:
            run = forward_backward(prepared(way, part), way_of(way, call), m, z)
            began = time.perf_counter()
            found = run()
            errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
            row[way] = {"first_s": round(time.perf_counter() - began, 2), "error": max(errors)}
            if device == "cuda":
                row[way] |= {"ms": gpu_times([run], 10), "kernels": top_kernels(run)}
        except Exception as error:
            row[way] = {"failed": repr(error)[:300]}
        print(name, way, json.dumps(row[way]), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", type=int, default=256, help="residues")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    result: dict[str, Any] = environment("float32_block.py", "10 calls") if gpu else {}
    result |= {"size": options.size, "rows": []}
    for name in PARTS:
        result["rows"].append(measured(name, options.ways, options.size, options.device))
        if options.out:
            write_atomic(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
