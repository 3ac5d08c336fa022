"""CPU time a sample costs, by stage, beside OpenFold's own data path on the same chains.

    python benchmarks/loader.py --golden DIR --openfold OPENFOLD_CHECKOUT --out loader_cpu.json

`--golden` is a folder with `data/inputs` (OpenFold-style alignments and mmCIF). OpenFold's part
needs its checkout and `ml_collections` and `dm-tree` importable, and is left out without them.
All times are CPU time (`process_time`) of one thread, the best of several repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import torch
from openfold_peer import import_openfold
from recording import about, save

from evofeed.featurize import discover, featurize_chain
from evofeed.featurize.config import FeaturizeConfig
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.loader.arena import Arena
from evofeed.loader.batch_maker import BatchMaker, FilledSlot
from evofeed.loader.order import pass_order
from evofeed.loader.read_chain import ReadRequest, read_chain, slot_nbytes
from evofeed.store import Dataset, DatasetWriter
from evofeed.store.index import INDEX_FIELDS, index_schema


def best_ms(work: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Best and median CPU milliseconds."""
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        times.append((time.process_time() - begun) * 1e3)
    return {"best_ms": min(times), "median_ms": float(np.median(times)), "repeats": repeats}


def make_dataset(golden: Path, folder: Path) -> Dataset:
    """The golden chains that have alignments and a structure, featurized by evofeed."""
    writer = DatasetWriter(str(folder))
    for source in discover(str(golden / "data" / "inputs")):
        if source.structure is None or source.alignment_dir is None:
            continue
        try:
            writer.add(featurize_chain(source, FeaturizeConfig.openfold()))
        except Exception as error:
            print(f"left out {source.chain_id}: {error}")
    writer.commit()
    return Dataset.open(str(folder))


def our_stages(dataset: Dataset, config: LoaderConfig, row: int, repeats: int) -> dict[str, Any]:
    """Plan, read and check one chain: all that the CPU does for a sample on a GPU machine
    but queueing the kernels; and the features on this CPU, for who has no GPU."""
    loader = FeatureLoader(dataset, config, device="cpu", reader="thread")
    planner, catalog = loader.planner, loader._catalogs[0]
    plan = next(planner.batches(0, 0))
    location = catalog.location(row)
    nbytes = slot_nbytes(location, True)
    arena = Arena(nbytes + 4096)
    offset = arena.allocate(nbytes)
    assert offset is not None
    slot = memoryview(arena.memory)[offset : offset + nbytes]
    request = ReadRequest(0, location, True, True, offset, nbytes)
    slab = read_chain(dataset.storage, request, slot)
    sample = planner.sample(0, 0)
    mine = type(sample)(0, 0, 0, row, sample.key)
    whole = type(plan)(0, 0, 1, 4, (mine,))
    maker = BatchMaker([catalog], config, arena, torch.device("cpu"), fused=False)
    out = {
        "plan": best_ms(lambda: (planner.sample(0, 0), catalog.location(row)), repeats),
        "read_and_check": best_ms(lambda: read_chain(dataset.storage, request, slot), repeats),
        "features_of_4_recycles_on_this_cpu": best_ms(
            lambda: maker.make(whole, [FilledSlot(mine, slab, offset)]), max(3, repeats // 5)
        ),
        "bytes_to_device": slab.stop - slab.start,
    }
    maker.close()
    slot.release()
    return out


class OpenFold:
    """OpenFold's parsers and feature pipeline, imported without its models."""

    def __init__(self, checkout: Path) -> None:
        import_openfold(checkout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from openfold.config import model_config
            from openfold.data import data_pipeline, feature_pipeline, mmcif_parsing

        self.config = model_config
        self.data, self.features, self.mmcif = data_pipeline, feature_pipeline, mmcif_parsing

    def stages(self, source: Any, preset: str, repeats: int) -> dict[str, Any]:
        """Parsing and transforms of one training sample."""
        file_id, chain = source.chain_id.rsplit("_", 1)
        text = Path(source.structure).read_text()
        pipeline = self.data.DataPipeline(template_featurizer=None)
        config = self.config(preset, train=True)
        features = self.features.FeaturePipeline(config.data)
        raw: dict[str, Any] = {}

        def parse() -> None:
            # Parsing the same text again would hit OpenFold's cache; a new sample does not.
            self.mmcif.parse.cache_clear() if hasattr(self.mmcif.parse, "cache_clear") else None
            parsed = self.mmcif.parse(file_id=file_id, mmcif_string=text)
            raw.update(
                pipeline.process_mmcif(
                    mmcif=parsed.mmcif_object,
                    alignment_dir=str(source.alignment_dir),
                    chain_id=chain,
                )
            )

        def transform() -> None:
            features.process_features(dict(raw), mode="train")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {
                "parse": best_ms(parse, max(2, repeats // 10)),
                "transforms_of_4_recycles": best_ms(transform, max(3, repeats // 5)),
            }


def sampling(repeats: int) -> dict[str, Any]:
    """The order of one epoch over as many chains as OpenProteinSet has."""
    count = 634_434
    rng = np.random.default_rng(0)
    probability = np.clip(rng.integers(30, 900, count), 256, 512) / 512
    probability = probability / rng.integers(1, 195, count)
    return {
        "chains": count,
        "all_chains": best_ms(lambda: pass_order(count, None, 0, 0, 0, 0), repeats),
        "af2_weights": best_ms(lambda: pass_order(count, probability, 0, 0, 0, 0), repeats),
        "openfold_reroll_published_ms": 33_600,
    }


def index_memory(folder: Path, count: int = 634_434) -> dict[str, float]:
    """MB that the index of so many chains takes: the mapped file, which ranks of a host share,
    and a rank's own, with its filters, weights and the order of an epoch; the peak includes
    what was freed and the allocator keeps."""
    rng = np.random.default_rng(0)
    letters = rng.choice(list("abcdefghijklmnopqrstuvwxyz0123456789"), [count, 4])
    shards = [f"{number:064x}.arrow" for number in range(1 + count // 400)]
    known = {
        "chain_id": pa.array([f"{''.join(four)}_A" for four in letters], pa.utf8()),
        "shard": pa.DictionaryArray.from_arrays(
            pa.array(np.arange(count) // 400, pa.int32()), pa.array(shards)
        ),
        "release_date": pa.array(["2015-06-17"] * count, pa.utf8()),
        "method": pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(count), pa.int32()), pa.array(["x-ray diffraction"])
        ),
        "has_structure": pa.array(np.ones(count, bool)),
        "max_aa_fraction": pa.array(np.full(count, 0.2, np.float32)),
        "cluster_size": pa.array(rng.integers(1, 195, count), pa.int32()),
        "num_res": pa.array(rng.integers(30, 900, count), pa.int32()),
        "column_offsets": pa.FixedSizeListArray.from_arrays(
            pa.array(np.zeros(20 * count), pa.uint32()), 20
        ),
    }
    columns = [
        known[name] if name in known else pa.array(np.zeros(count), pa.float64()).cast(kind)
        for name, kind in INDEX_FIELDS
    ]
    path = folder / "index.arrow"
    schema = index_schema()
    with pa.ipc.new_file(str(path), schema) as sink:
        sink.write_table(pa.Table.from_arrays(columns, schema=schema))
    with path.open("rb") as file:
        os.fsync(file)  # pages not yet written would count as the rank's own
    done = subprocess.run(
        [sys.executable, "-c", RANK, str(path)], capture_output=True, text=True, check=True
    )
    return {"file_mb": path.stat().st_size / 1e6, **json.loads(done.stdout)}


RANK = """
import ctypes, json, sys
import pyarrow as pa
from evofeed.loader import LoaderConfig
from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.plan import Planner

def memory():
    lines = [line.split() for line in open("/proc/self/smaps_rollup")]
    sizes = {words[0]: int(words[1]) / 1e3 for words in lines[1:]}
    own = sizes["Private_Dirty:"]
    return own, sizes["Rss:"] - own

own, shared = memory()
table = pa.ipc.open_file(pa.memory_map(sys.argv[1])).read_all()
catalog = ChainCatalog(table, 0, LoaderConfig.initial_training())
config = LoaderConfig.initial_training(epoch_len=10_000)
planner = Planner([catalog], [1.0], config, rank=0, world_size=1, seed=0)
for batch, _ in zip(planner.batches(0, 0), range(100)):
    catalog.location(batch.samples[0].row)
peak = memory()
ctypes.CDLL(None).malloc_trim(0)
print(json.dumps({"mapped_and_read_mb": peak[1] - shared, "own_mb": memory()[0] - own,
                  "own_peak_mb": peak[0] - own}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--openfold", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    presets = {
        "initial_training": LoaderConfig.initial_training(),
        "finetuning": LoaderConfig.finetuning(),
    }
    openfold = OpenFold(args.openfold) if args.openfold else None
    sources = {s.chain_id: s for s in discover(str(args.golden / "data" / "inputs"))}
    result: dict[str, Any] = {
        **about("torch"),
        "sampling": sampling(args.repeats),
        "chains": {},
    }
    print(json.dumps(result["sampling"]))
    with tempfile.TemporaryDirectory() as temporary:
        result["sampling"]["index"] = index_memory(Path(temporary))
        print(json.dumps(result["sampling"]["index"]))
        dataset = make_dataset(args.golden, Path(temporary) / "d")
        for row, chain_id in enumerate(dataset):
            for name, config in presets.items():
                here = result["chains"].setdefault(chain_id, {}).setdefault(name, {})
                index = dataset.index
                here["residues"] = index["num_res"][row].as_py()
                here["rows"] = index["num_alignments"][row].as_py()
                here["evofeed"] = ours = our_stages(dataset, config, row, args.repeats)
                spent = ours["plan"]["best_ms"] + ours["read_and_check"]["best_ms"]
                here["evofeed_cpu_ms"] = spent
                if openfold is not None:
                    theirs = openfold.stages(sources[chain_id], name, args.repeats)
                    here["openfold"] = theirs
                    here["openfold_cpu_ms"] = sum(stage["best_ms"] for stage in theirs.values())
                    here["times_less"] = here["openfold_cpu_ms"] / spent
                print(chain_id, name, json.dumps({k: v for k, v in here.items() if k[-2:] != "ld"}))
    save(args.out, result)


if __name__ == "__main__":
    main()
