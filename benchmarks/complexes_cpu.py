"""CPU of one training sample of a complex, beside OpenFold's multimer data path, on one thread.

    PYTHONPATH=src python benchmarks/complexes_cpu.py INPUTS DATASET --openfold CHECKOUT --out FILE

INPUTS holds `mmcif` and `alignments`, DATASET what `evofeed featurize` and `evofeed assemblies`
made of them. OpenFold's side is what a worker of its `OpenFoldSingleMultimerDataset` does for a
sample, without its data module: parse the mmCIF, `DataPipelineMultimer.process_mmcif` and
`FeaturePipeline.process_features` at `model_1_multimer_v3`; CPU seconds of the process. Ours is
what the loader's reader does for a sample, CPU seconds of the process: read and check the records,
pair, crop, and put the decisions behind the bytes; features are the device's work. The crop differs
from sample to sample, so a repeat is the mean of `SAMPLES` of them. Both sides have been warmed up
with a sample. `features_on_cpu` is the device's work done on this CPU in its place.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.openfold_peer import import_openfold

from evofeed.loader import LoaderConfig
from evofeed.loader.arena import Arena
from evofeed.loader.assembly.catalog import AssemblyCatalog
from evofeed.loader.batch_maker import BatchMaker, FilledSlot
from evofeed.loader.draws import sample_key
from evofeed.loader.plan import BatchPlan, SamplePlan
from evofeed.loader.read_chain import ReadRequest
from evofeed.loader.sample_reading import read_sample, sample_nbytes, task_of
from evofeed.store import Dataset

SAMPLES = 8


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("inputs", type=Path)
    parser.add_argument("dataset")
    parser.add_argument("--openfold", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--names", nargs="+", default=["3l4q", "2q2k", "1a4w"])
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def openfold_sample(checkout: Path, inputs: Path) -> Callable[[str], int]:
    """Makes a sample of an entry, and says its bytes."""
    import_openfold(checkout)
    _older_numpy()
    from openfold.config import model_config
    from openfold.data import data_pipeline, mmcif_parsing
    from openfold.data.feature_pipeline import FeaturePipeline

    pipeline = data_pipeline.DataPipelineMultimer(data_pipeline.DataPipeline(None))
    features = FeaturePipeline(model_config("model_1_multimer_v3", train=True).data)

    def sample(name: str) -> int:
        text = (inputs / "mmcif" / f"{name}.cif").read_text()
        parsed = mmcif_parsing.parse(file_id=name, mmcif_string=text)
        if parsed.mmcif_object is None:
            raise SystemExit(f"OpenFold cannot read {name}: {parsed.errors}")
        raw = pipeline.process_mmcif(parsed.mmcif_object, str(inputs / "alignments"))
        made = features.process_features(raw, mode="train", is_multimer=True)
        return nbytes(made)

    return sample


def _older_numpy() -> None:
    """What OpenFold's pairing uses and NumPy 2 no longer has."""
    total = np.sum
    np.string_ = np.bytes_
    np.sum = lambda a, *rest, **more: (
        sum(a) if isinstance(a, types.GeneratorType) else total(a, *rest, **more)
    )


def nbytes(value: Any) -> int:
    """Of all tensors in nested dicts."""
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


class Ours:
    """The loader's work on one entry, in this process: what its reader does, then its maker."""

    def __init__(self, dataset: str, name: str) -> None:
        config = LoaderConfig.multimer(weighted=False, chains=(name,))
        source = Dataset.open(dataset)
        self.config, self.storage = config, source.storage
        self.catalog = AssemblyCatalog(source.assemblies, 0, config)
        self.row = int(self.catalog.rows[0])
        place = self.catalog.place(self.row)
        self.arena = Arena(2 * sample_nbytes(place, config))
        self.maker = BatchMaker(
            [self.catalog], config, self.arena, torch.device("cpu"), fused=False
        )
        self.number = 0
        self.sample(1)

    def sample(self, count: int) -> tuple[dict[str, float], int]:
        """Mean CPU milliseconds of reading and of the features of `count` samples; bytes read."""
        spent = {"read": 0.0, "features": 0.0}
        for _ in range(count):
            self.number += 1
            key = sample_key(0, 0, self.number)
            began = time.process_time()
            place = self.catalog.place(self.row)
            nbytes = sample_nbytes(place, self.config)
            offset = self.arena.allocate(nbytes)
            assert offset is not None
            request = ReadRequest(
                *(0, place, True, True, offset, nbytes), task=task_of(self.config, key)
            )
            with memoryview(self.arena.memory)[offset : offset + nbytes] as slot:
                slab = read_sample(self.storage, request, slot)
            read = time.process_time()
            plan = SamplePlan(0, 0, 0, self.row, key)
            batch = BatchPlan(0, 0, 0, 1, (plan,))
            made = self.maker.make(batch, [FilledSlot(plan, slab, offset)])
            spent["read"] += 1e3 * (read - began)
            spent["features"] += 1e3 * (time.process_time() - read)
        return {name: value / count for name, value in spent.items()}, made.nbytes


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    theirs = openfold_sample(options.openfold, options.inputs)
    rows = []
    for name in options.names:
        size = theirs(name)
        ours = Ours(options.dataset, name)
        peer, read, features = [], [], []
        for _ in range(options.repeats):
            began = time.process_time()
            theirs(name)
            peer.append(1e3 * (time.process_time() - began))
            times, nbytes_read = ours.sample(SAMPLES)
            read.append(times["read"])
            features.append(times["features"])
        rows.append(
            {
                "entry": name,
                "openfold_cpu_ms": spread(peer),
                "evofeed_read_ms": spread(read),
                "evofeed_features_on_cpu_ms": spread(features),
                "ratio_loader": round(statistics.median(peer) / statistics.median(read), 1),
                "openfold_bytes": size,
                "evofeed_bytes": nbytes_read,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    command = "python benchmarks/complexes_cpu.py INPUTS DATASET --openfold CHECKOUT --out FILE"
    result = {
        "benchmark": "complexes_cpu",
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, one thread, others working beside it",
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "repeats": options.repeats,
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and largest."""
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
