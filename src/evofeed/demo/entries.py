"""`evofeed demo --all-atom`: synthetic entries to batches of OpenFold3, Boltz and Protenix."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from evofeed.base.errors import JobError
from evofeed.demo.path import Report, Rows, Say, tell


def rows(report: Report) -> Rows:
    """Rows of the report of the demo of entries."""
    size = f"{report['entries']}, {report['nbytes'] / 1e3:,.0f} kB"
    return [
        ("entries", f"{size} in {report['prepare_seconds']:.1f} s"),
        ("left out", f"{report['left_out']} things, each with its reason: {report['report']}"),
        *(
            (name, f"{count} batches in {report['seconds'][name]:.1f} s")
            for name, count in report["batches"].items()
        ),
    ]


def run_entries(out: Path, *, count: int = 6, epoch: int = 8, say: Say | None = None) -> Report:
    """Write entries, prepare them, and load an epoch of each project.

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
    tell(say, "synthetic entries with ligands and nucleic acids")
    write_entries(out / "raw", count)
    tell(say, "records")
    source = EntriesInput(
        structures=str(out / "raw" / "mmcif"),
        components=str(out / "raw" / "components.cif"),
        alignments=str(out / "raw" / "msa"),
        conformers=2,
    )
    options = JobOptions(executor="local")
    job = prepare_entries(source, str(out / "dataset"), options=options)
    if job.snapshot is None:
        raise JobError(job.message, path=str(out / "dataset"))
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
        began = time.perf_counter()
        with FeatureLoader(entries, LoaderConfig(entries=view, epoch_len=epoch)) as loader:
            batches[name] = sum(1 for _ in loader)
        seconds[name] = round(time.perf_counter() - began, 2)
    return {
        "entries": len(entries),
        "nbytes": job.num_bytes,
        "prepare_seconds": job.seconds,
        "batches": batches,
        "seconds": seconds,  # of an epoch, including the start of the reader
        "left_out": sum(map(len, job.notes.values())),
        "report": job.path,
    }
