"""What the host takes for fused blocks that are called eagerly, forward and backward.

    PYTHONPATH=src python benchmarks/eager_block.py --out benchmarks/results/eager_block_h200.json

AF2's Evoformer block (bfloat16) and OpenFold3's pair block (float32 weights, bfloat16 by autocast), with
dropout as they train. Ways, in turn, some steps each: `eager`; `own_thread`, with autograd on the
caller's thread (`set_multithreading_enabled(False)`); `one_pass`, weights joined and cast once a pass; `no_grad`, forward alone; `each_anew`, where no
call is repeated without its Python, which is how all ran before, and `each_anew_own_thread`; `recorded`,
`to_fused(cuda_graphs=True)`. Milliseconds of a step by the wall clock, the GPU waited for at the end
of each turn; median, quartiles and best of the turns. `gpu_ms`: what the GPU alone takes. `calls`: of
Python and of C from Python, as cProfile counts them. `same_bits`: results and all gradients of `eager` and
`each_anew`. `first_calls_ms`: host time of each of a new shape's first calls. Proof on a laptop:
`--device cpu --sequences 4 --residues 8 --turns 2`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import contextlib
import cProfile
import datetime
import importlib.metadata
import json
import platform
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.base.files import write_atomic
from evofeed.kernels import OnePass, to_fused
from evofeed.kernels.runtime import prepared, torch_library
from evofeed.trainer.model.evoformer import EvoformerBlock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.kernels.af3 import openfold3

EVOFORMER = {
    "c_m": 256, "c_z": 128, "c_hidden_msa_att": 32, "c_hidden_opm": 32, "c_hidden_mul": 128,
    "c_hidden_pair_att": 32, "no_heads_msa": 8, "no_heads_pair": 4, "transition_n": 4,
    "msa_dropout": 0.15, "pair_dropout": 0.25,
}  # fmt: skip
STEPS = 10  # of a turn
OWN_THREAD = torch.autograd.set_multithreading_enabled


class Block:
    """A block with inputs, and a step through it."""

    def __init__(self, module: nn.Module, inputs: list[Tensor], device: str, dtype: Any) -> None:
        self.module, self.device, self.autocast = module.to(device, dtype), device, dtype is None
        self.inputs = [t.to(device, torch.bfloat16) for t in inputs]
        self.leaves = [t.requires_grad_() for t in self.inputs if t.dim() == 4]
        self.all = [*self.leaves, *self.module.parameters()]
        self.grads: list[Tensor] = []

    def forward(self) -> tuple[Tensor, ...]:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            out = self.module(*self.inputs)
        return out if isinstance(out, tuple) else (out,)

    def step(self) -> tuple[Tensor, ...]:
        out = self.forward()
        if not self.grads:
            self.grads = [torch.randn_like(t) for t in out]
        torch.autograd.backward(out, self.grads)
        return out

    def forget(self) -> None:
        for t in self.all:
            t.grad = None

    def results(self, seed: int) -> list[Tensor]:
        """Results and gradients of a step."""
        self.step()
        self.forget()
        torch.manual_seed(seed)
        out = [t.detach() for t in self.step()]
        grads = [t.grad for t in self.all]
        self.forget()  # or a later step adds to them
        return [*out, *(grad for grad in grads if grad is not None)]


def blocks(sequences: int, residues: int, device: str) -> dict[str, Callable[[], Block]]:
    S, N = sequences, residues

    def evoformer() -> Block:
        torch.manual_seed(0)
        inputs = [torch.randn(1, S, N, 256), torch.randn(1, N, N, 128)]
        masks = [torch.ones(1, S, N), torch.ones(1, N, N)]
        return Block(EvoformerBlock(**EVOFORMER), inputs + masks, device, torch.bfloat16)

    def pairs() -> Block:
        torch.manual_seed(0)
        module = openfold3.PairBlock(128, 128, 32, 4, "swiglu", 4, 0.25, False, 1e9)
        return Block(module, [torch.randn(1, N, N, 128), torch.ones(1, N, N)], device, None)

    return {f"evoformer {S}x{N}": evoformer, f"pair block {N}": pairs}


@contextlib.contextmanager
def each_anew() -> Any:
    """No call is repeated."""
    plain, torch_library.kind_of = torch_library.kind_of, lambda *call: None
    try:
        yield
    finally:
        torch_library.kind_of = plain


def ways(block: Block, recorded: Block | None) -> dict[str, Callable[[], None]]:
    def step(of: Block = block) -> None:
        of.step()
        of.forget()

    def within(*contexts: Callable[[], Any], call: Callable[[], Any] = step) -> Callable[[], None]:
        def run() -> None:
            with contextlib.ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context())
                call()

        return run

    own = lambda: OWN_THREAD(False)  # noqa: E731
    one_pass = OnePass()
    found: dict[str, Callable[[], None]] = {
        "eager": step, "each_anew": within(each_anew), "own_thread": within(own),
        "each_anew_own_thread": within(each_anew, own),
        "one_pass": within(lambda: one_pass),
        "no_grad": within(torch.no_grad, call=block.forward),
        "each_anew_no_grad": within(each_anew, torch.no_grad, call=block.forward),
    }  # fmt: skip
    if recorded is not None:
        found["recorded"] = lambda: step(recorded)
    return found


def waited(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[], None], device: str, steps: int = STEPS) -> float:
    waited(device)
    start = time.perf_counter()
    for _ in range(steps):
        call()
    waited(device)
    return (time.perf_counter() - start) / steps * 1e3


def spread(times: list[float]) -> dict[str, float]:
    q1, median, q3 = statistics.quantiles(times, n=4)
    parts = {"median": median, "q1": q1, "q3": q3, "best": min(times)}
    return {name: round(value, 3) for name, value in parts.items()}


def calls_of(call: Callable[[], None]) -> int:
    """Calls of a step, all on this thread."""
    with OWN_THREAD(False), cProfile.Profile() as profile:
        call()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def gpu_ms(call: Callable[[], None]) -> float:
    from benchmarks.gpu_times import gpu_times

    return round(gpu_times([call], 20)["us"] / 1e3, 3)


def measured(make: Callable[[], Block], turns: int, device: str) -> dict[str, Any]:
    block = make()
    to_fused(block.module)
    with each_anew():  # compiles
        plain = block.results(1)
        timed(ways(block, None)["eager"], device)
    first = [
        round(timed(ways(block, None)["eager"], device, 1), 2) for _ in range(prepared.OFTEN + 3)
    ]
    ours = block.results(1)
    same = len(ours) == len(plain) and all(
        torch.equal(a, b) for a, b in zip(ours, plain, strict=True)
    )
    recorded = None
    if device == "cuda":
        recorded = make()
        to_fused(recorded.module, cuda_graphs=True)
    found = ways(block, recorded)
    times: dict[str, list[float]] = {name: [] for name in found}
    for call in found.values():
        timed(call, device)
    for _ in range(turns):
        for name, call in found.items():
            times[name].append(timed(call, device))
    return {
        "ms": {name: spread(of) for name, of in times.items()},
        "calls": {name: calls_of(found[name]) for name in ("eager", "each_anew")},
        "gpu_ms": gpu_ms(found["eager"]) if device == "cuda" else None,
        "same_bits": same, "first_calls_ms": first,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--residues", type=int, default=256)
    parser.add_argument("--turns", type=int, default=12)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "what": "host time of eager fused blocks, forward and backward",
        "command": "python benchmarks/eager_block.py " + " ".join(
            f"--{name} {value}" for name, value in vars(options).items() if name != "out"
        ),
        "date": datetime.date.today().isoformat(),
        "card": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "host": f"{platform.machine()}, {torch.get_num_threads()} threads of PyTorch",
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "triton")},
        "python": platform.python_version(), "turns": options.turns, "steps_of_a_turn": STEPS,
        "blocks": {},
    }  # fmt: skip
    for name, make in blocks(options.sequences, options.residues, options.device).items():
        found["blocks"][name] = measured(make, options.turns, options.device)
        print(name, json.dumps(found["blocks"][name]), flush=True)
        if options.out:
            write_atomic(options.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
