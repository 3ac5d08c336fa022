"""The drop-ins beside PyTorch's own modules, and OpenFold's own block before and after `to_fused`.

    PYTHONPATH=src python benchmarks/drop_ins.py --openfold CHECKOUT --out benchmarks/results/drop_ins_h200.json
    PYTHONPATH=src python benchmarks/drop_ins.py --merge NEW.json --out benchmarks/results/drop_ins_h200.json
    PYTHONPATH=src python benchmarks/drop_ins.py --table benchmarks/results/drop_ins_h200.json

The modules' shapes are those High-Flyer published for hfai.nn: an LSTM of 985, two
multi-head attentions, a layer norm. GPU time of a forward pass without gradients
(`forward`) and of forward and backward (`both`), all parameters' gradients
included, and wall time where it is short. `tf32` is float32 with `allow_tf32`. Without a GPU the
script only checks that it runs.
"""  # noqa: E501

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_times import Row, environment, gpu_times, graphed, peak_mb, wall_us
from kernel_table import load, merge, save
from torch import Tensor, nn

from evofeed.kernels import SwapReport, to_fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = DEVICE == "cpu"
KINDS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "tf32": torch.float32}


def timed(call: Callable[[], Any], repeats: int) -> Row:
    if TINY:
        call()
        return {}
    times = gpu_times([call], repeats)
    return times | ({"wall": wall_us([call], repeats)} if times["us"] < 5e3 else {})


def module_rows(
    case: str, kind: str, plain: nn.Module, run: Callable[[nn.Module], Tensor], repeats: int = 10
) -> Iterator[Row]:
    """Forward, and forward plus backward, of a module and of its swapped copy."""
    fused = to_fused(copy.deepcopy(plain))
    shown: dict[str, Tensor] = {}
    for who, module in (("torch", plain), ("evofeed", fused)):

        def forward(module: nn.Module = module) -> Tensor:
            with torch.no_grad():
                return run(module)

        def both(module: nn.Module = module) -> None:
            module.zero_grad(set_to_none=True)
            run(module).backward(torch.ones_like(shown["torch"]))

        shown[who] = forward()
        row = {"case": case, "kind": kind, "who": who, "mode": "training"}
        row |= {"forward": timed(forward, repeats), "both": timed(both, repeats)}
        if who == "evofeed":
            gap = (shown["evofeed"] - shown["torch"]).float().norm() / shown["torch"].float().norm()
            row["difference"] = float(gap)
        yield row
        if isinstance(module, nn.MultiheadAttention):
            module.eval()
            yield row | {"mode": "inference", "forward": timed(forward, repeats), "both": None}
            module.train()


def lstms() -> Iterator[Row]:
    sizes = [(64, 8, 20, 20), (985, 4, 1000, 5), (985, 128, 100, 10), (500, 32, 200, 10)]
    for hidden, batch, steps, repeats in [(13, 3, 60, 1)] if TINY else sizes:
        for kind, dtype in KINDS.items():
            module = nn.LSTM(hidden, hidden, device=DEVICE, dtype=dtype)
            x = torch.randn(steps, batch, hidden, device=DEVICE, dtype=dtype)
            case = f"LSTM {hidden}, batch {batch}, {steps} steps"
            yield from module_rows(case, kind, module, lambda m, x=x: m(x)[0], repeats)


def attentions() -> Iterator[Row]:
    sizes = [(2, 16, 64, 4), (8, 128, 256, 8), (200, 256, 1024, 16), (5000, 64, 512, 8)]
    for batch, length, width, heads in [(2, 3, 8, 2)] if TINY else sizes:
        for kind in ("bfloat16", "tf32"):
            for first in (True, False):
                options = {"batch_first": first, "device": DEVICE, "dtype": KINDS[kind]}
                module = nn.MultiheadAttention(width, heads, **options)
                shape = (batch, length, width) if first else (length, batch, width)
                x = torch.randn(shape, device=DEVICE, dtype=KINDS[kind])
                case = f"attention {list(shape)}, {heads} heads{', batch_first' if first else ''}"
                run = lambda m, x=x: m(x, x, x, need_weights=False)[0]  # noqa: E731
                yield from module_rows(case, kind, module, run)


def layer_norms() -> Iterator[Row]:
    for shape in [(2, 3, 8)] if TINY else [(1, 16, 64), (1, 256, 256, 128), (200, 128, 1024)]:
        for kind in ("bfloat16", "tf32"):
            module = nn.LayerNorm(shape[-1], device=DEVICE, dtype=KINDS[kind])
            x = torch.randn(shape, device=DEVICE, dtype=KINDS[kind], requires_grad=True)
            yield from module_rows(f"layer norm {list(shape)}", kind, module, lambda m, x=x: m(x))


# --- OpenFold's own block ----------------------------------------------------------------------


def openfold_block(checkout: Path) -> type[nn.Module]:
    """`EvoformerBlock` of a checkout, without the CUDA extension only inference needs."""
    package = types.ModuleType("openfold")
    package.__path__ = [str(checkout / "openfold")]
    sys.modules["openfold"] = package
    sys.modules["attn_core_inplace_cuda"] = types.ModuleType("attn_core_inplace_cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from openfold.model.evoformer import EvoformerBlock
    found: type[nn.Module] = EvoformerBlock
    return found


OPENFOLD = {
    "c_m": 256, "c_z": 128, "c_hidden_msa_att": 32, "c_hidden_opm": 32, "c_hidden_mul": 128,
    "c_hidden_pair_att": 32, "no_heads_msa": 8, "no_heads_pair": 4, "transition_n": 4,
    "msa_dropout": 0.15, "pair_dropout": 0.25, "no_column_attention": False, "opm_first": False,
    "fuse_projection_weights": False, "inf": 1e9, "eps": 1e-10,
}  # fmt: skip


class Block:
    """One block in bf16, its inputs, and a step through it."""

    def __init__(self, block: nn.Module, S: int, N: int) -> None:
        dtype = torch.float32 if TINY else torch.bfloat16
        self.block = block.to(DEVICE, dtype)
        self.call: Any = self.block
        shapes = (1, S, N, OPENFOLD["c_m"]), (1, N, N, OPENFOLD["c_z"])
        generator = torch.Generator(DEVICE).manual_seed(0)

        def draw(function: Any, shape: Any) -> Tensor:
            drawn: Tensor = function(shape, device=DEVICE, generator=generator)
            return drawn

        self.inputs = [draw(torch.randn, s).to(dtype).requires_grad_() for s in shapes]
        self.masks = [(draw(torch.rand, s[:3]) > 0.05).to(dtype) for s in shapes]
        self.grads = [torch.randn_like(t) for t in self.inputs]

    def forward(self) -> list[Tensor]:
        return list(self.call(*self.inputs, *self.masks))

    def step(self) -> None:
        for t in (*self.inputs, *self.block.parameters()):
            t.grad = None
        torch.autograd.backward(self.forward(), self.grads)

    def inference(self) -> None:
        with torch.no_grad():
            self.forward()


def openfold_rows(checkout: Path) -> Iterator[Row]:
    make = openfold_block(checkout)
    compiled: list[tuple[str, str, Block, str]] = []
    for S, N in [(2, 3)] if TINY else [(128, 256), (512, 384)]:
        torch.manual_seed(0)
        plain = make(**OPENFOLD)
        with torch.no_grad():  # AF2 starts many weights at 0, and zeros run faster
            for parameter in plain.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=parameter.shape[1] ** -0.5)
        report = SwapReport()
        fused = to_fused(copy.deepcopy(plain), report)
        exact = Block(plain, S, N)
        ours = Block(fused, S, N)
        recorded = Block(to_fused(copy.deepcopy(fused), cuda_graphs=True), S, N)
        outputs = []
        for block in (exact, ours):
            block.block.eval()
            with torch.no_grad():
                outputs.append([o - i for o, i in zip(block.forward(), block.inputs, strict=True)])
            block.block.train()
        gaps = [
            float((b - a).float().norm() / a.float().norm()) for a, b in zip(*outputs, strict=True)
        ]
        case = f"OpenFold Evoformer block {S} x {N}"
        theirs, fused_name = "OpenFold", "to_fused(OpenFold)"
        for who, block, how in (
            (theirs, exact, "eager"), (theirs, exact, "CUDA graph"), (fused_name, ours, "eager"),
            (fused_name, ours, "CUDA graph"),
            ("to_fused(OpenFold, cuda_graphs=True)", recorded, "eager"),
        ):  # fmt: skip
            yield {"case": case, "who": who, "how": how} | block_times(block, how)
        if N < 300:  # compiling OpenFold's takes a minute at each size: last
            compiled += [
                (case, theirs, exact, "compiled"), (case, fused_name, ours, "compiled"),
                (case, fused_name, ours, "compiled, reduce-overhead"),
            ]  # fmt: skip
        ours.call = ours.block
        row: Row = {"case": case, "who": fused_name}
        row |= {"difference_from_openfold": gaps, "swapped": len(report.swapped)}
        yield row | {"gpu_share_swapped": round(report.measure(fused, ours.step), 4)}
    for case, who, block, how in compiled:
        row = {"case": case, "who": who, "how": how}
        try:
            yield row | block_times(block, how)
        except Exception as error:  # a peer that cannot run is a result too
            yield row | {"failed": f"{type(error).__name__}: {error}"[:300]}


def block_times(block: Block, how: str) -> Row:
    torch.compiler.reset()
    block.call = block.block
    if how.startswith("compiled"):
        options: Any = {"backend": "aot_eager"} if TINY else {}
        if "reduce-overhead" in how and not TINY:
            options["mode"] = "reduce-overhead"
        fullgraph = hasattr(block.block, "torch_class")
        block.call = torch.compile(block.block, fullgraph=fullgraph, **options)
    if TINY:
        block.step()
        return {}
    held = torch.cuda.memory_allocated()
    block.step()
    held = torch.cuda.memory_allocated() - held  # what recordings keep
    step: Any = graphed(block.step) if how == "CUDA graph" else block.step
    times = gpu_times([step], 10)
    row = {"ms": round(times["us"] / 1e3, 3)}
    row |= {f"{q}_ms": round(times[q] / 1e3, 3) for q in ("q1", "q3")}
    row["wall_ms"] = round(wall_us([step], 6) / 1e3, 3)
    if how != "CUDA graph":
        row["forward_ms"] = round(gpu_times([block.inference], 10)["us"] / 1e3, 3)
        row["peak_mb"] = round(peak_mb(block.step) + held / 1e6, 1)
    return row


# --- running -----------------------------------------------------------------------------------


def run(sections: dict[str, Iterator[Row]], out: Path) -> None:
    """Measures these sections; others of the file stay."""
    info = {} if TINY else environment("drop_ins.py", "5 to 10 calls, median and quartiles")
    kept = load(out)
    for section, rows in sections.items():
        start, found = time.time(), list[Row]()
        kept[section] = {"environment": info, "rows": found}
        for row in rows:
            found.append(row)
            save(out, kept)
            print(section, json.dumps(row), flush=True)
        kept[section]["seconds"] = round(time.time() - start, 1)
        save(out, kept)


def table(path: Path) -> str:
    """Markdown of a result file."""
    sections, lines = load(path), []
    for name, section in sections.items():
        env = section["environment"]
        of = f"{env['card']}, torch {env['torch']}, cuDNN {env['cudnn']}, {env['date']}"
        lines += [f"{name}: {of}: `{env['command']}`", ""]
    head = "torch, ms | evofeed, ms | ratio | torch wall, ms | evofeed wall, ms | difference"
    lines += [f"| module | type | mode | {head} |", "| --- " * 9 + "|"]
    for section in ("lstm", "attention", "layer_norm"):
        rows = sections.get(section, {"rows": []})["rows"]
        keys = list(dict.fromkeys((r["case"], r["kind"], r["mode"]) for r in rows))
        for key in keys:
            pair = {r["who"]: r for r in rows if (r["case"], r["kind"], r["mode"]) == key}
            for part in ("forward", "both"):
                if pair["torch"][part]:
                    a, b = (pair[who][part]["us"] / 1e3 for who in ("torch", "evofeed"))
                    shown = f"{key[2]}, {part}"
                    walls = [pair[who][part].get("wall") for who in ("torch", "evofeed")]
                    shown_walls = " | ".join("" if w is None else f"{w / 1e3:.3f}" for w in walls)
                    cells = f"{a:.3f} | {b:.3f} | {a / b:.2f} | {shown_walls} | "
                    cells += f"{pair['evofeed']['difference']:.1e}"
                    lines.append(f"| {key[0]} | {key[1]} | {shown} | {cells} |")
    lines += [
        "",
        "| block | who | how | both, ms | wall, ms | forward, ms | peak, MB |",
    ]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for r in sections.get("openfold", {"rows": []})["rows"]:
        if "ms" in r:
            cells = [r["ms"], r["wall_ms"], r.get("forward_ms", ""), r.get("peak_mb", "")]
            shown = " | ".join(map(str, cells))
            lines.append(f"| {r['case']} | {r['who']} | {r['how']} | {shown} |")
        elif "failed" in r:
            lines.append(f"| {r['case']} | {r['who']} | {r['how']} | {r['failed'][:80]} | | | |")
        else:
            gaps = ", ".join(f"{gap:.1e}" for gap in r["difference_from_openfold"])
            share = (
                f"{r['gpu_share_swapped']:.1%} of its GPU time in {r['swapped']} swapped modules"
            )
            lines.append(f"| {r['case']} | {share} | update differs by {gaps} | | | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("drop_ins.json"))
    parser.add_argument("--openfold", type=Path, help="a checkout, for its own block")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--merge", type=Path, nargs="+", help="put their sections into --out")
    parser.add_argument("--table", type=Path, help="print a result file as a table and stop")
    args = parser.parse_args()
    if args.merge:
        print("merged:", *merge(args.out, args.merge))
        return
    if args.table:
        print(table(args.table))
        return
    warnings.filterwarnings("ignore", message="RNN module weights are not part")  # torch's bf16
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    sections = {"lstm": lstms(), "attention": attentions(), "layer_norm": layer_norms()}
    if args.openfold:
        sections["openfold"] = openfold_rows(args.openfold)
    run({name: sections[name] for name in args.only or sections}, args.out)


if __name__ == "__main__":
    main()
