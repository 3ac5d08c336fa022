"""Every kernel at small odd sizes under NVIDIA's compute-sanitizer.

    PYTHONPATH=src python benchmarks/sanitize_kernels.py --out benchmarks/results/sanitize_kernels_h200.json

memcheck finds accesses outside a tensor (PyTorch's caching allocator is switched off,
so that every tensor is an allocation of its own), racecheck hazards in shared memory
(plain products run in float32 there: it does not survive cuBLAS's kernels for bfloat16).
The script runs itself under both tools, one process for each group of cases, several at a
time. A case that a tool does not survive is noted, and the group continues after it. The result
names the kernels that no case launched. Without a GPU:

    TRITON_INTERPRET=1 PYTHONPATH=src python benchmarks/sanitize_kernels.py --work "float32 ops"
"""  # noqa: E501

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from sanitize_cases import GROUPS, MULTIPROCESSORS, cases_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).resolve().parent
TOOLS = ("memcheck", "racecheck")
OURS = ("--kernel-name", "kns=_kernel", "--kernel-name-exclude", "kns=gemm")
PRODUCTS = {f"aten::{name}" for name in ("mm", "addmm", "_addmm_activation", "bmm", "baddbmm")}
REPORT = r"========= ((?:Invalid|Out|Error|Warning|Race)[^\n]*)"
VALUES = r"Current Value : (\S+, Incoming Value : \S+)"
FAILED = r"(?:Internal Sanitizer Error|CUDA error): [^\n]*"


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


def entries() -> set[str]:
    """Every kernel of the tree, `module.function`: what is launched, not what it calls."""
    found = set()
    for path in (HERE.parent / "kernels").rglob("*.py"):
        module = ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if (
                isinstance(node, ast.FunctionDef)
                and node.name.endswith("_kernel")
                and any(ast.unparse(d) in ("triton.jit", "gluon.jit") for d in node.decorator_list)
            ):
                found.add(f"{module}.{node.name}")
    for node in ast.walk(ast.parse((HERE.parent / "loader/fused/sample_kernels.py").read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "launch":
            found.add(f"loader.fused.{ast.unparse(node.args[0])}")
    return found


def tell_launches() -> None:
    """Prints a line at the first launch of every kernel."""
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    reported = set()
    for kind in (triton.runtime.JITFunction, InterpretedFunction):

        def run(self: Any, *arguments: Any, before: Any = kind.run, **options: Any) -> Any:
            name = f"{self.fn.__module__.removeprefix('evofeed.')}.{self.fn.__name__}"
            if name not in reported:
                reported.add(name)
                print("launch", name, flush=True)
            return before(self, *arguments, **options)

        kind.run = run


def work(device: str, group: str, first: int, float_products: bool) -> None:
    """The cases of one group, in order, from the `first` on."""
    from evofeed.kernels.runtime import backend
    from evofeed.kernels.runtime.tiles import override

    tell_launches()
    override("small_norm", 0)
    backend._sm_counts[0] = MULTIPROCESSORS
    torch.manual_seed(0)
    with backend.interpreted() if device == "cpu" else nullcontext():
        for number, (case, call) in enumerate(cases_of(group, device)):
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
    of_ours = OURS if group != "loader" else OURS[2:]  # its kernels have names of all kinds
    command = ["compute-sanitizer", "--tool", tool, *of_ours, "--show-backtrace", "no"]
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
    launched: set[str] = set()
    while True:
        log = folder / f"{'_'.join([tool, *group.split(), str(first), *options[1:]])}.log"
        code, text = once(tool, group, first, deadline, log, options)
        launched |= set(re.findall(r"^launch (.*)$", text, flags=re.MULTILINE))
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
        "finished": "all cases ran" in text, "cases": cases, "launched": sorted(launched),
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
    parser.add_argument("--resume", action="store_true", help="keep groups that --out finished")
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
    if args.resume and args.out.exists():
        runs = [run for run in json.loads(args.out.read_text())["runs"] if run["finished"]]
    done = {(run["group"], run["tool"]) for run in runs}
    folder, deadline = args.out.parent, time.time() + args.seconds

    def missed() -> dict[str, list[str]]:
        seen = {tool: {name for r in runs if r["tool"] == tool for name in r["launched"]}
                for tool in args.tools}  # fmt: skip
        return {tool: sorted(entries() - names) for tool, names in seen.items()}

    def run(tool: str, group: str, *options: str) -> None:
        row = checked(tool, group, deadline, folder, *options)
        runs.append(row)
        result = {"environment": environment, "never_launched": missed(), "runs": runs}
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        wrong = {name: found for name, found in row["cases"].items() if found != "clean"}
        end = "" if row["finished"] else ", not finished"
        print(tool, group, *options, f"{len(row['cases'])} cases, {row['seconds']} s{end}", end=" ")
        print(wrong or "clean")
        sys.stdout.flush()
        if tool == "racecheck" and not options and any("Race" in str(w) for w in wrong.values()):
            # Again with the values: two threads that write the same one do no harm.
            run(tool, group, "--racecheck-report", "hazard")

    with ThreadPoolExecutor(args.workers) as pool:
        pairs = [pair for pair in itertools.product(GROUPS, args.tools) if pair not in done]
        list(pool.map(lambda pair: run(pair[1], pair[0]), pairs))
    for tool, names in missed().items():
        print(f"{tool} never launched:", ", ".join(names) or "none")


if __name__ == "__main__":
    main()
