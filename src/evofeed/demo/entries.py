"""`evofeed demo --all-atom`: made-up entries to batches of OpenFold3, Boltz and Protenix."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from evofeed.base.errors import JobError
from evofeed.demo.path import Report, Rows, Say, tell


def rows(report: Report) -> Rows:
    """The report of the demo of entries."""
    made = f"{report['entries']}, {report['nbytes'] / 1e3:,.0f} kB"
    return [
        ("entries", f"{made} in {report['prepare_seconds']:.1f} s"),
        ("left out", f"{report['left_out']} things, each with its reason: {report['report']}"),
        *(
            (name, f"{count} batches in {report['seconds'][name]:.1f} s")
            for name, count in report["batches"].items()
        ),
    ]


def run_entries(out: Path, *, count: int = 6, epoch: int = 8, say: Say | None = None) -> Report:
    """Write entries, prepare them, and go through an epoch of each project.

    Raises:
        JobError: nothing was published.
    """
    from evofeed.featurize.entries.input import EntriesInput
    from evofeed.featurize.entries.job import prepare_entries
    from evofeed.featurize.job import JobOptions
    from evofeed.loader import EntryConfig, FeatureLoader, LoaderConfig
    from evofeed.store import Dataset
    from evofeed.synth import write_entries

    shutil.rmtree(out / "dataset", ignore_errors=True)
    tell(say, "entries with ligands and nucleic acids, made up")
    write_entries(out / "raw", count)
    tell(say, "records")
    source = EntriesInput(
        structures=str(out / "raw" / "mmcif"),
        components=str(out / "raw" / "components.cif"),
        alignments=str(out / "raw" / "msa"),
        conformers=2,
    )
    options = JobOptions(executor="local")
    done = prepare_entries(source, str(out / "dataset"), options=options)
    if done.snapshot is None:
        raise JobError(done.message, path=str(out / "dataset"))
    entries = Dataset.open(str(out / "dataset")).entries
    batches: dict[str, int] = {}
    seconds: dict[str, float] = {}
    views: dict[str, Any] = {
        "openfold3": EntryConfig.openfold3(token_budget=64),
        "boltz": EntryConfig.boltz(max_tokens=64, max_atoms=1024, max_seqs=64),
        "protenix": EntryConfig.protenix(crop_size=64),
    }
    for name, view in views.items():
        tell(say, f"batches of {name}")
        begun = time.perf_counter()
        with FeatureLoader(entries, LoaderConfig(entries=view, epoch_len=epoch)) as loader:
            batches[name] = sum(1 for _ in loader)
        seconds[name] = round(time.perf_counter() - begun, 2)
    return {
        "entries": len(entries),
        "nbytes": done.num_bytes,
        "prepare_seconds": done.seconds,
        "batches": batches,
        "seconds": seconds,  # of an epoch, start of the reader included
        "left_out": sum(map(len, done.notes.values())),
        "report": done.path,
    }
