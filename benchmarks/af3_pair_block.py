"""Parts of a Pairformer's pair block, and the whole, beside PyTorch and cuEquivariance on one GPU.

    PYTHONPATH=src python benchmarks/af3_pair_block.py --out benchmarks/results/af3_pair_blocks_h200.json

OpenFold3's modules (names and mathematics as in `tests/kernels/af3`), 4 heads of 32, a SwiGLU
transition four times as wide, bfloat16 by autocast, float32 weights, no dropout. Beside them, named
by `--cases` alone: `average`, pair-weighted averaging of 1,024 sequences, 8 heads of 32; `tokens`, a block of the
diffusion transformer on 48 noise copies that share their pairs, 16 heads of 48, its parts
`tokens_attention` and `tokens_transition`; `single`, attention of the single track, 16 heads of 24.
Ways: eager; `compiled` by torch.compile, static shapes; `cuequivariance`, whose two triangle
operators stand where the projects' own switch puts them (norms, projections and gates of the
attention are PyTorch's); `fused` by `to_fused`; `graph` by `to_fused(cuda_graphs=True)`. Named by
`--ways` alone: `cuequivariance_bf16` and `fused_bf16`, the same with parameters in bfloat16 and no
autocast, where cuEquivariance has newer kernels.

`both_ms` and `forward_ms`: median, first and third quartile of CUDA events around single calls that
were queued ahead of the GPU; `wall_ms`: a loop of calls, launches included; `kept_mb`: what a call
keeps until its backward pass. `difference`: of the output and of the first input's gradient from
eager's in float32, relative. Rows are written as they come, the most telling first; after `--seconds` those
left are listed as `not_run`. `--cases part:channels:size` runs these alone. Proof on a laptop:
`--device cpu --sizes 8 --repeats 1 --ways eager fused`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from recording import about, quartiles, save
from torch import Tensor, nn

from evofeed.kernels import to_fused

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.kernels.af3 import openfold3

HEADS, WIDTH = 4, 32
PAIRS, CONDITIONS, COPIES = 128, 384, 48  # of modules that are not of the pairs
WITH_TRIANGLES = ("block", "multiplication", "attention")
PACKAGES = ("torch", "triton", "cuequivariance-torch", "cuequivariance-ops-torch-cu13")
WAYS = ("fused", "eager", "cuequivariance", "graph", "compiled")
IN_BF16 = ("cuequivariance_bf16", "fused_bf16")
QUEUED = 60_000_000  # cycles, about 30 ms: launches of a step are queued meanwhile


class Case(NamedTuple):
    """One module at one size."""

    part: str
    channels: int
    size: int


def module_of(case: Case) -> nn.Module:
    C = case.channels
    return {
        "block": lambda: openfold3.PairBlock(C, C, WIDTH, HEADS, 4, 0.0),
        "multiplication": lambda: openfold3.TriangleMultiplicationOutgoing(C, C),
        "attention": lambda: openfold3.TriangleAttention(C, WIDTH, HEADS),
        "transition": lambda: openfold3.SwiGLUTransition(C, 4),
        "average": lambda: openfold3.MSAPairWeightedAveraging(C, 32, PAIRS, 8),
        "single": lambda: openfold3.SingleAttentionPairBias(C, PAIRS, 24, 16),
        "tokens": lambda: openfold3.DiffusionTransformerBlock(
            C, CONDITIONS, PAIRS, 48, 16, 2, True, None, None
        ),
        "tokens_attention": lambda: openfold3.AttentionPairBias(
            C, C, C, CONDITIONS, PAIRS, 48, 16, True
        ),
        "tokens_transition": lambda: openfold3.ConditionedTransitionBlock(C, CONDITIONS, 2),
    }[case.part]()


def inputs_of(case: Case) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Shapes of a module's inputs in the order of its forward, and that of its mask."""
    n, C, pairs = case.size, case.channels, (1, case.size, case.size, PAIRS)
    a, s, z = (1, COPIES, n, C), (1, COPIES, n, CONDITIONS), (1, *pairs)
    of_tokens = {"tokens": [a, s, z], "tokens_attention": [a, z, s], "tokens_transition": [a, s]}
    if case.part in of_tokens:
        return of_tokens[case.part], (1, 1, n)
    if case.part == "average":
        return [(1, 1024, n, C), pairs], (1, n, n)
    if case.part == "single":
        return [(1, n, C), pairs], (1, n)
    return [(1, n, n, C)], (1, n, n)


def cases(sizes: list[int]) -> Iterator[Case]:
    """The most telling first."""
    middle = sizes[min(1, len(sizes) - 1)]
    first = [Case("block", 128, n) for n in sizes[:2]]
    first += [Case("multiplication", c, middle) for c in (128, 256)]
    first += [Case(part, 128, middle) for part in ("attention", "transition")]
    first += [Case("block", 128, n) for n in sizes[2:]]
    rest = itertools.product(("transition", "multiplication", "attention"), sizes)
    first += [Case(part, 128, n) for part, n in rest]
    first += [Case("multiplication", 256, n) for n in sizes]
    yield from dict.fromkeys(first)


def named_case(text: str) -> Case:
    part, channels, size = text.split(":")
    return Case(part, int(channels), int(size))


# --- cuEquivariance -------------------------------------------------------------------------------


def use_cuequivariance(module: nn.Module) -> None:
    """Puts its operators in place of the triangles'."""
    from cuequivariance_torch import triangle_attention, triangle_multiplicative_update

    def multiply(m: Any) -> Callable[..., Tensor]:
        def forward(z: Tensor, mask: Tensor, **options: Any) -> Tensor:
            out: Tensor = triangle_multiplicative_update(
                z, "outgoing" if m._outgoing else "incoming", mask=mask,
                norm_in_weight=m.layer_norm_in.weight, norm_in_bias=m.layer_norm_in.bias,
                p_in_weight=torch.cat([m.linear_a_p.weight, m.linear_b_p.weight]),
                g_in_weight=torch.cat([m.linear_a_g.weight, m.linear_b_g.weight]),
                norm_out_weight=m.layer_norm_out.weight, norm_out_bias=m.layer_norm_out.bias,
                p_out_weight=m.linear_z.weight, g_out_weight=m.linear_g.weight, eps=1e-5,
            )  # fmt: skip
            return out

        return forward

    def attend(m: Any) -> Callable[..., Tensor]:
        def forward(x: Tensor, mask: Tensor, **options: Any) -> Tensor:
            if not m.starting:
                x, mask = x.transpose(-2, -3), mask.transpose(-1, -2)
            x, mha = m.layer_norm(x), m.mha
            q, k, v = (
                layer(x).unflatten(-1, (HEADS, WIDTH)).transpose(-2, -3)
                for layer in (mha.linear_q, mha.linear_k, mha.linear_v)
            )
            bias = m.linear_z(x) if hasattr(m, "linear_z") else m.linear(x)
            o = triangle_attention(
                q, k, v, bias.movedim(-1, -3)[:, None], mask=mask[..., None, None, :].bool(),
                scale=WIDTH**-0.5,
            )  # fmt: skip
            o = o.transpose(-2, -3).flatten(-2)
            out: Tensor = mha.linear_o(torch.sigmoid(mha.linear_g(x)) * o)
            return out if m.starting else out.transpose(-2, -3)

        return forward

    for part in module.modules():
        if isinstance(part, openfold3.TriangleMultiplicationOutgoing):
            part.forward = multiply(part)  # type: ignore[method-assign]
        if isinstance(part, openfold3.TriangleAttention):
            part.forward = attend(part)  # type: ignore[method-assign]


# --- one row --------------------------------------------------------------------------------------


class Step:
    """A module, its inputs, and what is timed."""

    def __init__(self, case: Case, how: str, device: str) -> None:
        torch.manual_seed(0)
        self.device, self.autocast = device, how != "float32" and how not in IN_BF16
        module = module_of(case).to(device, torch.bfloat16 if how in IN_BF16 else None)
        if how in ("fused", "graph", "fused_bf16"):
            to_fused(module, cuda_graphs=how == "graph")
        if how.startswith("cuequivariance"):
            use_cuequivariance(module)
        kind = torch.float32 if how == "float32" else torch.bfloat16
        shapes, of_mask = inputs_of(case)
        self.inputs = [
            torch.randn(shape, device=device).to(kind).requires_grad_() for shape in shapes
        ]
        self.mask = (torch.rand(of_mask, device=device) > 0.1).to(kind)
        self.grad = torch.randn(shapes[0], device=device).to(kind)
        self.leaves = [*self.inputs, *module.parameters()]
        self.call: Any = torch.compile(module, dynamic=False) if how == "compiled" else module

    def forward(self) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            return self.call(*self.inputs, self.mask)  # type: ignore[no-any-return]

    def both(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.forward(), self.leaves, self.grad)

    def alone(self) -> None:
        with torch.no_grad():
            self.forward()

    def results(self) -> list[Tensor]:
        """Output and the gradient of the first input."""
        return [self.forward().detach().float(), self.both()[0].float()]

    def kept_mb(self) -> int:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        out = self.forward()
        kept = torch.cuda.memory_allocated() - before
        del out
        return round(kept / 1e6)


def gpu_ms(step: Callable[[], Any], repeats: int, device: str) -> list[float]:
    """Median and quartiles."""
    for _ in range(2 if repeats > 1 else 1):
        step()
    found = []
    for _ in range(max(repeats, 2)):
        if device == "cuda":
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            torch.cuda._sleep(QUEUED)
            marks[0].record()
            step()
            marks[1].record()
            torch.cuda.synchronize()
            found.append(marks[0].elapsed_time(marks[1]))
        else:
            found.append(wall_ms(step, 1, device))
    return quartiles(found, 3)


def wall_ms(step: Callable[[], Any], repeats: int, device: str) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return round(1e3 * (time.perf_counter() - began) / repeats, 3)


def difference(ours: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [
        round(float((a - b).norm() / b.norm()), 5) for a, b in zip(ours, exact, strict=True)
    ]  # fmt: skip


def row(
    case: Case, how: str, exact: list[Tensor] | None, options: argparse.Namespace
) -> dict[str, Any]:
    """One way of one case."""
    device, repeats = options.device, options.repeats
    found: dict[str, Any] = {**case._asdict(), "how": how}
    began = time.perf_counter()
    try:
        step = Step(case, how, device)
        found["both_ms"] = gpu_ms(step.both, repeats, device)
        if how != "compiled":  # compiling once more, for inference, takes long
            found["forward_ms"] = gpu_ms(step.alone, repeats, device)
        found["wall_ms"] = wall_ms(step.both, repeats, device)
        if device == "cuda" and how != "graph":
            found["kept_mb"] = step.kept_mb()
        if exact is not None:
            found["difference"] = difference(step.results(), exact)
    except torch.OutOfMemoryError:
        found["failed"] = "out of memory"
    except Exception as error:  # a peer's
        found["failed"] = f"{type(error).__name__}: {error}"[:300]
    found["seconds"] = round(time.perf_counter() - began, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 384, 640, 768])
    parser.add_argument("--cases", nargs="+", type=named_case, help="part:channels:size")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS + IN_BF16)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    result: dict[str, Any] = {
        **about(*PACKAGES, device=options.device), "repeats": options.repeats,
        "rows": [], "not_run": [],
    }  # fmt: skip
    for case in options.cases or cases(options.sizes):
        exact = None
        if case.size <= 384 and time.perf_counter() - began < options.seconds:
            exact = Step(case, "float32", options.device).results()
        for how in options.ways:
            if how.startswith("cuequivariance") and case.part not in WITH_TRIANGLES:
                continue  # it has none
            if time.perf_counter() - began > options.seconds:
                result["not_run"].append({**case._asdict(), "how": how})
                continue
            torch.compiler.reset()
            result["rows"].append(row(case, how, exact, options))
            print(json.dumps(result["rows"][-1]), flush=True)
            if options.out:
                save(options.out, result)
            if options.device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
