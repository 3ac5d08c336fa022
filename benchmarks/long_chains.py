"""Fused inference of the whole model on ever longer chains: time, memory, and whether it holds.

    PYTHONPATH=src python benchmarks/long_chains.py --sizes 512 1024 2048 3072 4096 \
        --out benchmarks/results/long_chains_h200.json
    PYTHONPATH=src python benchmarks/long_chains.py --sizes 2048 4096 --cards 4 --out four.json

One pass, 512 + 1,024 rows, 4 templates, bfloat16 under `no_grad`, every size in a process of
its own: after an illegal access a process can do nothing more. With `--cards` that many share
the chain; the model is `evofeed predict`'s. From about 2,048 residues on,
tensors hold more than 2^31 numbers. The memory's peak does not depend on the number of blocks:
`--blocks 2` finds the longest chain in little time.
Proof on a laptop: `--device cpu --model tiny --sizes 16 24`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evofeed.trainer import AlphaFold, initial_training, tiny
from evofeed.trainer.predict.prediction import spread
from evofeed.trainer.run.distributed import World, join_world

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.train_step import command
from tests.trainer.synthetic_batch import synthetic_batch

WARM = 1100  # residues: what long chains run, in little time
ROWS = {"initial_training": (512, 1024, 4), "tiny": (8, 16, 2)}


def once(size: int, model_name: str, blocks: int | None, world: World) -> dict[str, Any]:
    """One pass at one size."""
    device = world.device.type
    config = {"initial_training": initial_training, "tiny": tiny}[model_name]().model
    if blocks:
        config = replace(config, evoformer=replace(config.evoformer, no_blocks=blocks))
    torch.manual_seed(0)
    with world.device:
        model = spread(AlphaFold(config).eval(), size, world.axis)
    seq, extra, templates = ROWS[model_name]

    def run(num_res: int) -> tuple[float, dict[str, Any]]:
        batch = synthetic_batch(
            num_res=num_res, num_seq=seq, num_extra_seq=extra, num_templates=templates,
            device=world.device,
        )  # fmt: skip
        half = torch.autocast(device, torch.bfloat16) if device == "cuda" else nullcontext()
        with torch.no_grad(), half:
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            outputs = model(batch)
            if device == "cuda":
                torch.cuda.synchronize()
        return time.perf_counter() - began, outputs

    first, _ = run(min(size, WARM))  # compiles
    seconds, outputs = run(size)
    found: dict[str, Any] = {"residues": size, "seconds": seconds, "first_seconds": first}
    found |= {"evoformer_blocks": blocks} if blocks else {}
    if device == "cuda":
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    names = ("msa", "pair", "single", "final_atom_positions", "distogram_logits", "plddt")
    found["finite"] = all(bool(torch.isfinite(outputs[name]).all()) for name in names)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048, 3072])
    parser.add_argument("--model", choices=list(ROWS), default="initial_training")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one size")
    parser.add_argument("--blocks", type=int, help="of the Evoformer: memory needs but two")
    parser.add_argument("--cards", type=int, default=1, help="GPUs that share the chain")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with join_world(None if options.device == "cuda" else options.device, None) as world:
            found = once(options.one, options.model, options.blocks, world)
        if world.is_first:
            print("found " + json.dumps(found), flush=True)
        return
    card = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
    rows: list[dict[str, Any]] = []
    result = {
        "command": command(__file__), "card": card, "cards": options.cards,
        "torch": torch.__version__, "rows": rows,
    }  # fmt: skip
    for size in options.sizes:
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        start = [*ranks, str(options.cards)] if options.cards > 1 else []
        call = [sys.executable, *start, __file__, "--one", str(size), "--model", options.model]
        call += ["--device", options.device]
        call += ["--blocks", str(options.blocks)] if options.blocks else []
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=options.limit)
            lines = done.stdout.splitlines()
            row = next((json.loads(t[6:]) for t in lines if t.startswith("found ")), None)
            row = row or {"residues": size, "error": done.stderr.strip()[-2000:]}
        except subprocess.TimeoutExpired:
            row = {"residues": size, "error": f"more than {options.limit} s"}
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out:  # a later size that dies loses nothing
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
