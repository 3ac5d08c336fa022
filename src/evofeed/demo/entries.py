"""`evofeed demo --all-atom`: made-up entries to batches of OpenFold3, Boltz and Protenix."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evofeed.base.errors import JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesReport:
    """What the demo made."""

    entries: int
    nbytes: int
    prepare_seconds: float
    batches: dict[str, int]
    """Batches by project."""
    seconds: dict[str, float]
    """Of an epoch, start of the reader included."""
    left_out: int
    """Things that some project leaves out, each with a reason in the report of the job."""
    report: str

    def to_json(self) -> str:
        """For `--json`."""
        return json.dumps(dataclasses.asdict(self))

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        found = [
            (
                "entries",
                f"{self.entries}, {self.nbytes / 1e3:,.0f} kB in {self.prepare_seconds:.1f} s",
            ),
            ("left out", f"{self.left_out} things, each with its reason: {self.report}"),
        ]
        return found + [
            (name, f"{count} batches in {self.seconds[name]:.1f} s")
            for name, count in self.batches.items()
        ]


def run_entries(
    out: Path, *, count: int = 6, epoch: int = 8, say: Callable[[str], None] | None = None
) -> EntriesReport:
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

    tell = say or (lambda _: None)
    shutil.rmtree(out / "dataset", ignore_errors=True)
    tell("entries with ligands and nucleic acids, made up")
    write_entries(out / "raw", count)
    tell("records")
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
        tell(f"batches of {name}")
        begun = time.perf_counter()
        with FeatureLoader(entries, LoaderConfig(entries=view, epoch_len=epoch)) as loader:
            batches[name] = sum(1 for _ in loader)
        seconds[name] = round(time.perf_counter() - begun, 2)
    return EntriesReport(
        entries=len(entries),
        nbytes=done.num_bytes,
        prepare_seconds=done.seconds,
        batches=batches,
        seconds=seconds,
        left_out=sum(map(len, done.notes.values())),
        report=done.path,
    )
