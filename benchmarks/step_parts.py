"""Where the device time of one recorded training step goes, by part of the model.

    PYTHONPATH=src python benchmarks/step_parts.py --out parts.json
    PYTHONPATH=src python benchmarks/step_parts.py --preset tiny --device cpu    # names only

The step of `train_step.py` (fused, bf16) is recorded as CUDA graphs with a marker kernel
wherever the forward or the backward pass enters or leaves a part of the model; the
profiler's time stamps of one replay then say for each part how long it took, how long
kernels ran in it, how many, and which took longest. The step itself is timed without the
profiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from train_step import PRESETS, Case, Step, batch_of, result_of, times_of, usual_step  # noqa: E402

PARTS = (
    "input_embedder", "recycling_embedder", "template_embedder.template_pair_embedder",
    "template_embedder.template_pair_stack", "template_embedder.template_pointwise_att",
    "template_embedder", "extra_msa_embedder", "extra_msa_stack", "evoformer",
    "structure_module.ipa", "structure_module.transition", "structure_module.angle_resnet",
    "structure_module", "aux_heads",
)  # fmt: skip
START = "start"
_MARKER = "spin_kernel"  # torch.cuda._sleep's


class Marks:
    """Names of the markers in the order they were recorded, and where we are now."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.inside: list[str] = ["rest"]

    def put(self, name: str) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self.names.append(name)
            torch.cuda._sleep(1)

    def enter(self, name: str) -> None:
        self.inside.append(name)
        self.put(f"forward {name}")

    def leave(self) -> str:
        self.inside.pop()
        self.put(f"forward {self.inside[-1]}")
        return self.inside[-1]


class Boundary(torch.autograd.Function):
    """Identity whose backward pass puts a marker; all tensors pass through one node."""

    @staticmethod
    def forward(ctx: Any, marks: Marks, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.marks, ctx.name = marks, name
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        ctx.marks.put(f"backward {ctx.name}")
        return None, None, *gradients


def with_boundary(marks: Marks, name: str, value: Any) -> Any:
    """`value` with every tensor that has a gradient sent through one boundary."""
    leaves, spec = tree_flatten(value)
    at = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.requires_grad]
    if at:
        for i, new in zip(at, Boundary.apply(marks, name, *(leaves[i] for i in at)), strict=True):
            leaves[i] = new
    return tree_unflatten(leaves, spec)


def mark_parts(model: nn.Module, marks: Marks) -> None:
    """Markers around every call of `PARTS`, forward and backward."""

    def hooks(name: str) -> tuple[Any, Any]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            # Backward leaves the part when the gradients of what came in are there.
            new = with_boundary(marks, marks.inside[-1], (args, kwargs))
            marks.enter(name)
            return new

        def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
            result = with_boundary(marks, name, result)
            marks.leave()
            return result

        return before, after

    modules = dict(model.named_modules())
    for name in PARTS:
        before, after = hooks(name)
        modules[name].register_forward_pre_hook(before, with_kwargs=True)
        modules[name].register_forward_hook(after, with_kwargs=True)


class MarkedStep(Step):
    """A step that marks its parts while it is recorded."""

    def __init__(self, case: Case, preset: str, device: torch.device) -> None:
        super().__init__(case, preset, device)
        self.marks = Marks()
        mark_parts(self.model, self.marks)
        for name in ("_fape", "_violation"):
            setattr(self.loss, name, self._marked(f"losses{name}", getattr(self.loss, name)))
        self.loss = self._marked("losses", self.loss)
        self.optimizer.gather = self._before("optimizer", self.optimizer.gather)

    def _marked(self, name: str, function: Any) -> Any:
        def marked(outputs: Any, batch: Any) -> Any:
            outputs = with_boundary(self.marks, self.marks.inside[-1], outputs)
            self.marks.enter(name)
            found = with_boundary(self.marks, name, function(outputs, batch))
            self.marks.leave()
            return found

        return marked

    def _before(self, name: str, function: Any) -> Any:
        def marked(*args: Any) -> Any:
            if self.device.type == "cuda":
                torch.cuda._sleep(1)
            return function(*args)

        return marked

    def _forward(self, batch: dict[str, Tensor], previous: Any = None) -> tuple[Tensor, Tensor]:
        self.marks.put(START)
        return super()._forward(batch, previous)


def kernels_of(step: MarkedStep, batch: dict[str, Tensor]) -> list[tuple[str, int, int]]:
    """Name, start and duration (ns) of every kernel of one step, in order."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        step.run(batch, 9)
        torch.cuda.synchronize()
    events = found.profiler.kineto_results.events()
    rows = [
        (e.name(), e.start_ns(), e.duration_ns())
        for e in events
        if e.device_type() == DeviceType.CUDA
    ]
    return sorted(rows, key=lambda row: row[1])


def by_part(
    kernels: Sequence[tuple[str, int, int]], names: Sequence[str], keep: int
) -> list[dict[str, Any]]:
    """Milliseconds from each marker to the next, summed by name; longest first."""
    parts: dict[str, dict[str, Any]] = {}
    remaining, part = iter(names), "copies"
    for (kernel, start, duration), following in zip(kernels, [*kernels[1:], None], strict=True):
        if _MARKER in kernel:
            part = next(remaining, "copies")
        entry = parts.setdefault(part, {"ms": 0.0, "busy_ms": 0.0, "launches": 0, "kernels": {}})
        until = following[1] if following else start + duration
        entry["ms"] += (until - start) / 1e6
        if _MARKER not in kernel:
            entry["busy_ms"] += duration / 1e6
            entry["launches"] += 1
            own = entry["kernels"].setdefault(kernel[:110], [0.0, 0])
            own[0] += duration / 1e6
            own[1] += 1
    for entry in parts.values():
        longest = sorted(entry["kernels"].items(), key=lambda item: -item[1][0])[:keep]
        entry["kernels"] = [
            {"name": name, "ms": round(ms, 4), "launches": count} for name, (ms, count) in longest
        ]
    rows = [{"part": name, **entry} for name, entry in parts.items()]
    return sorted(rows, key=lambda row: -row["ms"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--preset", choices=list(PRESETS), default="initial_training")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--top", type=int, default=6, help="kernels to print of each part")
    parser.add_argument("--keep", type=int, default=12, help="kernels to write of each part")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    step = MarkedStep(usual_step(device), options.preset, device)
    batch = batch_of(options.preset, 0, device)
    times = times_of(step, batch, options.repeats)
    if not times:
        return
    names = step.marks.names
    # The pass without gradient is recorded first and not replayed: its markers do not count.
    last = len(names) - 1 - names[::-1].index(START)
    kernels = kernels_of(step, batch)
    rows = by_part(kernels, ["forward rest", *names[last + 1 :], "optimizer"], options.keep)
    result = result_of(__file__, options) | {
        "step_ms": round(statistics.median(times), 2),
        "profiled_ms": round(sum(row["ms"] for row in rows), 2),
        "parts": rows,
    }
    for row in rows:
        print(f"{row['part']:55} {row['ms']:8.3f} ms busy {row['busy_ms']:8.3f} {row['launches']}")
        for kernel in row["kernels"][: options.top]:
            print(f"      {kernel['ms']:8.3f} x{kernel['launches']:<4} {kernel['name']}")
    print(f"step {result['step_ms']} ms, profiled {result['profiled_ms']} ms", flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
