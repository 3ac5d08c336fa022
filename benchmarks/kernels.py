"""Checks and times every fused op beside its peers on one GPU.

    PYTHONPATH=src python benchmarks/kernels.py --out benchmarks/results/kernels_h200.json
    PYTHONPATH=src python benchmarks/kernels.py --sections blocks --out ... (other sections stay)
    PYTHONPATH=src python benchmarks/kernels.py --merge NEW.json --out ... (sections it finished)
    PYTHONPATH=src python benchmarks/kernels.py --table benchmarks/results/kernels_h200.json

GPU time is the median of events around single calls that were queued ahead of
the GPU; wall time is a loop of calls, launch cost included. Inputs rotate over
several sets. Peers: PyTorch eager, torch.compile (default mode, static shapes),
SDPA and flex_attention where they apply, all in this process.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_times import Call, Row, environment, gpu_times, graphed, peak_mb, wall_us, walls_us
from kernel_table import load, merge, save, table
from torch import Tensor, nn

from evofeed.kernels import layer_norm, masked_softmax, reference, to_fused
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.ops.optimizer.op import FusedAdamEMA
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.swap.modules import triangle_weights
from evofeed.trainer.model.evoformer import EvoformerBlock
from evofeed.trainer.model.extra_msa import ExtraMSABlock
from evofeed.trainer.model.triangle import (
    TriangleMultiplicationIncoming,
    TriangleMultiplicationOutgoing,
)

BF16, DEVICE = torch.bfloat16, "cuda"


def calls_of(
    op: Callable[..., Tensor], sets: list[list[Tensor]], grads_of: list[int]
) -> tuple[list[Call], list[Call]]:
    """Forward, and forward plus backward, of `op` on each input set."""
    for inputs in sets:
        for n in grads_of:
            inputs[n].requires_grad_()
    outs = [torch.randn_like(op(*inputs)) for inputs in sets]

    def backward(inputs: list[Tensor], grad: Tensor) -> Call:
        leaves = [inputs[n] for n in grads_of]
        return lambda: torch.autograd.grad(op(*inputs), leaves, grad)

    forward = [lambda inputs=inputs: op(*inputs) for inputs in sets]
    return forward, [backward(inputs, grad) for inputs, grad in zip(sets, outs, strict=True)]


def both_ways(
    op: Callable[..., Tensor], sets: list[list[Tensor]], grads_of: list[int], wall: bool = True
) -> Row:
    """Forward, and forward plus backward, of `op` on rotating input sets."""
    forward, full = calls_of(op, sets, grads_of)
    row: Row = {"forward": gpu_times(forward), "both": gpu_times(full)}
    if wall:
        row |= {"forward_wall": wall_us(forward), "both_wall": wall_us(full)}
    row["peak_mb"] = peak_mb(full[0])
    return row


# --- numerics ----------------------------------------------------------------------------------


def errors(op: Callable[..., Tensor], inputs: list[Tensor], grads_of: list[int]) -> list[Tensor]:
    leaves = [t.detach().clone() for t in inputs]
    for n in grads_of:
        leaves[n].requires_grad_()
    out = op(*leaves)
    weight = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype)
    grads = torch.autograd.grad((out * weight).sum(), [leaves[n] for n in grads_of])
    return [out.detach(), *grads]


def three_way(
    fused: Callable[..., Tensor],
    plain: Callable[..., Tensor],
    inputs: list[Tensor],
    grads_of: list[int],
) -> list[list[float]]:
    """[ours, PyTorch's] relative error against float64, for the output and each gradient."""
    exact = errors(plain, [t.double() for t in inputs], grads_of)
    rows = []
    for ours, theirs, true in zip(
        errors(fused, inputs, grads_of), errors(plain, inputs, grads_of), exact, strict=True
    ):
        scale = true.norm().clamp_min(1e-30)
        rows.append([float((t.double() - true).norm() / scale) for t in (ours, theirs)])
    return rows


# --- sections ----------------------------------------------------------------------------------


def rand(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def ceilings() -> Iterator[Row]:
    for megabytes in (4.2, 8.4, 16.8, 33.6, 67.1, 1073.7):
        numel = int(megabytes * 1e6 / 2)
        count = max(2, min(16, int(400 / megabytes)))
        sources, targets = ([rand(numel) for _ in range(count)] for _ in range(2))
        pairs = list(zip(sources, targets, strict=True))
        times = gpu_times([lambda a=a, b=b: b.copy_(a) for a, b in pairs])
        yield {
            "case": f"copy {megabytes} MB",
            "gb_s": round(4 * numel / times["us"] / 1e3),
            **times,
        }
    a, b = rand(8192, 8192), rand(8192, 8192)
    times = gpu_times([lambda: a @ b], 20)
    yield {"case": "matmul 8192 bf16", "tflop_s": round(2 * 8192**3 / times["us"] / 1e6), **times}


NORM_SHAPES = [
    (1, 256, 256, 128), (1, 132, 256, 256), (1, 1, 256, 256, 64), (1, 128, 256, 256),
    (1, 256, 132, 256), (1, 256, 128, 256), (1, 256, 384), (1, 1024, 256, 64),
    (1, 256, 1024, 64), (1, 4, 256, 256, 64), (1, 256, 256), (200, 128, 1024),
]  # fmt: skip


def layer_norms(peers: bool) -> Iterator[Row]:
    for shape in NORM_SHAPES:
        for dtype in (BF16, torch.float32):
            C, numel = shape[-1], torch.Size(shape).numel()
            count = max(2, min(8, int(2e8 / (numel * dtype.itemsize))))

            def inputs(shape: Any = shape, dtype: Any = dtype, C: int = C, n: int = count) -> Any:
                return [
                    [rand(*shape, dtype=dtype), *(rand(C, dtype=torch.float32) for _ in "wb")]
                    for _ in range(n)
                ]  # fmt: skip

            case = f"{list(shape)} {str(dtype)[6:]}"
            source, target = (
                rand(numel, dtype=dtype),
                torch.empty(numel, dtype=dtype, device=DEVICE),
            )
            more = [(rand(numel, dtype=dtype), torch.empty_like(target)) for _ in range(count - 1)]
            pairs = [(source, target), *more]
            yield {
                "case": case, "who": "device copy",
                "forward": gpu_times([lambda a=a, b=b: b.copy_(a) for a, b in pairs]),
            }  # fmt: skip
            ops: dict[str, Callable[..., Tensor]] = {"evofeed": layer_norm}
            if peers:
                torch.compiler.reset()
                compiled = torch.compile(reference.layer_norm, dynamic=False)
                ops |= {"torch eager": reference.layer_norm, "torch.compile": compiled}
            calls = {who: calls_of(op, inputs(), [0, 1, 2]) for who, op in ops.items()}
            rows = {
                who: {"forward": gpu_times(forward), "both": gpu_times(full)}
                for who, (forward, full) in calls.items()
            }
            for n, clock in enumerate(("forward_wall", "both_wall")):
                for who, us in walls_us({who: both[n] for who, both in calls.items()}).items():
                    rows[who][clock] = us
            for who, row in rows.items():
                yield {"case": case, "who": who, **row, "peak_mb": peak_mb(calls[who][1][0])}


ATTENTION_SHAPES = {  # rows, positions, heads, width, bias
    "triangle 256": (256, 256, 4, 32, True),
    "triangle 384": (384, 384, 4, 32, True),
    "triangle 512": (512, 512, 4, 32, True),
    "row 128x256": (128, 256, 8, 32, True),
    "row 512x384": (512, 384, 8, 32, True),
    "column 128x256": (256, 128, 8, 32, False),
    "extra row 1024x256": (1024, 256, 8, 8, True),
    "template 256": (256, 256, 4, 16, True),
}


def sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor) -> Tensor:
    """Memory-efficient SDPA: bias and mask must be one tensor, expanded over rows."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (t[0].transpose(1, 2) for t in (q, k, v))
    extra = ((mask[0] - 1) * 1e9)[:, None, None, :].to(q.dtype)
    extra = extra.expand(-1, q.shape[1], q.shape[2], -1) if bias is None else extra + bias
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, extra)
    return out.transpose(1, 2)[None]


def flex_op() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)

    def op(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor) -> Tensor:
        shift = (mask[0] - 1) * 1e9

        def with_bias(score: Any, row: Any, head: Any, i: Any, j: Any) -> Any:
            return score + bias[0, head, i, j] + shift[row, j]  # type: ignore[index]

        def without(score: Any, row: Any, head: Any, i: Any, j: Any) -> Any:
            return score + shift[row, j]

        q, k, v = (t[0].transpose(1, 2) for t in (q, k, v))
        out = compiled(q, k, v, score_mod=without if bias is None else with_bias)
        return out.transpose(1, 2)[None]

    return op


def attention_cores(peers: bool) -> Iterator[Row]:
    for case, (R, N, H, D, has_bias) in ATTENTION_SHAPES.items():

        def inputs(R: int = R, N: int = N, H: int = H, D: int = D, b: bool = has_bias) -> Any:
            sets = []
            for _ in range(3):
                q, k, v = (rand(1, R, N, H, D) for _ in range(3))
                mask = (torch.rand(1, R, N, device=DEVICE) > 0.1).float()
                sets.append([q, k, v, rand(1, H, N, N) if b else None, mask])
            return sets

        grads = [0, 1, 2, 3] if has_bias else [0, 1, 2]
        flops = 4 * R * H * N * N * D

        head = {"case": case, "forward_flops": flops}
        ours = both_ways(biased_attention, inputs(), grads, wall=False)
        yield {**head, "who": "evofeed", **ours}
        if peers:
            peer_ops: dict[str, Any] = {"SDPA mem-efficient": sdpa}
            if N <= 256:
                peer_ops["torch eager"] = reference.biased_attention
            if D >= 16:
                peer_ops["flex_attention"] = flex_op()
            for who, op in peer_ops.items():
                torch.compiler.reset()
                try:
                    row = both_ways(op, inputs(), grads, wall=False)
                    yield {**head, "who": who, **row}
                except Exception as error:  # a peer that cannot run is a result too
                    yield {"case": case, "who": who, "failed": str(error)[:200]}


def softmaxes(peers: bool) -> Iterator[Row]:
    for R, H, N in ((256, 4, 256), (384, 4, 384), (512, 4, 512), (128, 8, 256)):

        def inputs(R: int = R, H: int = H, N: int = N) -> Any:
            return [[rand(1, R, H, N, N), rand(1, H, N, N)] for _ in range(2)]

        mask = (torch.rand(1, R, N, device=DEVICE) > 0.1).to(BF16)
        case = f"[1, {R}, {H}, {N}, {N}] bfloat16"

        def op(which: Any, mask: Tensor = mask) -> Callable[..., Tensor]:
            return lambda x, bias: which(x, mask, bias)

        copies = [(pair[0], torch.empty_like(pair[0])) for pair in inputs()]
        yield {
            "case": case, "who": "device copy",
            "forward": gpu_times([lambda a=a, b=b: b.copy_(a) for a, b in copies]),
        }  # fmt: skip
        del copies
        ops = {"evofeed": op(masked_softmax)}
        if peers:
            torch.compiler.reset()
            ops["torch eager"] = op(reference.masked_softmax)
            ops["torch.compile"] = torch.compile(op(reference.masked_softmax), dynamic=False)
        for who, function in ops.items():
            yield {"case": case, "who": who, **both_ways(function, inputs(), [0, 1], wall=False)}


def triangle_modules(peers: bool) -> Iterator[Row]:
    for outgoing, N in ((True, 256), (False, 256), (True, 384), (False, 384)):
        cls = TriangleMultiplicationOutgoing if outgoing else TriangleMultiplicationIncoming
        module = cls(128, 128).to(DEVICE, BF16)
        parameters = list(triangle_weights(module).tensors())
        case = f"{'outgoing' if outgoing else 'incoming'} {N}"

        def sets(N: int = N, parameters: Any = parameters) -> Any:
            mask = (torch.rand(1, N, N, device=DEVICE) > 0.1).to(BF16)
            return [[rand(1, N, N, 128), mask, *parameters] for _ in range(3)]

        def op(which: Any, outgoing: bool = outgoing) -> Callable[..., Tensor]:
            from evofeed.kernels.ops.triangle_multiplication.op import TriangleWeights

            return lambda z, mask, *w: which(z, TriangleWeights(*w), outgoing=outgoing, mask=mask)

        grads = [0, *range(2, 18)]
        ops = {"evofeed": op(triangle_multiplication)}
        if peers:
            torch.compiler.reset()
            ops["torch eager"] = op(reference.triangle_multiplication)
            ops["torch.compile"] = torch.compile(ops["torch eager"], dynamic=False)
        for who, function in ops.items():
            yield {"case": case, "who": who, **both_ways(function, sets(), grads)}


BLOCK = {
    "c_m": 256, "c_z": 128, "c_hidden_msa_att": 32, "c_hidden_opm": 32, "c_hidden_mul": 128,
    "c_hidden_pair_att": 32, "no_heads_msa": 8, "no_heads_pair": 4, "transition_n": 4,
    "msa_dropout": 0.15, "pair_dropout": 0.25,
}  # fmt: skip
BLOCKS = {  # class, sequences, residues, channels, blocks in the stack
    "evoformer 128x256": (EvoformerBlock, 128, 256, BLOCK, 4),
    "evoformer 512x384": (EvoformerBlock, 512, 384, BLOCK, 2),
    "extra MSA 1024x256": (
        ExtraMSABlock, 1024, 256, {**BLOCK, "c_m": 64, "c_hidden_msa_att": 8}, 2,
    ),
}  # fmt: skip


def randomise(module: nn.Module) -> nn.Module:
    """AF2 starts many weights at 0; a benchmark of zeros runs faster than the real thing."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    return module


class Stack:
    """Some blocks in a row, their inputs, and one training step through them."""

    def __init__(self, case: str, dtype: torch.dtype) -> None:
        cls, S, N, config, count = BLOCKS[case]
        self.count = count
        blocks = [randomise(cls(**config)).to(DEVICE, dtype) for _ in range(count)]
        self.blocks = nn.ModuleList(blocks)
        self.m = rand(1, S, N, config["c_m"]).requires_grad_()
        self.z = rand(1, N, N, 128).requires_grad_()
        self.masks = (
            (torch.rand(1, S, N, device=DEVICE) > 0.05).to(BF16),
            (torch.rand(1, N, N, device=DEVICE) > 0.05).to(BF16),
        )
        self.grads = (torch.randn_like(self.m), torch.randn_like(self.z))
        self.autocast = dtype is torch.float32

    def forward(self) -> tuple[Tensor, Tensor]:
        m, z = self.m, self.z
        with torch.autocast("cuda", BF16, enabled=self.autocast):
            for block in self.blocks:
                m, z = block(m, z, *self.masks)
        return m, z

    def step(self) -> None:
        torch.autograd.backward(self.forward(), self.grads)
        self.m.grad = self.z.grad = None
        for parameter in self.blocks.parameters():
            parameter.grad = None

    def inference(self) -> None:
        with torch.no_grad():
            self.forward()


def block_row(case: str, who: str, stack: Stack, with_graph: bool) -> Row:
    count = stack.count
    step, inference = gpu_times([stack.step], 10), gpu_times([stack.inference], 10)
    row: Row = {
        "case": case, "who": who, "blocks": count,
        "ms": round(step["us"] / count / 1e3, 3),
        "ms_q1_q3": [round(step[q] / count / 1e3, 3) for q in ("q1", "q3")],
        "forward_ms": round(inference["us"] / count / 1e3, 3),
        "wall_ms": round(wall_us([stack.step], 6) / count / 1e3, 3),
        "peak_mb": peak_mb(stack.step),
    }  # fmt: skip
    outputs = stack.forward()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    del outputs
    row["saved_mb_per_block"] = round((held - torch.cuda.memory_allocated()) / count / 1e6, 1)
    if with_graph:
        replay = graphed(stack.step)
        row["graph_ms"] = round(gpu_times([replay], 10)["us"] / count / 1e3, 3)
    return row


def blocks(peers: bool, only: str = "", compiled_too: bool = True) -> Iterator[Row]:
    for case in BLOCKS:
        if only and only not in case:
            continue
        for dtype in (BF16, torch.float32):
            kind = "bf16" if dtype is BF16 else "amp"
            torch.manual_seed(0)
            stack = Stack(case, dtype)
            if peers and kind == "bf16":
                yield block_row(case, "torch eager bf16", stack, False)
                if compiled_too:
                    torch.compiler.reset()
                    originals = list(stack.blocks)
                    compiled = [torch.compile(b, dynamic=False) for b in originals]
                    stack.blocks = compiled  # type: ignore[assignment]
                    parameters = [p for b in originals for p in b.parameters()]
                    stack.step = lambda s=stack, ps=parameters: compiled_step(s, ps)  # type: ignore[method-assign,misc]
                    yield block_row(case, "torch.compile bf16", stack, False)
                torch.manual_seed(0)
                stack = Stack(case, dtype)
            to_fused(stack.blocks)
            yield block_row(case, f"evofeed {kind}", stack, True)
            if kind == "bf16":
                yield {"case": case, "who": "evofeed kernels", "kernels": kernel_times(stack)}
            del stack
            torch.cuda.empty_cache()


def compiled_step(stack: Stack, parameters: list[nn.Parameter]) -> None:
    torch.autograd.backward(stack.forward(), stack.grads)
    stack.m.grad = stack.z.grad = None
    for parameter in parameters:
        parameter.grad = None


def kernel_times(stack: Stack) -> list[list[Any]]:
    """Microseconds and launches per block of every kernel in a step, longest first."""
    from torch.profiler import ProfilerActivity, profile

    stack.step()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        stack.step()
        torch.cuda.synchronize()
    totals: dict[str, list[float]] = {}
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = totals.setdefault(event.name[:90], [0.0, 0])
            entry[0] += event.device_time_total
            entry[1] += 1
    rows = [[n, round(t / stack.count, 1), c / stack.count] for n, (t, c) in totals.items()]
    return sorted(rows, key=lambda row: -row[1])[:45]


def optimizers(peers: bool) -> Iterator[Row]:
    N = 93_229_082
    for dtype in (torch.float32, BF16):
        buffers = [torch.randn(N, device=DEVICE) for _ in range(3)]
        fused = FusedAdamEMA(
            buffers[0], rand(N, dtype=dtype), buffers[1], buffers[1].square(), buffers[2],
            torch.empty(N, dtype=BF16, device=DEVICE), max_norm=0.1,
        )  # fmt: skip
        fused.rate.fill_(1e-3)
        case = f"93.2M, gradient {str(dtype)[6:]}"
        row = {"case": case, "who": "evofeed", **gpu_times([fused.step], 20)}
        yield row | {"wall": wall_us([fused.step], 20), "graph": gpu_times([graphed(fused.step)])}
    if not peers:
        return
    flat = torch.randn(N, device=DEVICE).requires_grad_()
    flat.grad = torch.randn(N, device=DEVICE)
    ema, low = torch.randn(N, device=DEVICE), torch.empty(N, dtype=BF16, device=DEVICE)
    adam = torch.optim.Adam([flat], lr=1e-3, fused=True, capturable=True)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_([flat], 0.1, foreach=True)
        adam.step()
        with torch.no_grad():
            ema.lerp_(flat, 0.001)
            low.copy_(flat)

    row = {"case": "93.2M, one flat tensor", "who": "torch fused Adam", **gpu_times([step], 20)}
    yield row | {"wall": wall_us([step], 20)}


def numerics() -> Iterator[Row]:
    from evofeed.kernels.ops.triangle_multiplication.op import TriangleWeights

    def show(case: str, rows: list[list[float]]) -> Row:
        worst = max((a / max(b, 1e-9) for a, b in rows), default=0.0)
        return {"case": case, "worst_ratio": round(worst, 3), "ours_and_torch": rows}

    for N, D in ((200, 32), (256, 32), (127, 16), (70, 64), (256, 8)):
        q, k, v = (rand(1, 32, N, 4, D) for _ in range(3))
        mask = (torch.rand(1, 32, N, device=DEVICE) > 0.1).to(BF16)
        mask[0, 3] = 0
        inputs = [q, k, v, rand(1, 4, N, N), mask]
        rows = three_way(biased_attention, reference.biased_attention, inputs, [0, 1, 2, 3])
        yield show(f"attention N={N} D={D}", rows)
    for shape in NORM_SHAPES[:3]:
        C = shape[-1]
        inputs = [rand(*shape), rand(C), rand(C)]
        yield show(
            f"layer norm {list(shape)}",
            three_way(layer_norm, reference.layer_norm, inputs, [0, 1, 2]),
        )
    module = randomise(TriangleMultiplicationOutgoing(128, 128)).to(DEVICE, BF16)
    inputs = [rand(1, 100, 100, 128), *(t.detach() for t in triangle_weights(module).tensors())]

    def op(which: Any) -> Any:
        return lambda z, *w: which(z, TriangleWeights(*w), outgoing=True, residual=True)

    rows = three_way(
        op(triangle_multiplication), op(reference.triangle_multiplication), inputs, list(range(17))
    )
    yield show("triangle multiplication 100", rows)
    yield show("block 32x64", block_numerics())


def block_numerics() -> list[list[float]]:
    """[ours, eager's] error of outputs and input gradients of a whole bf16 block, dropout off."""
    torch.manual_seed(0)
    exact = randomise(EvoformerBlock(**BLOCK)).to(DEVICE, torch.float64).eval()
    m, z = rand(1, 32, 64, 256), rand(1, 64, 64, 128)
    masks = [(torch.rand(1, n, 64, device=DEVICE) > 0.1).to(BF16) for n in (32, 64)]
    for parameter in exact.parameters():
        parameter.data = parameter.data.to(BF16).double()  # the weights all three share
    results = []
    for dtype in (torch.float64, BF16, None):
        block = exact.to(dtype or BF16)
        if dtype is None:
            to_fused(block)
        kind = dtype or BF16
        inputs = [t.to(kind).requires_grad_() for t in (m, z)]
        outs = block(*inputs, *(t.to(kind) for t in masks))
        ws = [torch.linspace(-1, 1, o.numel(), device=DEVICE).view_as(o).to(kind) for o in outs]
        loss = sum((o * w).sum() for o, w in zip(outs, ws, strict=True))
        grads = torch.autograd.grad(loss, inputs)
        results.append([(o - i).detach() for o, i in zip(outs, inputs, strict=True)] + list(grads))
    true, plain, ours = results
    return [
        [float((t.double() - e).norm() / e.norm()) for t in (a, b)]
        for a, b, e in zip(ours, plain, true, strict=True)
    ]


# --- running -----------------------------------------------------------------------------------


def run(sections: list[str], peers: bool, out: Path, only: str, compiled_too: bool) -> None:
    torch.manual_seed(0)
    makers: dict[str, Callable[[], Iterator[Row]]] = {
        "ceilings": ceilings, "numerics": numerics,
        "layer_norm": lambda: layer_norms(peers), "attention": lambda: attention_cores(peers),
        "softmax": lambda: softmaxes(peers), "triangle": lambda: triangle_modules(peers),
        "blocks": lambda: blocks(peers, only, compiled_too),
        "optimizer": lambda: optimizers(peers),
    }  # fmt: skip
    repeats = "40 calls (10 for blocks), median and quartiles"
    result = load(out)
    for section in sections or list(makers):
        rows: list[Row] = []
        result[section] = {"environment": environment("kernels.py", repeats), "rows": rows}
        start = time.time()
        try:
            for row in makers[section]():
                rows.append(row)
                save(out, result)
                print(
                    section,
                    json.dumps({k: v for k, v in row.items() if k != "kernels"}),
                    flush=True,
                )
                for line in row.get("kernels", [])[:28]:
                    print("   ", *line, flush=True)
            result[section]["seconds"] = round(time.time() - start, 1)
        except Exception:  # one section must not cost the others their device time
            traceback.print_exc()
            rows.append({"case": "failed", "failed": traceback.format_exc()[-1500:]})
        print(f"{section}: {time.time() - start:.0f} s", flush=True)
        save(out, result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels.json"))
    parser.add_argument("--sections", nargs="*", default=[])
    parser.add_argument("--only", default="", help="blocks: only cases containing this text")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-compiled-blocks", action="store_true", help="a minute each")
    parser.add_argument("--merge", type=Path, nargs="+", help="put their sections into --out")
    parser.add_argument("--table", type=Path, help="print a result file as a table and stop")
    args = parser.parse_args()
    if args.merge:
        print("merged:", *merge(args.out, args.merge))
        return
    if args.table:
        print(table(args.table))
        return
    run(args.sections, not args.no_peers, args.out, args.only, not args.no_compiled_blocks)


if __name__ == "__main__":
    main()
