"""Whole entries from files to packed samples on one core: preparation, bytes at rest, the reader.

    python benchmarks/allatom_store.py PACK --out benchmarks/results/allatom_store.json

Prepares the pack's entries with all rulesets that there are and one conformer a component, then
reads, decodes, decides and packs samples at a crop of 384 (Boltz: 512) as the reader process does,
1,024 rows of an alignment for OpenFold3. Times are CPU time of the thread. The pack's alignments
are small (tens to hundreds of rows): deep ones cost more.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from evofeed.featurize.entries.input import EntriesInput, structure_files
from evofeed.featurize.entries.job import prepare_entries
from evofeed.featurize.entries.prepare import known_projects, prepare_entry
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.job import JobOptions
from evofeed.featurize.structures.components import read_components
from evofeed.loader import EntryConfig, LoaderConfig
from evofeed.loader.entries.catalog import EntryCatalog
from evofeed.loader.entries.projects import on_host
from evofeed.loader.entries.reading import plan_entry
from evofeed.loader.views.packing import pack_sample
from evofeed.store import Dataset
from evofeed.store.inner import encode_entry

SAMPLES = 3
PACKAGES = ("numpy", "numba", "pyarrow", "gemmi", "rdkit")


def preparation(pack: Path) -> dict[str, Any]:
    """CPU seconds of every entry: parsed, every ruleset applied, encoded."""
    components = read_components(pack / "components" / "components.cif")
    costs, sizes = {}, {}
    for path in structure_files(str(pack / "inputs" / "mmcif")):
        begun = time.thread_time()
        try:
            made = prepare_entry(read_bytes(file_ref(path)), components, known_projects())
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
        "cpu_s_median": statistics.median(costs.values()),
        "cpu_s_most": max(costs.values()),
        "cpu_s": costs,
        "records": sizes,
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
        place = catalog.place(row)
        own = rows.setdefault(place.chain_id, [])
        if len(own) > SAMPLES:
            continue
        begun = time.thread_time()
        try:
            packed, _ = plan_entry(entries.dataset.storage, place, row, rules)
        except Exception as error:
            print(f"{project} {place.chain_id} {place.datapoint}: {error}", file=sys.stderr)
            continue
        where = pack_sample(packed, on_host(project))
        own.append(1000 * (time.thread_time() - begun))
        most = max(most, where.nbytes)
    medians = {
        name: round(statistics.median(own[1:] or own), 2) for name, own in rows.items() if own
    }
    return {
        "cpu_ms_median": round(statistics.median(medians.values()), 2),
        "cpu_ms_most": max(medians.values()),
        "nbytes_most": most,
        "cpu_ms": medians,
    }


def main() -> None:
    """Measure and print; with --out also write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("pack", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = EntriesInput(
            structures=str(asked.pack / "inputs" / "mmcif"),
            components=str(asked.pack / "components" / "components.cif"),
            alignments=str(asked.pack / "inputs" / "msa"),
            conformers=1,
        )
        options = JobOptions(executor="local", workers=1, max_broken=1.0)
        report = prepare_entries(source, folder, options=options)
        result = {
            "command": "python benchmarks/allatom_store.py PACK",
            "date": datetime.date.today().isoformat(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
            "entries": report.num_good,
            "preparation": preparation(asked.pack),
            **{project: samples(folder, project) for project in known_projects()},
        }
    print(json.dumps(result, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
