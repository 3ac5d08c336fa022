"""Race tile sizes of the kernels on this GPU and print the winners as a `choices.json`.

    PYTHONPATH=src python benchmarks/tune_kernels.py --out choices.json

Candidates are compiled by several processes first (Triton's cache is shared),
then timed one after another in this one. `--float32` races the products in float32 instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.ops.attention import op as att
from evofeed.kernels.ops.attention.hopper import launch as hopper
from evofeed.kernels.ops.gated_attention.op import AttentionWeights, gated_attention
from evofeed.kernels.ops.layer_norm.op import TICKETS, layer_norm, layer_norm_backward
from evofeed.kernels.ops.outer_product_mean.op import OuterWeights, outer_product_mean
from evofeed.kernels.ops.pair_bias.op import pair_bias_with_input
from evofeed.kernels.ops.softmax.op import masked_softmax
from evofeed.kernels.ops.swiglu.hopper import launch as swiglu_hopper
from evofeed.kernels.ops.swiglu.op import SwigluWeights, swiglu_transition
from evofeed.kernels.ops.transition.op import TransitionWeights, mlp, relu_grad
from evofeed.kernels.ops.triangle_multiplication.op import TriangleWeights, triangle_multiplication
from evofeed.kernels.runtime import projection as proj
from evofeed.kernels.runtime.tiles import HopperTiles, Tile, hopper_tiles, override

BF16, DEVICE = torch.bfloat16, "cuda"


class Case(NamedTuple):
    """One thing to race: where its winner goes, the candidates, and how to run one."""

    key: dict[str, Any]
    candidates: list[Any]
    make: Callable[[], Callable[[Any], Any]]


def gpu_us(run: Callable[[], Any], calls: int = 8) -> float:
    """Median GPU time of a call in microseconds, launches queued ahead."""
    run()
    torch.cuda.synchronize()
    torch.cuda._sleep(6_000_000)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for first, second in events:
        first.record()
        run()
        second.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(a.elapsed_time(b) for a, b in events)


KINDS = {"": BF16}  # what products are raced in: {"": torch.float32} with --float32


def rand(*shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype or KINDS[""])


# --- attention ---------------------------------------------------------------------------------

ATTENTION = {  # name: rows, positions, heads, width, bias
    "triangle 256": (256, 256, 4, 32, True),
    "triangle 384": (384, 384, 4, 32, True),
    "triangle 512": (512, 512, 4, 32, True),
    "triangle 768": (768, 768, 4, 32, True),  # too long for the backward kernel, not for the others
    "column 128": (256, 128, 8, 32, False),
    "column 132": (256, 132, 8, 32, False),  # with four templates
    "column 512": (384, 512, 8, 32, False),
    "column 516": (384, 516, 8, 32, False),
    "extra row 256": (1024, 256, 8, 8, True),
    "template 256": (256, 256, 4, 16, True),
}


def tiles(text: str) -> list[Tile]:
    return [Tile(*map(int, item.split(","))) for item in text.split()]


FORWARD = tiles("64,32,4,2 64,64,4,2 64,128,4,2 128,64,8,2 128,128,8,2")
BACKWARD = tiles("64,64,4,2 64,128,8,2 128,64,4,2 128,128,8,2")
BIAS_GRADIENT = tiles("64,64,4,2 64,64,4,3 128,64,8,2 128,64,8,3 64,128,8,2 128,128,16,2")


def attention_inputs(name: str) -> att.BackwardInputs:
    R, N, H, D, has_bias = ATTENTION[name]
    packed = rand(1, R, N, 3, H, D)
    q, k, v = packed.unbind(3)
    bias = rand(1, H, N, N) if has_bias else None
    mask = att.prepare_mask((torch.rand(1, R, N, device=DEVICE) > 0.1).to(BF16), D**-0.5, BF16)
    out, do = torch.empty(1, R, N, H, D, device=DEVICE, dtype=BF16), rand(1, R, N, H, D)
    lse = hopper.run_forward(q, k, v, bias, mask, D**-0.5, out, HopperTiles())
    grads = torch.empty_like(packed).unbind(3)
    return att.BackwardInputs(
        do, q, k, v, bias, mask, lse, att.output_delta(out, do), D**-0.5, grads
    )


def attention_cases() -> Iterator[Case]:
    for name, (_, N, _, D, has_bias) in ATTENTION.items():
        key = {"kind": "attention", "name": name, "N": N, "D": D, "has_bias": has_bias}

        def make(part: str, name: str = name) -> Callable[[Any], Any]:
            given = attention_inputs(name)
            out = torch.empty_like(given.do)

            def run(choice: Any) -> Any:
                if part == "forward":
                    tiles = HopperTiles(forward=choice)
                    return hopper.run_forward(*given[1:6], given.scale, out, tiles)
                if part == "backward":
                    return hopper.run_backward_of_rows(given, choice)
                assert given.bias is not None
                tiles = HopperTiles(bias_gradient=choice[0], waves=choice[1])
                return hopper.run_bias_gradient(given, tiles)

            return run

        parts: list[tuple[str, list[Any]]] = [("forward", FORWARD), ("backward", BACKWARD)]
        if has_bias:
            candidates = list(itertools.product(BIAS_GRADIENT, (1, 2, 3, 4)))
            parts.append(("bias_gradient", candidates))
        for part, candidates in parts:
            yield Case({**key, "part": part}, candidates, lambda make=make, part=part: make(part))


# --- the ops around it -------------------------------------------------------------------------


def weights(C: int, N: int) -> list[Tensor]:
    return [rand(N, C, scale=C**-0.5), rand(N, dtype=torch.float32)]


def norm(C: int) -> list[Tensor]:
    return [torch.ones(C, device=DEVICE), torch.zeros(C, device=DEVICE)]


PAIRS = {64: 262144, 128: 65536, 256: 32768}  # channels: rows


def norm_cases() -> Iterator[Case]:
    sizes = [Tile(*c) for c in itertools.product((8, 16, 32), (1,), (1, 2, 4), (1,))]
    walks = [Tile(*c) for c in itertools.product((8, 16), (1,), (2, 4), (3,), (2, 3, 4, 6, 8))]
    shapes = {64: 262144, 128: 65536, 256: 33792, 1024: 25600}
    for (C, M), dtype in itertools.product(shapes.items(), (BF16, torch.float32)):

        def forward(M: int = M, C: int = C, dtype: torch.dtype = dtype) -> Callable[[Any], Any]:
            turn = itertools.cycle([rand(M, C, dtype=dtype) for _ in range(4)])
            return lambda _: layer_norm(next(turn), *norm(C))

        def backward(M: int = M, C: int = C, dtype: torch.dtype = dtype) -> Callable[[Any], Any]:
            turn = itertools.cycle([[rand(M, C, dtype=dtype) for _ in "xy"] for _ in range(4)])
            gamma, beta = norm(C)
            stats = torch.zeros(2 * M + TICKETS, device=DEVICE)
            sums = torch.empty_like(gamma), torch.empty_like(beta)

            def run(_: Any) -> Any:
                x, dy = next(turn)
                return layer_norm_backward(dy, x, gamma, beta, stats, (M, 0, C), sums=sums)

            return run

        wide = "_float32" if dtype is torch.float32 else ""
        yield Case({"kind": "tile", "op": f"norm_forward{wide}", "C": C}, sizes, forward)
        yield Case({"kind": "tile", "op": f"norm_backward{wide}", "C": C}, walks, backward)


FLOAT32 = {  # the first whose name an op's begins with; what spills registers is left out
    "attention_dkv": tiles("16,64,4,1 32,64,4,1 64,16,8,1 16,32,4,1"),
    "attention_db": tiles("64,32,4,1 64,32,8,1 64,16,8,1"),
    "attention": tiles("64,32,4,1 64,16,4,1 128,32,8,1 64,32,8,1"),
    "norm_rows": tiles("32,1,8,1 64,1,8,1 16,1,4,1"),
    "pair_bias": tiles("32,1,8,1 16,1,4,1"),
    "relu_grad": tiles("64,64,8,1 128,32,8,1 64,32,4,1"),
    "mlp": tiles("16,32,4,1 32,32,8,1"),
    "gated_output_grad": tiles("32,1,4,1 64,1,4,1"),
    "gated_output": tiles("16,32,4,1 64,32,4,1 64,32,8,1"),
    "triangle_out": tiles("16,32,4,1 64,32,4,1"),
    "triangle_in": tiles("64,32,4,1 128,32,8,1 64,16,4,1"),
    "outer_dw": tiles("32,1,4,1 64,1,8,1 16,1,4,1"),
    "outer": tiles("64,32,8,1 64,32,4,1 128,32,8,1"),
}


def float32_cases() -> Iterator[Case]:
    """Every op whose products are made in float32."""

    def candidates(op: str) -> list[Any]:
        return next(found for name, found in FLOAT32.items() if op.startswith(name))

    for case in product_cases():
        op = case.key["op"]
        if "softmax" not in op:
            yield Case({**case.key, "op": f"{op}_float32"}, candidates(op), case.make)
    for name, N in (("column 128", 128), ("triangle 256", 256)):
        for part in ("forward", "dq", "dkv", "db"):
            op = f"attention_{part}"
            key = {"kind": "tile", "op": f"{op}_float32", "C": N}

            def make(name: str = name, part: str = part) -> Callable[[Any], Any]:
                R, N, H, D, has_bias = ATTENTION[name]
                q, k, v = (rand(1, R, N, H, D).requires_grad_() for _ in range(3))
                bias = rand(1, H, N, N).requires_grad_() if has_bias else None
                mask = torch.ones(1, R, N, device=DEVICE)
                if part == "forward":
                    return lambda _: att.biased_attention(q, k, v, bias, mask)
                out = att.biased_attention(q, k, v, bias, mask)
                leaves = [t for t in (q, k, v, bias) if t is not None]
                grad = torch.randn_like(out)
                return lambda _: torch.autograd.grad(out, leaves, grad, retain_graph=True)

            if part != "db" or ATTENTION[name][-1]:
                yield Case(key, candidates(op), make)


def op_cases() -> Iterator[Case]:
    yield from norm_cases()
    yield from product_cases()


def product_cases() -> Iterator[Case]:
    rows = (64, 128)
    gemm = [
        Tile(*c)
        for c in itertools.product(rows, (64, 128), (4, 8), (2, 3))
        if c != (128, 128, 4, 3)
    ]
    for C, M in PAIRS.items():

        def key(op: str, C: int = C) -> dict[str, Any]:
            return {"kind": "tile", "op": op, "C": C}

        def norm_rows(M: int = M, C: int = C) -> Callable[[Any], Any]:
            x, w = rand(M, C), rand(8, C) if C == 128 else None
            return lambda _: proj.norm_rows(
                x, *norm(C), 1e-5, KINDS[""], pair_weight=w, pair_length=256, pair_scale=5.6
            )

        def whole(M: int = M, C: int = C) -> Callable[[Any], Any]:
            x = rand(M, C)
            w = TransitionWeights(*norm(C), *weights(C, 4 * C), *weights(4 * C, C))
            return lambda _: mlp(x, *w.tensors(), 1e-5, None, True)

        thin = [Tile(*c) for c in itertools.product((16, 32, 64, 128), (128,), (4, 8), (1,))]
        yield Case(key("norm_rows"), thin, norm_rows)
        mlp_tiles = [Tile(*c) for c in itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2))]
        yield Case(key("mlp"), mlp_tiles, whole)

        def masked(M: int = M, C: int = C) -> Callable[[Any], Any]:
            a, b, hidden = rand(M, C), rand(C, 4 * C), rand(M, 4 * C)
            return lambda _: relu_grad(a, b, hidden)

        yield Case({"kind": "tile", "op": "relu_grad", "C": 4 * C}, gemm, masked)
    yield from gated_cases()
    yield from swiglu_cases()
    yield from triangle_cases()
    yield from outer_cases()
    yield from bias_and_softmax_cases()


def bias_and_softmax_cases() -> Iterator[Case]:
    def pair() -> Callable[[Any], Any]:
        z = rand(1, 256, 256, 128).requires_grad_()
        bias, through = pair_bias_with_input(z, *norm(128), rand(8, 128))
        grads = torch.randn_like(bias), torch.randn_like(through)
        return lambda _: torch.autograd.grad((bias, through), z, grads, retain_graph=True)

    walks = itertools.product((16, 32, 64), (1,), (2, 4, 8), (1,), (2, 4, 6))
    key = {"kind": "tile", "op": "pair_bias_grad", "C": 128}
    yield Case(key, [Tile(*c) for c in walks], pair)
    for op in ("softmax", "softmax_grad"):
        for N in (256, 384, 512):

            def make(op: str = op, N: int = N) -> Callable[[Any], Any]:
                x, bias = rand(1, N, 4, N, N).requires_grad_(), rand(1, 4, N, N).requires_grad_()
                mask = torch.ones(1, N, N, device=DEVICE, dtype=BF16)
                if op == "softmax":
                    return lambda _: masked_softmax(x, mask, bias)
                y = masked_softmax(x, mask, bias)
                grad = torch.randn_like(y)
                return lambda _: torch.autograd.grad(y, (x, bias), grad, retain_graph=True)

            lines = itertools.product((4, 8, 16), (1,), (1, 2, 4), (1, 3, 4), (8, 16, 32))
            yield Case({"kind": "tile", "op": op, "C": N}, [Tile(*c) for c in lines], make)


def gated_cases() -> Iterator[Case]:
    shapes = {64: (1024, 256, 64, 8), 128: (256, 256, 128, 4), 256: (128, 256, 256, 8)}
    small = [Tile(*c) for c in itertools.product((64, 128), (64, 128), (4, 8), (1, 2))]
    for C, (R, N, width, H) in shapes.items():

        def make(backward: bool, shape: tuple[int, ...] = (R, N, C, width, H)) -> Any:
            R, N, C, width, H = shape
            x = rand(1, R, N, C).requires_grad_()
            w = [*norm(C), *(rand(width, C, scale=C**-0.5) for _ in range(4))]
            w += [rand(width), rand(C, width, scale=0.1), rand(C)]
            drop = rand(1, N, C)

            def forward() -> Tensor:
                return gated_attention(x, AttentionWeights(*w), H, residual=True, drop_mask=drop)

            if not backward:
                return lambda _: forward()
            out = forward()
            grad = torch.randn_like(out)
            return lambda _: torch.autograd.grad(out, x, grad, retain_graph=True)

        thin = [Tile(*c) for c in itertools.product((16, 32, 64), (128,), (4, 8), (1,))]
        for op, backward in (("gated_output", False), ("gated_output_grad", True)):
            yield Case(
                {"kind": "tile", "op": op, "C": width}, thin if backward else small,
                lambda make=make, backward=backward: make(backward),
            )  # fmt: skip


def swiglu_cases() -> Iterator[Case]:
    tiles = [Tile(*c) for c in itertools.product((64, 128), (32, 64), (4, 8), (2, 3))]

    def make(backward: bool) -> Any:
        x = rand(1, 256 * 256, 128).requires_grad_()
        layers = [rand(512, 128, scale=0.1), rand(512, 128, scale=0.1), rand(128, 512, scale=0.05)]
        w = SwigluWeights(*norm(128), *layers)
        if not backward:
            return lambda _: swiglu_transition(x, w)
        swiglu_hopper.fits = lambda *_: False  # type: ignore[assignment]  # the one for any card
        out = swiglu_transition(x, w)
        grad = torch.randn_like(out)
        return lambda _: torch.autograd.grad(out, x, grad, retain_graph=True)

    for op in ("swiglu", "swiglu_backward"):
        backward = op == "swiglu_backward"
        key = {"kind": "tile", "op": op, "C": 128}
        yield Case(key, tiles, lambda backward=backward: make(backward))


def triangle_cases() -> Iterator[Case]:
    small = [Tile(*c) for c in itertools.product((32, 64, 128), (32, 64, 128), (4, 8), (1, 2))]
    whole = [Tile(*c) for c in itertools.product((32, 64, 128), (128,), (4, 8, 16), (1, 2))]
    parts = [Tile(*c) for c in itertools.product((32, 64, 128), (32, 64, 128), (4, 8), (1,))]
    lines = [Tile(*c) for c in itertools.product((16, 32, 64, 128), (1,), (4, 8, 16), (1,))]

    def make(backward: bool, C: int = 128) -> Any:
        z = rand(1, 256, 256, C).requires_grad_()
        layers = [t for _ in range(4) for t in weights(C, C)]
        w = TriangleWeights(*norm(C), *layers, *norm(C), *weights(C, C), *weights(C, C))
        drop = rand(1, 256, C)

        def forward() -> Tensor:
            return triangle_multiplication(z, w, outgoing=True, residual=True, drop_mask=drop)

        if not backward:
            return lambda _: forward()
        out = forward()
        grad = torch.randn_like(out)
        return lambda _: torch.autograd.grad(out, z, grad, retain_graph=True)

    for op in ("triangle_in", "triangle_in_grad", "triangle_out", "triangle_out_grad"):
        yield Case(
            {"kind": "tile", "op": op, "C": 128}, whole if "out" in op else small,
            lambda op=op: make("grad" in op),
        )  # fmt: skip
    for op in ("columns", "columns_grad", "norm", "norm_grad"):  # between cuBLAS's products
        yield Case(
            {"kind": "tile", "op": f"triangle_{op}", "C": 256}, lines if "norm" in op else parts,
            lambda op=op: make("grad" in op, 256),
        )  # fmt: skip


def outer_cases() -> Iterator[Case]:
    def make(backward: bool) -> Any:
        m, z = rand(1, 128, 256, 256).requires_grad_(), rand(1, 256, 256, 128)
        w = OuterWeights(*norm(256), *weights(256, 32), *weights(256, 32), *weights(1024, 128))
        mask = torch.ones(1, 128, 256, device=DEVICE)

        def forward() -> Tensor:
            return outer_product_mean(m, w, mask, z=z)

        if not backward:
            return lambda _: forward()
        out = forward()
        grad = torch.randn_like(out)
        return lambda _: torch.autograd.grad(out, m, grad, retain_graph=True)

    for op in ("outer_project", "outer_dproject", "outer_dw"):
        stages = (2, 3, 4) if op == "outer_project" else (1, 2, 3)
        columns = (128,) if op == "outer_dw" else (32, 64, 128)
        candidates = [Tile(*c) for c in itertools.product((64, 128), columns, (4, 8), stages)]
        yield Case(
            {"kind": "tile", "op": op, "C": 128}, candidates,
            lambda backward=op != "outer_project": make(backward),
        )  # fmt: skip


# --- racing ------------------------------------------------------------------------------------


def attempt(case: Case, run: Callable[[Any], Any], choice: Any, time_it: bool) -> float | None:
    if case.key["kind"] == "tile":
        override(case.key["op"], choice)
    try:
        if time_it:
            return gpu_us(lambda: run(choice))
        run(choice)
    except Exception as error:  # a tile that does not fit: out of shared memory, compiler limits
        if "CUDA error" in str(error) or "illegal" in str(error):
            raise
        return None
    finally:
        if case.key["kind"] == "tile":
            override(case.key["op"], None)
    return None


def compile_share(worker: int, workers: int, cases: list[Case]) -> None:
    """Runs every `workers`-th candidate once, which leaves it in Triton's cache."""
    for number, case in enumerate(cases):
        mine = [c for i, c in enumerate(case.candidates) if (i + number) % workers == worker]
        if not mine:
            continue
        run = case.make()
        for choice in mine:
            attempt(case, run, choice, time_it=False)
        torch.cuda.synchronize()
        del run


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with the entries of `new` in place of its own."""
    names = {entry["name"] for entry in new["attention"]}
    attention = [e for e in old.get("attention", []) if e["name"] not in names]
    tiles = {op: list(entries) for op, entries in old.get("tiles", {}).items()}
    for op, entries in new["tiles"].items():
        widths = {entry["C"] for entry in entries}
        tiles[op] = [e for e in tiles.get(op, []) if e["C"] not in widths] + entries
    return {"card": new["card"], "attention": attention + new["attention"], "tiles": tiles}


def winners(raced: list[tuple[Case, list[tuple[float, Any]]]]) -> dict[str, Any]:
    choices: dict[str, Any] = {"card": torch.cuda.get_device_name(), "attention": [], "tiles": {}}
    by_shape: dict[str, dict[str, Any]] = {}
    for case, times in raced:
        best = min(times, default=None)
        if case.key["kind"] != "tile":
            by_shape.setdefault(case.key["name"], {"key": case.key})[case.key["part"]] = best
        elif best is not None:
            entry = {"C": case.key["C"], "tile": list(best[1]), "us": round(best[0], 2)}
            choices["tiles"].setdefault(case.key["op"], []).append(entry)
    for name, parts in by_shape.items():
        key = parts["key"]
        needed = {"forward", "backward"} | ({"bias_gradient"} if key["has_bias"] else set())
        if not needed <= parts.keys():  # still racing
            continue
        entry = {"name": name, "N": key["N"], "D": key["D"], "has_bias": key["has_bias"]}
        found = {part: best for part, best in parts.items() if part != "key" and best is not None}
        now = hopper_tiles(key["N"], key["D"], key["has_bias"])
        for part in ("forward", "backward"):  # where none fits, shorter rows still read the tile
            entry[part] = list(found[part][1] if part in found else getattr(now, part))
        tile, waves = found.get("bias_gradient", (0, (BIAS_GRADIENT[0], 1)))[1]
        entry |= {"bias_gradient": list(tile), "waves": waves}
        entry["us"] = {part: round(best[0], 1) for part, best in found.items()}
        choices["attention"].append(entry)
    return choices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("choices.json"))
    parser.add_argument("--log", type=Path, help="every candidate's time, as JSON lines")
    parser.add_argument("--float32", action="store_true", help="race the products in float32")
    parser.add_argument("--only", default="", help="only cases whose key contains this text")
    parser.add_argument("--skip", default="", help="no cases whose key contains one of these (;)")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--worker", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.float32:
        KINDS[""] = torch.float32
    cases = list(float32_cases()) if args.float32 else [*op_cases(), *attention_cases()]
    cases = [c for c in cases if args.only in json.dumps(c.key)]
    if args.skip:
        skip = args.skip.split(";")
        cases = [c for c in cases if not any(text in json.dumps(c.key) for text in skip)]
    if args.worker >= 0:
        compile_share(args.worker, args.workers, cases)
        return
    start = time.time()
    command = [
        sys.executable,
        __file__,
        "--only",
        args.only,
        "--skip",
        args.skip,
        "--workers",
        str(args.workers),
        *(["--float32"] if args.float32 else []),
    ]
    jobs = [subprocess.Popen([*command, "--worker", str(w)]) for w in range(args.workers)]
    codes = [job.wait() for job in jobs]
    print(f"compiled in {time.time() - start:.0f} s, exit codes {codes}", flush=True)
    raced: list[tuple[Case, list[tuple[float, Any]]]] = []
    log = args.log.open("w") if args.log else None
    saved = Path("kernels/runtime/choices.json")
    before = json.loads(saved.read_text()) if saved.exists() else {}
    for case in cases:
        run = case.make()
        times = [(attempt(case, run, choice, time_it=True), choice) for choice in case.candidates]
        done = sorted((t, c) for t, c in times if t is not None)
        raced.append((case, done))
        print(f"{case.key} failed {len(times) - len(done)}", *done[:3], sep="\n    ", flush=True)
        if log:
            print(json.dumps({**case.key, "times": done}), file=log, flush=True)
        args.out.write_text(json.dumps(merged(before, winners(raced)), indent=1) + "\n")
        del run
    print(f"raced in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
