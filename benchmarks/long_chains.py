"""Inference of the whole model on ever longer chains: time, memory, and whether it holds.

    PYTHONPATH=src python benchmarks/long_chains.py --sizes 1024 2048 4096 --out one.json
    PYTHONPATH=src python benchmarks/long_chains.py --sizes 2048 4096 --cards 2 --out two.json
    PYTHONPATH=src python benchmarks/long_chains.py --equal 1024 --cards 2 --out equal.json

One pass, 512 + 1,024 rows, 4 templates, bfloat16 under `no_grad`. The model is `evofeed
predict`'s: fused, in parts above 1,024 residues, with `--cards` shared by as many. Sizes go one
after the other in one process; where it dies the next size gets a new one. The peak of memory
does not depend on the number of blocks: `--blocks 3` finds the longest chain in little time.
Where the chain is in parts, `stages` are the parts of the model, each with its own peak of memory,
and `block_seconds` those of the Evoformer's blocks, one by one;
`whole_seconds` is what all 48 would take: the pass and the last block's seconds for each left out.

`--equal`: the chain in parts (and shared) beside the same at once on one card: by how much pairs,
single representation and distances differ, and by how much bfloat16 differs from float32.
Weights are AF2's first ones and noise, for those would leave pairs as they are.
Proof on a laptop: `--device cpu --model tiny --sizes 16 24`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evofeed.trainer import AlphaFold, initial_training, tiny
from evofeed.trainer.parallel import rows
from evofeed.trainer.predict.prediction import prepare_model
from evofeed.trainer.run.distributed import World, join_world

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.long_chain_times import Blocks, Stages
from benchmarks.recording import about, save
from tests.trainer.synthetic_batch import synthetic_batch

WARM = 1104  # residues: what long chains run, in little time; a multiple of 16, as they are
ALL_BLOCKS = 48  # of AF2's Evoformer
SHORT = 6.0  # seconds: a pass as short is repeated
ROWS = {"initial_training": (512, 1024, 4), "tiny": (8, 16, 2)}
FOUND = "found "


def config_of(options: argparse.Namespace) -> Any:
    config = {"initial_training": initial_training, "tiny": tiny}[options.model]().model
    if options.blocks:
        config = replace(config, evoformer=replace(config.evoformer, no_blocks=options.blocks))
    return config


def batch_of(options: argparse.Namespace, size: int, device: torch.device) -> dict[str, Tensor]:
    seq, extra, templates = ROWS[options.model]
    return synthetic_batch(
        num_res=size, num_seq=seq, num_extra_seq=extra, num_templates=templates, device=device
    )


def plain_model(options: argparse.Namespace, device: torch.device) -> AlphaFold:
    """With AF2's first weights, or noise on them so that every update counts."""
    torch.manual_seed(0)
    with device, torch.no_grad():
        model = AlphaFold(config_of(options)).eval()
        if options.equal:
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def half(device: torch.device) -> Any:
    if device.type != "cuda":
        return nullcontext()
    return torch.autocast("cuda", torch.bfloat16)


def ours(options: argparse.Namespace, world: World) -> Callable[[int], Callable[[], Any]]:
    """Gives for a size what predicts such a chain."""
    model = None

    def prepare(size: int) -> Callable[[], Any]:
        nonlocal model
        if model is None:
            model = prepare_model(plain_model(options, world.device), max(options.one), world.axis)
        batch, predict = batch_of(options, size, world.device), model

        def run() -> Any:
            with torch.no_grad(), half(world.device):
                return predict(batch)

        return run

    return prepare


def timed(run: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    outputs = run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, outputs


def once(
    size: int, prepare: Callable[[int], Callable[[], Any]], device: torch.device,
    stages: Stages | None,
) -> Any:  # fmt: skip
    """A pass at one size, and its row; short ones three times more."""
    run = prepare(size)
    if stages:
        stages.found = {}  # of what came before
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, outputs = timed(run, device)
    found: dict[str, Any] = {"residues": size, "seconds": round(seconds, 3)}
    if device.type == "cuda":
        gib = torch.cuda.max_memory_allocated() / 2**30
        found["peak_gib"] = round(max(gib, stages.peak() if stages else 0.0), 2)
    names = ("msa", "pair", "single", "final_atom_positions", "distogram_logits", "plddt")
    found["finite"] = all(_finite(outputs[name]) for name in names)
    del outputs
    if stages and stages.found:
        found["stages"] = stages.found
    if seconds < SHORT:
        again = sorted(round(timed(run, device)[0], 3) for _ in range(3))
        found |= {"seconds": again[1], "fastest": again[0], "slowest": again[2]}
    return found


def _finite(x: Tensor) -> bool:
    """In parts: a mask of the pairs of a long chain would take its share of the memory."""
    rows_of = x.flatten(0, -2)
    return all(bool(torch.isfinite(part).all()) for part in rows_of.split(1 << 20))


def child(options: argparse.Namespace) -> None:
    """Sizes one after the other, a line each."""
    with join_world(None if options.device == "cuda" else options.device, None) as world:

        def say(found: dict[str, Any]) -> None:
            if world.is_first:
                print(FOUND + json.dumps(found), flush=True)

        if options.equal:
            for found in equal(options, world):
                say(found)
            return
        prepare = ours(options, world)
        on_gpu = world.device.type == "cuda"
        blocks = Blocks(config_of(options).evoformer.no_blocks) if on_gpu else None
        stages = Stages() if on_gpu else None
        first, _ = timed(prepare(min(options.one[0], WARM)), world.device)  # compiles
        for size in options.one:
            try:
                if blocks:
                    blocks.seconds()  # of what came before
                found = once(size, prepare, world.device, stages)
            except torch.OutOfMemoryError as error:
                say({"residues": size, "error": str(error).splitlines()[0]})
                if world.size > 1:
                    raise  # the others wait for this one
                continue
            found |= {"first_seconds": round(first, 2)} if size == options.one[0] else {}
            if blocks and (each := blocks.seconds()):
                found["block_seconds"] = each
            if options.blocks:
                found["evoformer_blocks"] = options.blocks
                if "block_seconds" in found:
                    left = ALL_BLOCKS - options.blocks
                    found["whole_seconds"] = round(found["seconds"] + left * each[-1], 1)
            say(found)


def equal(options: argparse.Namespace, world: World) -> Any:
    """In parts and shared beside at once, in bfloat16 and in float32."""
    size, device = options.equal, world.device
    batch = batch_of(options, size, device)
    wholes: dict[str, dict[str, Tensor]] = {}
    for precision in ("float32", "bfloat16"):
        made: dict[str, dict[str, Tensor]] = {}
        for way in ("whole", "parts"):
            model = plain_model(options, device)
            if way == "parts":
                _parts_times(1 / options.smaller)
                model = prepare_model(model, 1 << 20, world.axis)
            else:
                model = prepare_model(model, 0)
            with torch.no_grad(), half(device) if precision == "bfloat16" else nullcontext():
                outputs = model(batch)
            if way == "whole" and world.axis is not None:  # else each rank has its rows
                outputs["pair"] = world.axis.part(outputs["pair"], -3)
            made[way] = compared(outputs)
            del model, outputs
            if way == "parts":
                _parts_times(options.smaller)
        wholes[precision] = made["whole"]
        yield {
            "equal": size, "precision": precision, "parts_smaller": options.smaller,
            "evoformer_blocks": config_of(options).evoformer.no_blocks,
            "parts_from_whole": _off(made["parts"], made["whole"]),
        }  # fmt: skip
    yield {
        "equal": size, "bfloat16_from_float32": _off(wholes["bfloat16"], wholes["float32"]),
    }  # fmt: skip


def _parts_times(factor: float) -> None:
    rows.MEMORY_SHARE *= factor
    rows.CPU_BYTES = int(rows.CPU_BYTES * factor)
    rows._budget.cache_clear()


def compared(outputs: dict[str, Any]) -> dict[str, Tensor]:
    atoms = outputs["final_atom_positions"].float()[0, :, 1]
    names = ("pair", "single", "distogram_logits", "plddt")
    found = {name: outputs[name].float() for name in names}
    return found | {"distances": torch.cdist(atoms, atoms)}


def _off(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """Root mean square of the difference over that of the values."""
    return {
        name: ((ours[name] - x).square().mean() / x.square().mean()).sqrt().item()
        for name, x in theirs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[])
    parser.add_argument("--model", choices=list(ROWS), default="initial_training")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for everything")
    parser.add_argument("--blocks", type=int, help="of the Evoformer: memory needs but two")
    parser.add_argument("--cards", type=int, default=1, help="GPUs that share the chain")
    parser.add_argument("--equal", type=int, default=0, help="compare at this size")
    parser.add_argument("--smaller", type=float, default=16, help="parts of --equal, times so much")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        child(options)
        return
    found: list[dict[str, Any]] = []
    result = about("torch", device=options.device) | {"cards": options.cards, "rows": found}

    def keep(row: dict[str, Any]) -> None:
        found.append(row)
        print(json.dumps(row), flush=True)
        if options.out:  # a later size that dies loses nothing
            save(options.out, result)

    left, until = options.sizes or [options.equal], time.monotonic() + options.limit
    while left:
        before = len(found)
        trouble = children(options, left, until, keep)
        done = {row.get("residues") for row in found[before:]}
        rest = [size for size in left if size not in done]
        if options.equal or (not trouble and not rest):
            break
        if time.monotonic() >= until:
            for size in rest:
                keep({"residues": size, "error": f"not within {options.limit} s"})
            break
        if rest and not any("error" in row for row in found[before:]):
            keep({"residues": rest[0], "error": trouble[-2000:]})
            rest = rest[1:]
        left = rest


def children(
    options: argparse.Namespace, sizes: list[int], until: float, keep: Callable[[Any], None]
) -> str:
    """Sizes in a process of their own, on every card; what it complained of if it died."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    start = [*ranks, str(options.cards)] if options.cards > 1 else []
    words = [*sys.argv[1:], "--one", *map(str, sizes)]
    process = subprocess.Popen(
        [sys.executable, *start, __file__, *words], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    timer = threading.Timer(max(0.0, until - time.monotonic()), process.terminate)
    timer.start()
    complaints: list[str] = []
    assert process.stderr is not None and process.stdout is not None
    reader = threading.Thread(target=lambda: complaints.extend(process.stderr))  # type: ignore[arg-type]
    reader.start()
    for line in process.stdout:
        if line.startswith(FOUND):
            keep(json.loads(line[len(FOUND) :]))
        else:
            print(line, end="", flush=True)
    code = process.wait()
    timer.cancel()
    reader.join()
    return "".join(complaints).strip() or "killed" if code else ""


if __name__ == "__main__":
    main()
