"""The whole command `evofeed predict`, weights to files, by length, and all lengths in one call.

    PYTHONPATH=src python benchmarks/predict.py --sizes 256 512 1024 2048 --out predict.json

Random weights of AF2's size with pTM, 4 templates, 3 recycles; each call is a new process, and all
its seconds count; the first of three may compile. Laptop: `--tiny --sizes 16 --device cpu`.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from evofeed.store import DatasetWriter
from evofeed.trainer import AlphaFold, initial_training
from evofeed.trainer.formats.openfold_checkpoint import save_openfold_checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.recording import about, save
from tests.trainer.synthetic_records import synthetic_record


def seconds(*words: object) -> float:
    start, command = time.perf_counter(), [sys.executable, "-m", "evofeed.cli", *map(str, words)]
    return subprocess.run(command, check=True) and round(time.perf_counter() - start, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--rows", type=int, default=5632)
    parser.add_argument("--tiny", action="store_true", help="weights of a step of that preset")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        data, weights, out = (Path(name, part) for part in ("data", "ptm.npz", "out"))
        writer = DatasetWriter(str(data))
        for size in options.sizes:
            record = synthetic_record(size, num_res=size, num_rows=options.rows, num_templates=4)
            writer.add(replace(record, chain_id=f"r{size}_A"))
        writer.commit()
        if options.tiny:
            weights = Path(name, "run")
            seconds("train", "tiny", "--dataset", data, "--steps", 1, "--out", weights)
        else:
            save_openfold_checkpoint(AlphaFold(initial_training(ptm=True).model), weights)
        rest = ("--weights", weights, "--device", options.device, "--out")
        result = about("torch", "triton", "evofeed", device=options.device) | {"rows": options.rows}
        for n in options.sizes:
            result[f"{n}"] = [
                seconds("predict", data, f"r{n}_A", *rest, out / f"{i}") for i in "123"
            ]
            save(options.out, result)
        result["one_call"] = seconds("predict", data, "--all", *rest, out / "all")
    save(options.out, result)


if __name__ == "__main__":
    main()
