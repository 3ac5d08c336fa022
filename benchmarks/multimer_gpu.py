"""The model of complexes on a GPU: a step beside OpenFold's, fused modules, chain assignment.

    PYTHONPATH=src python benchmarks/multimer_gpu.py --out multimer.json --openfold FOLDER \\
        --golden FOLDER --parts step openfold modules assignment

`step` times `train_step.py`'s cases at the multimer preset's shapes. `openfold` runs OpenFold's own
model, loss, Adam, clipping and moving average on the same batch with the same weights; FOLDER holds
a checkout's `openfold` package, and what it imports must be importable. Its CUDA attention kernel
is replaced by plain torch where it cannot be loaded. `modules` compares every recorded module and
its gradients, fused, in float32, with the recording in float64, beside plain torch. `assignment`
times `align_chains` on real sizes. Proof on a laptop: `--preset tiny_multimer --device cpu`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.train_step import Case, Clock, Step, _spread, batch_of, machine

from evofeed.trainer.losses.permutation import align_chains

PARTS = ("forward", "backward", "optimizer")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--preset", default="multimer")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--parts", nargs="+", default=["step", "assignment"])
    parser.add_argument(
        "--cases", nargs="+", default=["fused:bf16:graph+ckpt:0", "fused:bf16:graph:0"]
    )
    parser.add_argument("--openfold", type=Path)
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "multimer_gpu",
        "machine": machine(options),
        "preset": options.preset,
        "repeats": options.repeats,
    }
    for part in options.parts:
        began = time.perf_counter()
        result[part] = {
            "step": ours, "openfold": openfolds, "modules": modules, "assignment": assignment,
        }[part](options)  # fmt: skip
        result[f"{part}_seconds"] = round(time.perf_counter() - began, 1)
        print(json.dumps({part: result[part]}), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _emptied(device: torch.device) -> None:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def ours(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Our step, one row a case; what does not fit says so."""
    rows = []
    device = torch.device(options.device)
    for text in options.cases:
        case = Case.parse(text)
        _emptied(device)
        row: dict[str, Any] = {"case": text}
        try:
            step = Step(case, options.preset, device)
            row |= step.measure(batch_of(options.preset, case.recycles, device), 2, options.repeats)
            del step
        except torch.OutOfMemoryError as error:
            row["error"] = str(error).splitlines()[0]
        rows.append(row)
    return rows


def openfolds(options: argparse.Namespace) -> dict[str, Any]:
    """OpenFold's step in bfloat16 autocast, blocks recomputed as its training does."""
    from evofeed.trainer import AlphaFold, AlphaFoldLoss
    from evofeed.trainer.formats.openfold_config import loss_config_from_openfold

    device = torch.device(options.device)
    _emptied(device)
    theirs = _openfold(options)
    preset = __import__("evofeed.trainer", fromlist=["x"])
    plain = AlphaFold(getattr(preset, options.preset)().model).to(device).train()
    theirs.model.load_state_dict(plain.state_dict())
    batch = batch_of(options.preset, 0, device)
    wanted, _ = (
        AlphaFoldLoss(loss_config_from_openfold(theirs.loss_settings))(plain(batch), batch)
        if options.device == "cpu"
        else (None, None)
    )
    del plain
    _emptied(device)
    raw = {name: _trailing(name, value) for name, value in batch.items()}
    found: dict[str, Any] = {"attention_core": theirs.attention}
    if wanted is not None:
        found["loss_fp32"] = [wanted.item(), _their_loss(theirs, raw, batch).item()]
    optimizer = torch.optim.Adam(theirs.model.parameters(), lr=1e-3, eps=1e-5, foreach=True)
    average = [p.detach().clone() for p in theirs.model.parameters()]
    rows = []
    for number in range(1 + options.repeats):
        clock = Clock(device)
        clock.mark()
        with torch.autocast(device.type, torch.bfloat16):
            loss = _their_loss(theirs, raw, batch)
        clock.mark()
        loss.backward()
        clock.mark()
        parameters = list(theirs.model.parameters())
        torch.nn.utils.clip_grad_norm_(parameters, 0.1, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(average, [p.detach() for p in parameters], 0.001)
        clock.mark()
        if number:
            rows.append(clock.milliseconds())
        else:
            clock.milliseconds()
            found["loss"] = loss.item()
    found["step_ms"] = _spread([sum(row) for row in rows])
    found |= {f"{part}_ms": _spread([row[i] for row in rows]) for i, part in enumerate(PARTS)}
    if device.type == "cuda":
        found["peak_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return found


def _trailing(name: str, value: Tensor) -> Tensor:
    from evofeed.trainer.model.alphafold import RECYCLE_FEATURES

    return value.movedim(0, -1) if name in RECYCLE_FEATURES else value[..., None]


def _their_loss(theirs: Any, raw: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
    outputs = theirs.model(dict(raw))
    last = {name: value[..., -1] for name, value in raw.items()}
    loss: Tensor = theirs.loss(outputs, last)
    return loss.mean()


def _openfold(options: argparse.Namespace) -> Any:
    """OpenFold's model and loss, sized as the preset."""
    package = types.ModuleType("openfold")
    package.__path__ = [str(options.openfold / "openfold")]
    sys.modules["openfold"] = package
    config = importlib.import_module("openfold.config").model_config(
        "model_1_multimer_v3", train=True
    )
    for stack in (config.model.evoformer_stack, config.model.template.template_pair_stack):
        stack.blocks_per_ckpt = 1  # as its training configuration says by reference
    config.model.extra_msa.extra_msa_stack.ckpt = True
    if options.preset != "multimer":
        _shrink(config, options.preset)
    primitives = importlib.import_module("openfold.model.primitives")
    core = sys.modules.get("attn_core_inplace_cuda")
    attention = "CUDA kernel"
    if not hasattr(core, "forward_"):
        primitives.attention_core = _plain_attention
        attention = "plain torch"
    model = importlib.import_module("openfold.model.model").AlphaFold(config)
    loss = importlib.import_module("openfold.utils.loss").AlphaFoldLoss(config.loss)
    return types.SimpleNamespace(
        model=model.to(options.device).train(), loss=loss, loss_settings=config.loss,
        attention=attention,
    )  # fmt: skip


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, *biases: Tensor | None) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):
        logits = torch.matmul(q, k.transpose(-1, -2))
        for bias in biases:
            if bias is not None:
                logits += bias
        return torch.matmul(torch.softmax(logits, dim=-1), v.to(logits.dtype))


def _shrink(config: Any, preset: str) -> None:
    """OpenFold's configuration with the small preset's sizes, for the proof on a CPU."""
    ours = getattr(__import__("evofeed.trainer", fromlist=["x"]), preset)().model
    model = config.model
    sizes = {"c_m": ours.c_m, "c_z": ours.c_z, "c_s": ours.c_s}
    for section in (
        model.input_embedder, model.recycling_embedder, model.evoformer_stack,
        model.structure_module, model.template, model.heads.distogram, model.heads.tm,
        model.heads.masked_msa, model.heads.experimentally_resolved,
    ):  # fmt: skip
        section.update({k: v for k, v in sizes.items() if k in section})

    def fields(value: Any) -> dict[str, Any]:
        return {n: getattr(value, n) for n in value.__dataclass_fields__}

    model.evoformer_stack.update(
        {k: v for k, v in fields(ours.evoformer).items() if k in model.evoformer_stack}
    )
    stack = model.extra_msa.extra_msa_stack
    stack.update({k: v for k, v in fields(ours.extra_msa).items() if k in stack})
    stack.update({"c_m": ours.extra_msa.c_e, "c_z": ours.c_z})
    model.extra_msa.extra_msa_embedder.update({"c_out": ours.extra_msa.c_e})
    model.structure_module.update(
        {k: v for k, v in fields(ours.structure_module).items() if k in model.structure_module}
    )
    template = fields(ours.template)
    model.template.c_t = ours.template.c_t
    pair = model.template.template_pair_stack
    pair.update({k: v for k, v in template.items() if k in pair and k != "inf"})
    model.template.template_pair_embedder.update({"c_in": ours.c_z, "c_out": ours.template.c_t})
    model.template.template_single_embedder.update({"c_out": ours.c_m})
    model.heads.lddt.update({"c_in": ours.c_s, "c_hidden": ours.c_hidden_plddt})


def modules(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Largest error of every recorded module, fused and plain, in float32 on this device."""
    from tests.trainer.model import golden_case, golden_multimer

    from evofeed.kernels import to_fused
    from evofeed.kernels.swap.swap import SwapReport

    device = options.device
    rows = []
    for path in sorted((options.golden / "multimer" / "model").glob("*.npz")):
        kind = str(golden_case.Case.read(path, "64").meta["kind"])
        if kind not in golden_multimer.MULTIMER_RUNNERS or kind.startswith("loss."):
            continue
        row: dict[str, Any] = {"case": path.stem}
        for how in ("torch", "fused"):
            report = SwapReport()

            def prepare(module: Any, how: str = how, report: Any = report) -> None:
                module.to(device)
                if how == "fused":
                    to_fused(module, report)

            case = golden_case.Case.read(path, "", prepare)
            truth = golden_case.Case.read(path, "64")
            inputs = {
                name: value.detach().to(device).requires_grad_(value.requires_grad)
                for name, value in case.inputs().items()
            }
            masks = {n: v for n, v in case.arrays.items() if n.startswith("dropmask")}
            if masks:  # replayed masks are the CPU's
                continue
            module, outputs = golden_multimer.MULTIMER_RUNNERS[kind](case, inputs)
            if module is None:
                continue
            total = sum((outputs[n] * c.to(device)).sum() for n, c in case.tensors("cot").items())
            if isinstance(total, Tensor) and total.requires_grad:
                total.backward()
            got = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            row[how] = _errors(truth, outputs, got)
            row["swapped"] = len(report.swapped)
        if "fused" in row:
            rows.append(row)
    return rows


def _errors(truth: Any, outputs: dict[str, Tensor], grads: dict[str, Tensor]) -> dict[str, float]:
    from tests.trainer.model.golden_case import _relative

    out = [
        _relative(outputs[n].detach().cpu().numpy(), want, truth.arrays.get(f"valid.{n}"))
        for n, want in truth.group("out64").items()
        if n in outputs
    ]
    stored = truth.group("gparam64")
    largest = max((float(abs(want).max()) for want in stored.values()), default=0.0)
    zeros = truth.meta.get("analytic_zero_grads", ())
    grad = [
        float(abs(grads[n].cpu().numpy() - want).max())
        / max(float(abs(want).max()), 1e-3 * largest, 1e-9)
        for n, want in stored.items()
        if n in grads and n not in zeros
    ]
    return {"out": max(out, default=0.0), "gparam": max(grad, default=0.0)}


def assignment(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of `align_chains`, run as it is and, on a GPU, recorded."""
    device = torch.device(options.device)
    rows = []
    for batch, copies, length in ((1, 2, 320), (1, 4, 160), (1, 6, 106), (4, 6, 106), (1, 16, 40)):
        chains = torch.arange(copies, device=device).repeat_interleave(length).expand(batch, -1)
        index = torch.arange(length, device=device).repeat(copies).expand(batch, -1)
        ids = {
            "asym_id": chains + 1,
            "entity_id": torch.ones_like(chains),
            "residue_index": index.contiguous(),
        }
        torch.manual_seed(0)
        true = 20 * torch.randn(batch, copies * length, 3, device=device)
        mask = torch.ones(batch, copies * length, device=device)
        pred = true.unflatten(1, (copies, length)).roll(1, dims=1).flatten(1, 2)

        def run(pred: Tensor = pred, mask: Tensor = mask, ids: dict[str, Tensor] = ids,
                true: Tensor = true, copies: int = copies) -> Any:  # fmt: skip
            return align_chains(pred, mask, ids, true, mask, ids, no_chains=copies)

        right = bool(((run().chain - torch.arange(copies, device=device)) % copies
                      == copies - 1).all())  # fmt: skip
        row: dict[str, Any] = {"batch": batch, "copies": copies, "residues": copies * length}
        row |= {"right": right, "eager_ms": _timed(run, device, options.repeats)}
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")  # a wait for the host would raise
            run()
            torch.cuda.set_sync_debug_mode("default")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            row["recorded_ms"] = _timed(graph.replay, device, options.repeats)
        rows.append(row)
    return rows


def _timed(run: Any, device: torch.device, repeats: int) -> dict[str, float]:
    run()
    found = []
    for _ in range(max(repeats, 10)):
        clock = Clock(device)
        clock.mark()
        run()
        clock.mark()
        found += clock.milliseconds()
    return {**_spread(found), "mean": round(statistics.mean(found), 3)}


if __name__ == "__main__":
    main()
