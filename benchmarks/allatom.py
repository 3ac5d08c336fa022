"""Whole entries from files to samples: preparation, bytes at rest, the reader's CPU; a GPU's waits.

    python benchmarks/allatom.py PACK --out benchmarks/results/allatom_store.json
    PYTHONPATH=src python benchmarks/allatom.py --data FOLDER --gpu --out allatom_gpu.json

Prepares the pack's entries with all rulesets that there are and one conformer a component, then
reads, decodes, decides and packs samples at a crop of 384 (Boltz: 512) as the reader process does,
1,024 rows of an alignment for OpenFold3. Times are CPU time of the thread. The pack's alignments
are small (tens to hundreds of rows): deep ones cost more. `--data` takes entries that are prepared.

`--gpu`: `FeatureLoader` of each project feeds a step of matrix products that fill the GPU for
`--step-ms`. `wait_ms`: what a step waits for its batch, `until_made_ms`: until the GPU has made its
features too, `freed_ms`: what letting go of it takes behind the step; `idle_device_ms`,
`device_ms`: from the first to the last kernel of a sample's features, alone and beside the step;
`collections_ms`: Python's looks for garbage among all objects meanwhile. `cores`: CPU time of this
process and the reader, without the step's own, by wall time.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

from recording import about, quartiles, save

from evofeed.loader import EntryConfig, FeatureLoader, LoaderConfig, batch_maker
from evofeed.loader.entries.catalog import EntryCatalog
from evofeed.loader.entries.reading import plan_entry
from evofeed.loader.packed import pack_sample
from evofeed.store import Dataset

SAMPLES = 3
PROJECTS = ("boltz", "openfold3", "protenix")


def prepared(pack: Path, folder: str) -> dict[str, Any]:
    """Prepares the pack; CPU seconds of every entry: parsed, every ruleset applied, encoded."""
    from evofeed.featurize.entries.input import EntriesInput, structure_files
    from evofeed.featurize.entries.job import prepare_entries
    from evofeed.featurize.entries.prepare import prepare_entry
    from evofeed.featurize.formats.reading import file_ref, read_bytes
    from evofeed.featurize.job import JobOptions
    from evofeed.featurize.structures.components import read_components
    from evofeed.store.inner import encode_entry

    source = EntriesInput(
        structures=str(pack / "inputs" / "mmcif"),
        components=str(pack / "components" / "components.cif"),
        alignments=str(pack / "inputs" / "msa"),
        conformers=1,
    )
    options = JobOptions(executor="local", workers=1, max_broken=1.0)
    report = prepare_entries(source, folder, options=options)
    components = read_components(source.components)
    costs, sizes = {}, {}
    for path in structure_files(source.structures):
        begun = time.thread_time()
        try:
            made = prepare_entry(read_bytes(file_ref(path)), components, PROJECTS)
        except Exception as error:
            print(f"{path}: {error}", file=sys.stderr)
            continue
        columns = encode_entry(made.record, made.sections)
        costs[made.record_id] = round(time.thread_time() - begun, 3)
        sizes[made.record_id] = {
            "atoms": made.record.num_atoms,
            "nbytes": sum(len(column.payload) for column in columns.values()),
        }
    return {
        "entries": report.num_good,
        "preparation": {
            "cpu_s_median": statistics.median(costs.values()),
            "cpu_s_most": max(costs.values()),
            "cpu_s": costs,
            "records": sizes,
        },
    }


def samples(uri: str, project: str) -> dict[str, Any]:
    """CPU milliseconds and bytes of samples of every entry that the project takes."""
    rules = getattr(EntryConfig, project)()
    config = LoaderConfig(entries=rules, max_resolution=float("inf"))
    entries = Dataset.open(uri).entries
    catalog = EntryCatalog(entries, 0, config)
    rows: dict[str, list[float]] = {}
    most = 0
    for row in catalog.rows.tolist():
        location = catalog.location(row)
        own = rows.setdefault(location.chain_id, [])
        if len(own) > SAMPLES:
            continue
        begun = time.thread_time()
        try:
            packed, _ = plan_entry(entries.dataset.storage, location, row, rules)
        except Exception as error:
            print(f"{project} {location.chain_id} {location.datapoint}: {error}", file=sys.stderr)
            continue
        most = max(most, pack_sample(packed)[0].nbytes)
        own.append(1000 * (time.thread_time() - begun))
    medians = {
        name: round(statistics.median(own[1:] or own), 2) for name, own in rows.items() if own
    }
    return {
        "cpu_ms_median": round(statistics.median(medians.values()), 2),
        "cpu_ms_most": max(medians.values()),
        "nbytes_most": most,
        "cpu_ms": medians,
    }


@contextlib.contextmanager
def collections() -> Iterator[list[list[float]]]:
    """When Python looked for garbage among all objects, and how long, ms."""
    found: list[list[float]] = []

    def watch(phase: str, about: dict[str, int]) -> None:
        now = 1000 * time.perf_counter()
        if about["generation"] == 2 and phase == "start":
            found.append([now])
        elif about["generation"] == 2:
            found[-1].append(round(now - found[-1][0], 2))

    gc.callbacks.append(watch)
    yield found
    gc.callbacks.remove(watch)


def fed(uri: str, project: str, options: argparse.Namespace) -> dict[str, Any]:
    """What steps wait for their batches on a GPU, and what those cost."""
    import torch
    from loader_waits import Consumer, cpu_seconds, percentiles

    rules = getattr(EntryConfig, project)()
    config = LoaderConfig(entries=rules, max_resolution=float("inf"), epoch_len=10**6)
    consumer = Consumer(options.device, options.step_ms / 1000)
    read = {"msa_feat": torch.zeros(1, device=options.device)}
    waits, until_made, freed = [], [], []
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(batch_maker, "_TIMED", 1))  # every batch's time
        entries = Dataset.open(uri).entries
        loader = stack.enter_context(FeatureLoader(entries, config, device=options.device, seed=1))
        stream = iter(loader)
        garbage = stack.enter_context(collections())
        for number in range(options.warmup + options.steps):
            if number == options.warmup:
                begun, used = time.perf_counter(), cpu_seconds(loader)
                garbage.clear()
            called = time.perf_counter()
            batch = next(stream)
            waits.append(time.perf_counter() - called)
            if options.device == "cuda":
                consumer.wait()
            until_made.append(time.perf_counter() - called)
            if number >= options.warmup:
                consumer.step(read)
            stepped = time.perf_counter()
            del batch
            freed.append(time.perf_counter() - stepped)
        wall, used = time.perf_counter() - begun, cpu_seconds(loader) - used
        stats = loader.stats()
        device = [1e3 * seconds for seconds in loader._stats.device._latest]
    alone = consumer.alone(read, 10)
    return {
        "steps": options.steps,
        "wait_ms": percentiles(waits[options.warmup :]),
        "until_made_ms": percentiles(until_made[options.warmup :]),
        "freed_ms": percentiles(freed[options.warmup :]),
        "longest_waits_ms": [
            round(1000 * wait, 2) for wait in sorted(waits[options.warmup :])[-5:]
        ],
        "collections_ms": [took for _, took in garbage],
        **(
            {}
            if options.device == "cpu"
            else {
                "idle_device_ms": quartiles(device[2 : options.warmup - 4], 2),
                "device_ms": quartiles(device[options.warmup :], 2),
            }
        ),
        "mb_per_sample": round(stats["bytes_per_sample"] / 1e6, 3),
        "cores": round(used / wall - alone["cores"], 3),
        "cores_of_the_step": round(alone["cores"], 3),
        "step_ms": round(1e3 * wall / options.steps, 1),
    }


def main() -> None:
    """Measure and print; with --out also write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("pack", type=Path, nargs="?")
    parser.add_argument("--data", help="prepared entries, instead of a pack")
    parser.add_argument("--gpu", action="store_true", help="feed steps; without, the reader's CPU")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--step-ms", type=float, default=380.0)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--warmup", type=int, default=24)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    packages = ("numpy", "numba", "pyarrow", *(("torch",) if asked.gpu else ("gemmi", "rdkit")))
    result = about(*packages, device=asked.device if asked.gpu else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        if asked.data is None:
            result |= prepared(asked.pack, folder)
        for project in PROJECTS:
            uri = asked.data or folder
            result[project] = fed(uri, project, asked) if asked.gpu else samples(uri, project)
            print(project, result[project], flush=True)
    save(asked.out, result)


if __name__ == "__main__":
    main()
