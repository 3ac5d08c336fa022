"""Every kernel at small odd sizes under NVIDIA's compute-sanitizer.

    PYTHONPATH=src python benchmarks/sanitize_kernels.py --out benchmarks/results/sanitize_kernels_h200.json

memcheck finds accesses outside a tensor (PyTorch's caching allocator is switched off,
so that every tensor is an allocation of its own), racecheck hazards in shared memory.
The script runs itself under both tools, one process for each group of cases, six at a time.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TOOLS = ("memcheck", "racecheck")
GROUPS = ("bfloat16 blocks", "float32 blocks", "bfloat16 ops", "float32 ops", "optimizers")
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


def work(device: str, group: str) -> None:
    """The cases of one group, in order."""
    from evofeed.kernels.choices import override

    override("small_norm", 0)
    torch.manual_seed(0)
    if group == "optimizers":
        found = optimizers(device)
    else:
        kind, blocks = group.split()
        every = cases(device, getattr(torch, kind))
        found = (case for case in every if case[0].endswith("Block") == (blocks == "blocks"))
    for case, call in found:
        call()
        print("ran", case, flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    print("all cases ran", flush=True)


def checked(tool: str, group: str, folder: Path, *options: str) -> dict[str, Any]:
    """Runs one group of cases under one tool and reads its verdict."""
    command = ["compute-sanitizer", "--tool", tool, "--kernel-name", "kns=_kernel"]
    command += ["--show-backtrace", "no", "--print-limit", "20", *options]
    command += [sys.executable, str(Path(__file__).resolve()), "--work", group]
    start = time.time()
    environment = {
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "CUDA_LAUNCH_BLOCKING": "1",  # a fault is then reported where it happened
    }
    log = folder / f"{'_'.join([tool, *group.split(), *options[1:]])}.log"
    with log.open("w") as file:
        code = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment
        ).returncode
    text = log.read_text(errors="replace")
    summary = re.findall(r"=+ (?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    row = {
        "tool": tool, "group": group, "seconds": round(time.time() - start, 1), "exit": code,
        "cases": re.findall(r"^ran (.*)", text, re.MULTILINE),
        "finished": "all cases ran" in text, "summary": summary[-1] if summary else None,
        "reports": re.findall(r"========= ((?:Invalid|Out|Error|Warning|Race)[^\n]*)", text)[:10],
    }  # fmt: skip
    if options:
        row["values"] = re.findall(r"Current Value : (\S+), Incoming Value : (\S+)", text)[:10]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("sanitize_kernels.json"))
    parser.add_argument("--work", choices=GROUPS, help="run these cases and nothing else")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.work:
        work(device, args.work)
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
    folder = args.out.parent

    def run(tool: str, group: str, *options: str) -> None:
        runs.append(checked(tool, group, folder, *options))
        args.out.write_text(json.dumps({"environment": environment, "runs": runs}, indent=1) + "\n")
        print({k: v for k, v in runs[-1].items() if k != "cases"}, flush=True)
        if tool == "racecheck" and not options and not (runs[-1]["summary"] or "0").startswith("0"):
            # Again with the values: two threads that write the same one do no harm.
            run(tool, group, "--racecheck-report", "hazard")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, TOOLS * len(GROUPS), [group for group in GROUPS for _ in TOOLS]))


if __name__ == "__main__":
    main()
