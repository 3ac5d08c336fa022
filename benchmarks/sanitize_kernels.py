"""Every kernel at small odd sizes under NVIDIA's compute-sanitizer.

    PYTHONPATH=src python benchmarks/sanitize_kernels.py --out benchmarks/results/sanitize_kernels_h200.json

memcheck finds accesses outside a tensor (PyTorch's caching allocator is switched off,
so that every tensor is an allocation of its own), racecheck hazards in shared memory
(plain products run in float32 there: it does not survive cuBLAS's kernels for bfloat16).
The script runs itself under both tools, one process for each group of cases, several at a
time. A case that a tool does not survive is noted, and the group goes on after it.
"""  # noqa: E501

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

TOOLS = ("memcheck", "racecheck")
KINDS = ("bfloat16", "float32")
GROUPS = (
    *(f"{kind} {part}" for part in ("blocks", "modules", "ops") for kind in KINDS),
    "optimizers",
)
OURS = ("--kernel-name", "kns=_kernel", "--kernel-name-exclude", "kns=gemm")
PRODUCTS = {f"aten::{name}" for name in ("mm", "addmm", "_addmm_activation", "bmm", "baddbmm")}
REPORT = r"========= ((?:Invalid|Out|Error|Warning|Race)[^\n]*)"
VALUES = r"Current Value : (\S+, Incoming Value : \S+)"
FAILED = r"(?:Internal Sanitizer Error|CUDA error): [^\n]*"
S, R = 5, 37  # odd, and more than one tile of 32
C_M, C_Z = 32, 64


class FloatProducts(TorchDispatchMode):
    """Plain products in float32: racecheck ends with cuBLAS's kernels for bfloat16, unasked."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if func._schema.name not in PRODUCTS:
            return func(*args, **given)
        out = given.pop("out", None)
        wide = [t.float() if isinstance(t, Tensor) else t for t in args]
        result = func.overloadpacket.default(*wide, **given)
        return result.to(args[0].dtype) if out is None else out.copy_(result)


Case = tuple[str, Callable[[], Any]]


def both(*outs: Tensor) -> None:
    """Forward has run; this is the backward pass."""
    torch.autograd.backward(outs, [torch.randn_like(o) for o in outs])


class Inputs:
    """Random tensors of one type on one device."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def rand(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype).requires_grad_()

    def mask(self, *shape: int) -> Tensor:
        return (torch.rand(shape, device=self.device) > 0.2).to(self.dtype)


def ops(given: Inputs) -> Iterator[Case]:
    """Ops that stand for themselves."""
    from evofeed.kernels import layer_norm, masked_softmax
    from evofeed.kernels.attention import biased_attention

    rand, mask = given.rand, given.mask
    for C in (20, 128, 1000):
        yield f"layer norm C={C}", lambda C=C: both(layer_norm(rand(S, R, C), rand(C), rand(C)))
    for K in (R, 50):  # three tiles, one tile
        yield (
            f"softmax K={K}",
            lambda K=K: both(masked_softmax(rand(1, S, 2, R, K), mask(1, S, K), rand(1, 2, R, K))),
        )
    for D, biased in ((8, True), (32, True), (32, False), (64, True)):

        def attention(D: int = D, biased: bool = biased) -> None:
            bias = rand(1, 2, R, R) if biased else None
            both(biased_attention(*(rand(1, S, R, 2, D) for _ in "qkv"), bias, mask(1, S, R)))

        yield f"attention D={D} bias={biased}", attention


def modules(given: Inputs) -> Iterator[Case]:
    """What a block is made of, each module alone."""
    from evofeed.kernels import to_fused
    from evofeed.trainer.model import msa_attention, triangle
    from evofeed.trainer.model.outer_product_mean import OuterProductMean
    from evofeed.trainer.model.transition import MSATransition, PairTransition

    def m() -> Tensor:
        return given.rand(1, S, R, C_M)

    def z() -> Tensor:
        return given.rand(1, R, R, C_Z)

    def of_msa() -> Tensor:
        return given.mask(1, S, R)

    def of_pairs() -> Tensor:
        return given.mask(1, R, R)

    found: list[tuple[nn.Module, list[Callable[[], Tensor]]]] = [
        (triangle.TriangleMultiplicationOutgoing(C_Z, 32), [z, of_pairs]),
        (triangle.TriangleMultiplicationIncoming(C_Z, 32), [z, of_pairs]),
        (triangle.TriangleAttentionStartingNode(C_Z, 16, 4), [z, of_pairs]),
        (triangle.TriangleAttentionEndingNode(C_Z, 16, 4), [z, of_pairs]),
        (msa_attention.MSARowAttentionWithPairBias(C_M, C_Z, 8, 4), [m, z, of_msa]),
        (msa_attention.MSAColumnAttention(C_M, 8, 4), [m, of_msa]),
        (msa_attention.MSAColumnGlobalAttention(C_M, 8, 4), [m, of_msa]),
        (MSATransition(C_M, 2), [m, of_msa]),
        (PairTransition(C_Z, 2), [z, of_pairs]),
        (OuterProductMean(C_M, C_Z, 16), [m, of_msa]),
    ]
    for plain, makers in found:
        name = type(plain).__name__
        module = to_fused(plain.to(given.device, given.dtype))
        yield (
            name,
            lambda module=module, makers=makers: both(module(*(make() for make in makers))),
        )


def blocks(given: Inputs) -> Iterator[Case]:
    """Whole blocks, with what their ops hand through to each other."""
    from evofeed.kernels import to_fused
    from evofeed.trainer.model.evoformer import EvoformerBlock
    from evofeed.trainer.model.extra_msa import ExtraMSABlock

    sizes = {
        "c_m": C_M, "c_z": C_Z, "c_hidden_msa_att": 8, "c_hidden_opm": 16, "c_hidden_mul": 32,
        "c_hidden_pair_att": 16, "no_heads_msa": 4, "no_heads_pair": 4, "transition_n": 2,
        "msa_dropout": 0.15, "pair_dropout": 0.25,
    }  # fmt: skip
    rand, mask = given.rand, given.mask
    for block in (EvoformerBlock, ExtraMSABlock):
        module: nn.Module = to_fused(block(**sizes)).to(given.device, given.dtype)
        yield (
            block.__name__,
            lambda module=module: both(
                *module(rand(1, S, R, C_M), rand(1, R, R, C_Z), mask(1, S, R), mask(1, R, R))
            ),
        )


def optimizers(device: str) -> Iterator[Case]:
    from evofeed.kernels import FusedAdamEMA, FusedLAMB, FusedLARS
    from evofeed.kernels.layerwise import Span

    for size in (5, 16, 5000):
        a, b, c, d, e = (torch.rand(size, device=device) for _ in range(5))
        low = torch.zeros(size, device=device, dtype=torch.bfloat16)
        yield f"Adam {size}", FusedAdamEMA(a, b, c, d, e, low, max_norm=0.1).step
        spans = [Span(0, 3, False), Span(3, size - 3, True)]
        yield f"LAMB {size}", FusedLAMB(a, b, c, d, e, low, spans=spans).step
        yield f"LARS {size}", FusedLARS(a, b, c, d, low, spans=spans).step


def work(device: str, group: str, first: int, float_products: bool) -> None:
    """The cases of one group, in order, from the `first` on."""
    from evofeed.kernels.choices import override

    override("small_norm", 0)
    torch.manual_seed(0)
    kind, _, part = group.partition(" ")
    if part:
        found = {"ops": ops, "modules": modules, "blocks": blocks}[part](
            Inputs(device, getattr(torch, kind))
        )
    else:
        found = optimizers(device)
    for number, (case, call) in enumerate(found):
        if number < first:
            continue
        print("begin", case, flush=True)
        with FloatProducts() if float_products else nullcontext():
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        print("ran", case, flush=True)
    print("all cases ran", flush=True)


def once(
    tool: str, group: str, first: int, deadline: float, log: Path, options: tuple[str, ...]
) -> tuple[int | None, str]:
    """Runs a group from one case on under one tool; exit code (None: cut off) and its output."""
    command = ["compute-sanitizer", "--tool", tool, *OURS, "--show-backtrace", "no"]
    command += ["--print-limit", "20", *options]
    command += [sys.executable, str(Path(__file__).resolve())]
    command += ["--work", group, "--first", str(first)]
    command += ["--float-products"] if tool == "racecheck" else []
    environment = {
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "CUDA_LAUNCH_BLOCKING": "1",  # a fault is then reported where it happened
    }
    with log.open("w") as file:
        job = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code: int | None = job.wait(max(1.0, deadline - time.time()))
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)  # the tool, and what it runs
            job.wait()
            code = None
    return code, log.read_text(errors="replace")


def checked(tool: str, group: str, deadline: float, folder: Path, *options: str) -> dict[str, Any]:
    """Runs one group of cases under one tool and reads its verdict, case by case."""
    start, cases, first = time.time(), {}, 0
    while True:
        log = folder / f"{'_'.join([tool, *group.split(), str(first), *options[1:]])}.log"
        code, text = once(tool, group, first, deadline, log, options)
        parts = re.split(r"^begin (.*)\n", text, flags=re.MULTILINE)[1:]
        for name, part in zip(parts[::2], parts[1::2], strict=True):
            reports = re.findall(REPORT, part)
            ended = f"ran {name}" in part
            if not ended and code is None:
                continue
            cases[name] = "clean" if ended and not reports else reports[:10]
            if not ended:
                cases[name] = ["the tool did not survive it", *re.findall(FAILED, part)[:3]]
            elif tool == "racecheck" and options:
                cases[name] = [*reports[:10], *re.findall(VALUES, part)[:10]] or "clean"
        first += len(parts) // 2
        if "all cases ran" in text or not parts or code is None:
            break
    return {
        "tool": tool, "group": group, "seconds": round(time.time() - start, 1), "exit": code,
        "finished": "all cases ran" in text, "cases": cases,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("sanitize_kernels.json"))
    parser.add_argument("--work", choices=GROUPS, help="run these cases and nothing else")
    parser.add_argument("--first", type=int, default=0, help="--work starts at this case")
    parser.add_argument("--float-products", action="store_true", help="--work without bf16 cuBLAS")
    parser.add_argument("--seconds", type=float, default=3600, help="cut off after so many")
    parser.add_argument("--workers", type=int, default=7)
    parser.add_argument("--tools", nargs="*", choices=TOOLS, default=TOOLS)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.work:
        work(device, args.work, args.first, args.float_products)
        return
    import triton

    version = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True)
    environment = {
        "command": "python benchmarks/sanitize_kernels.py",
        "card": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(),
        "tool": version.stdout.strip().splitlines()[-1],
    }  # fmt: skip
    runs: list[dict[str, Any]] = []
    folder, deadline = args.out.parent, time.time() + args.seconds

    def run(tool: str, group: str, *options: str) -> None:
        row = checked(tool, group, deadline, folder, *options)
        runs.append(row)
        args.out.write_text(json.dumps({"environment": environment, "runs": runs}, indent=1) + "\n")
        wrong = {name: found for name, found in row["cases"].items() if found != "clean"}
        end = "" if row["finished"] else ", not finished"
        print(tool, group, *options, f"{len(row['cases'])} cases, {row['seconds']} s{end}", end=" ")
        print(wrong or "clean")
        sys.stdout.flush()
        if tool == "racecheck" and not options and any("Race" in str(w) for w in wrong.values()):
            # Again with the values: two threads that write the same one do no harm.
            run(tool, group, "--racecheck-report", "hazard")

    with ThreadPoolExecutor(args.workers) as pool:
        pairs = itertools.product(GROUPS, args.tools)
        list(pool.map(lambda pair: run(pair[1], pair[0]), pairs))


if __name__ == "__main__":
    main()
