"""Every algorithm that cuBLASLt proposes for the plain products of a training step, on this GPU.

    PYTHONPATH=src python benchmarks/tune_products.py --choices choices.json --out products.json

Those that are faster than the one PyTorch gets, beyond the spread of both, go into a copy of
`kernels/runtime/choices.json` for this card and this version of the library. Each must be as near
to float64 as PyTorch's result and give the same bits every time. A product is timed in a CUDA graph
over inputs of 250 MB or more, algorithms in turn.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from benchmarks.gpu_times import graphed  # noqa: E402

from evofeed.kernels.runtime import products  # noqa: E402
from evofeed.kernels.runtime.cublaslt import Failed, Plan, version  # noqa: E402

CHOICES = HERE.parent / "kernels" / "runtime" / "choices.json"
WORKSPACE = 32 << 20  # bytes, as PyTorch's
PROPOSALS = 64
ROTATING = 250e6  # bytes
BF16, FLOAT32 = torch.bfloat16, torch.float32


class Inputs(NamedTuple):
    """Of one product; as `products.product` takes them."""

    a: Tensor
    b: Tensor
    dtype: torch.dtype = BF16


class Case(NamedTuple):
    """A product of a step.

    Attributes:
        name: what it is for.
        launches: in a step of that preset.
        make: new random inputs.
    """

    name: str
    launches: int
    make: Callable[[], Inputs]


def rand(*shape: int) -> Tensor:
    """bfloat16 on the GPU."""
    return torch.randn(shape, device="cuda", dtype=BF16)


def forward(M: int, C: int, N: int) -> Callable[[], Inputs]:
    """Rows `[M, C]` by a weight `[N, C]`."""
    return lambda: Inputs(rand(M, C), rand(N, C).t())


def of_input(M: int, N: int, C: int) -> Callable[[], Inputs]:
    """Gradient `[M, N]` by a weight `[N, C]`."""
    return lambda: Inputs(rand(M, N), rand(N, C))


def of_weight(M: int, N: int, C: int) -> Callable[[], Inputs]:
    """Gradient `[M, N]` by rows `[M, C]`, over M."""
    return lambda: Inputs(rand(M, N).t(), rand(M, C), FLOAT32)


def cases(sequences: int, residues: int) -> list[Case]:
    """The products of 48 blocks and what is like them."""
    msa, pairs, outer = sequences * residues, residues * residues, 32 * residues
    return [
        Case("projections, MSA", 96, forward(msa, 256, 1024)),
        Case("projections, pairs", 104, forward(pairs, 128, 512)),
        Case("input's gradient, MSA", 144, of_input(msa, 1024, 256)),
        Case("input's gradient, attention of pairs", 104, of_input(pairs, 528, 128)),
        Case("input's gradient, triangles", 104, of_input(pairs, 640, 128)),
        Case("input's gradient, transition of pairs", 52, of_input(pairs, 512, 128)),
        Case("weights' gradient, MSA", 96, of_weight(msa, 1024, 256)),
        Case("weights' gradient, attention of pairs", 104, of_weight(pairs, 528, 128)),
        Case("weights' gradient, triangles", 104, of_weight(pairs, 640, 128)),
        Case("outer product", 48,
             lambda: Inputs(rand(1, sequences, outer).mT, rand(1, sequences, outer))),
        Case("outer product, gradient of a", 48,
             lambda: Inputs(rand(1, sequences, outer), rand(1, outer, outer).mT)),
        Case("outer product, gradient of b", 48,
             lambda: Inputs(rand(1, sequences, outer), rand(1, outer, outer))),
    ]  # fmt: skip


PRESETS = {"initial_training": (132, 256), "finetuning": (516, 384)}


def empty(x: Inputs) -> Tensor:
    """The result's place."""
    shape = (*x.a.shape[:-1], x.b.shape[-1])
    return torch.empty(shape, dtype=x.dtype, device=x.a.device)


def error_of(exact: Tensor, out: Tensor) -> float:
    """Relative, of the whole."""
    return float((out.double() - exact).norm() / exact.norm())


def race(case: Case, rounds: int) -> dict[str, Any]:
    """Times of PyTorch's call and of each proposal that is right."""
    sets = [case.make()]
    size = sum(t.numel() * t.element_size() for t in (sets[0].a, sets[0].b, empty(sets[0])))
    sets += [case.make() for _ in range(min(5, int(ROTATING // size)))]
    first = sets[0]
    exact = first.a.double() @ first.b.double()
    most = 1.05 * error_of(exact, products.plain(first.a, first.b, None, first.dtype))

    def of_pytorch() -> None:
        for x in sets:
            products.plain(x.a, x.b, None, x.dtype)

    calls, algorithms = {"pytorch": graphed(of_pytorch)}, dict[str, bytes]()
    finder = Plan(first.a, first.b, empty(first))
    for algorithm, _ in finder.proposals(PROPOSALS, WORKSPACE):
        plan = Plan(first.a, first.b, empty(first))
        try:
            plan.take(algorithm)
        except Failed:
            continue
        made = [torch.full_like(empty(first), torch.nan) for _ in range(3)]
        if not all(plan(first.a, first.b, out) for out in made):
            continue
        same = all(torch.equal(made[0], out) for out in made)
        if not same or error_of(exact, made[0]) > most:
            continue

        def by_plan(plan: Plan = plan) -> None:
            for x in sets:
                plan(x.a, x.b, empty(x))

        name = str(len(algorithms))
        calls[name], algorithms[name] = graphed(by_plan), algorithm
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times[name].append(1e3 * begin.elapsed_time(end) / len(sets))
    quartiles = {name: statistics.quantiles(t, n=4) for name, t in times.items()}
    best = min(algorithms, key=lambda name: quartiles[name][1], default="pytorch")
    row = {"kind": products.kind(first.a, first.b, first.dtype)}
    row |= {"name": case.name, "launches": case.launches, "proposals": len(algorithms)}
    for who, name in (("pytorch", "pytorch"), ("best", best)):
        row[who] = dict(
            zip(("q1", "us", "q3"), (round(t, 2) for t in quartiles[name]), strict=True)
        )
    wins = best != "pytorch" and quartiles[best][2] < quartiles["pytorch"][0]
    row["algorithm"] = algorithms[best].hex() if wins else None
    return row


def merged(choices: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """`choices` with the winners of this card and library in place of its own of them."""
    here = {"card": torch.cuda.get_device_name(), "cublaslt": version()}
    others = [
        e for e in choices.get("products", []) if {n: e[n] for n in here} != here
    ]  # of another card or version
    raced = {row["kind"] for row in rows}
    same = [e for e in choices.get("products", []) if e not in others and e["kind"] not in raced]
    new = [
        {**here, "kind": row["kind"], "algorithm": row["algorithm"], "us": row["best"]["us"],
         "pytorch_us": row["pytorch"]["us"]}
        for row in rows if row["algorithm"]
    ]  # fmt: skip
    return {**choices, "products": others + same + new}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", choices=list(PRESETS), default=list(PRESETS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--choices", type=Path, default=Path("choices.json"), help="written")
    parser.add_argument("--out", type=Path, help="all times")
    options = parser.parse_args()
    saved = json.loads(CHOICES.read_text())
    result: dict[str, Any] = {
        "benchmark": "tune_products", "command": "python benchmarks/tune_products.py",
        "machine": {
            "device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "cuda": torch.version.cuda, "cublaslt": version(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        },
        "rounds": options.rounds, "presets": {},
    }  # fmt: skip
    for preset in options.presets:
        rows = result["presets"][preset] = []
        for case in cases(*PRESETS[preset]):
            rows.append(row := race(case, options.rounds))
            gain = (row["pytorch"]["us"] - row["best"]["us"]) * case.launches / 1e3
            print(f"{preset} {case.name}: {row['pytorch']} -> {row['best']}, {gain:.2f} ms a step"
                  f"{'' if row['algorithm'] else ' (not taken)'}", flush=True)  # fmt: skip
        saved = merged(saved, rows)
        options.choices.write_text(json.dumps(saved, indent=1) + "\n")
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
