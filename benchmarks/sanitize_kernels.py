"""Every kernel at small odd sizes under NVIDIA's compute-sanitizer.

    PYTHONPATH=src python benchmarks/sanitize_kernels.py --out benchmarks/results/sanitize_kernels_h200.json

memcheck finds accesses outside a tensor (PyTorch's caching allocator is switched off,
so that every tensor is an allocation of its own), racecheck hazards in shared memory.
Without options the script compiles the kernels once and then runs itself under both tools.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TOOLS = ("memcheck", "racecheck")
S, R = 5, 37  # odd, and more than one tile of 32


def cases(device: str, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Any]]]:
    from evofeed.kernels import layer_norm, masked_softmax, to_fused
    from evofeed.kernels.attention import biased_attention
    from evofeed.trainer.model.evoformer import EvoformerBlock
    from evofeed.trainer.model.extra_msa import ExtraMSABlock

    def rand(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(dtype).requires_grad_()

    def mask(*shape: int) -> Tensor:
        return (torch.rand(shape, device=device) > 0.2).to(dtype)

    def both(*outs: Tensor) -> None:
        torch.autograd.backward(outs, [torch.randn_like(o) for o in outs])

    for C in (20, 128, 1000):
        yield f"layer norm C={C}", lambda C=C: both(layer_norm(rand(S, R, C), rand(C), rand(C)))
    x = rand(1, S, 2, R, R)
    yield "softmax", lambda: both(masked_softmax(x, mask(1, S, R), rand(1, 2, R, R)))
    for D in (8, 32, 64):
        for biased in (True, False) if D == 32 else (True,):
            yield (
                f"attention D={D} bias={biased}",
                lambda D=D, biased=biased: both(
                    biased_attention(
                        *(rand(1, S, R, 2, D) for _ in "qkv"),
                        rand(1, 2, R, R) if biased else None,
                        mask(1, S, R),
                    )
                ),
            )
    sizes = {
        "c_m": 32, "c_z": 64, "c_hidden_msa_att": 8, "c_hidden_opm": 16, "c_hidden_mul": 32,
        "c_hidden_pair_att": 16, "no_heads_msa": 4, "no_heads_pair": 4, "transition_n": 2,
        "msa_dropout": 0.15, "pair_dropout": 0.25,
    }  # fmt: skip
    for block in (EvoformerBlock, ExtraMSABlock):
        module: nn.Module = to_fused(block(**sizes)).to(device, dtype)
        yield (
            block.__name__,
            lambda module=module: both(
                *module(rand(1, S, R, 32), rand(1, R, R, 64), mask(1, S, R), mask(1, R, R))
            ),
        )


def optimizers(device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    from evofeed.kernels import FusedAdamEMA, FusedLAMB, FusedLARS
    from evofeed.kernels.layerwise import Span

    for size in (5, 16, 5000):
        a, b, c, d, e = (torch.rand(size, device=device) for _ in range(5))
        low = torch.zeros(size, device=device, dtype=torch.bfloat16)
        yield f"Adam {size}", FusedAdamEMA(a, b, c, d, e, low, max_norm=0.1).step
        spans = [Span(0, 3, False), Span(3, size - 3, True)]
        yield f"LAMB {size}", FusedLAMB(a, b, c, d, e, low, spans=spans).step
        yield f"LARS {size}", FusedLARS(a, b, c, d, low, spans=spans).step


def work(device: str) -> None:
    """All cases, in order; every kernel of the package is launched."""
    from evofeed.kernels.choices import override

    override("small_norm", 0)
    torch.manual_seed(0)
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if device == "cpu":
        kinds = {"float32": torch.float32}
    for name, dtype in kinds.items():
        for case, call in cases(device, dtype):
            call()
            print("ran", name, case, flush=True)
    for case, call in optimizers(device):
        call()
        print("ran", case, flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    print("all cases ran", flush=True)


def checked(tool: str, script: list[str], log: Path, *options: str) -> dict[str, Any]:
    """Runs the cases under one tool and reads its verdict."""
    command = ["compute-sanitizer", "--tool", tool, "--kernel-name", "kns=_kernel"]
    command += ["--show-backtrace", "no", "--print-limit", "20", *options, *script]
    start = time.time()
    environment = {
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "CUDA_LAUNCH_BLOCKING": "1",  # a fault is then reported where it happened
    }
    with log.open("w") as file:
        code = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment
        ).returncode
    text = log.read_text(errors="replace")
    summary = re.findall(r"=+ (?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    values = re.findall(r"Current Value : (\S+), Incoming Value : (\S+)", text)
    return {
        "tool": tool, "seconds": round(time.time() - start, 1), "exit": code,
        "cases": text.count("\nran ") + text.startswith("ran "),
        "finished": "all cases ran" in text, "summary": summary[-1] if summary else None,
        "reports": re.findall(r"========= ((?:Invalid|Out|Error|Warning|Race)[^\n]*)", text)[:10],
        "values_that_raced": values[:10],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("sanitize_kernels.json"))
    parser.add_argument("--work", action="store_true", help="run the cases and nothing else")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.work:
        work(device)
        return
    script = [sys.executable, str(Path(__file__).resolve()), "--work"]
    subprocess.run(script, check=True)  # compiles; the tools find the kernels in Triton's cache
    import triton

    version = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True)
    environment = {
        "command": "python benchmarks/sanitize_kernels.py",
        "card": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(),
        "tool": version.stdout.strip().splitlines()[-1],
    }  # fmt: skip
    runs: list[dict[str, Any]] = []
    for tool in TOOLS:
        runs.append(checked(tool, script, args.out.with_suffix(f".{tool}.log")))
        if tool == "racecheck" and not (runs[-1]["summary"] or "0").startswith("0"):
            # Again with the values: two threads that write the same one do no harm.
            log = args.out.with_suffix(".hazards.log")
            runs.append(checked(tool, script, log, "--racecheck-report", "hazard"))
        args.out.write_text(json.dumps({"environment": environment, "runs": runs}, indent=1) + "\n")
        print(runs[-1], flush=True)


if __name__ == "__main__":
    main()
