"""How far a job is and how it ended, by its ledger: what it says while it runs, and its report."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evofeed.base.files import write_atomic
from evofeed.base.within import Limits
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.lock import Waits, a_while
from evofeed.featurize.job.options import report_path
from evofeed.featurize.job.tables import JobRow
from evofeed.store import Snapshot
from evofeed.store.inner import MoveRef, move_ref

_LEFT_OUT = ("NoProtein", "UnusedInput")
"""Errors of what is left out: no proteins, and files that no chain uses."""
_BROKEN = ("chain_id", "type", "message", "path", "line")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """State and progress of a job."""

    num_chains: int
    good: int
    broken: int
    suspects: int
    """Chains that took a worker down and get another chance."""
    share: float
    """Of the predicted work, 0 to 1."""
    chains_per_second: float
    """Of this run."""
    seconds_left: float | None
    """By the work done in this run; None before the first unit is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The end of a job, also written as JSON beside its ledger.

    Attributes:
        state: `published`, `failed` or `cancelled`.
        snapshot: digest of the published snapshot, None if there is none.
        broken: one dict per chain that is not in the snapshot: `chain_id type message
            path line`, by chain id.
        left_out: likewise, what is no protein (`NoProtein`) and files that look like a protein's
            and that no chain uses (`UnusedInput`); not counted as broken.
        notes: what was left out of good chains (templates, rows), per chain, in words.
        resumed: units that were already done when this run began.
    """

    job_id: str
    state: str
    message: str
    input_uri: str
    dataset_uri: str
    ref: str
    snapshot: str | None
    num_chains: int
    num_good: int
    broken: tuple[dict[str, Any], ...]
    left_out: tuple[dict[str, Any], ...]
    notes: dict[str, list[str]]
    num_shards: int
    num_bytes: int
    units: int
    resumed: int
    lost_workers: int
    seconds: float
    chains_per_second: float
    path: str

    @property
    def num_broken(self) -> int:
        """Chains that are not in the snapshot."""
        return len(self.broken)

    @property
    def exit_code(self) -> int:
        """0 if a snapshot was published, else 1."""
        return 0 if self.state == "published" else 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**dataclasses.asdict(self), "num_broken": self.num_broken}

    def write(self) -> None:
        """Write the JSON file at `path`, whole or not at all."""
        write_atomic(Path(self.path), json.dumps(self.to_dict(), indent=1) + "\n")


class Account:
    """One run of a job, from now on; `unusable` are inputs that no chain could be made of."""

    def __init__(
        self, ledger: Ledger, job: JobRow, num_chains: int, unusable: list[dict[str, Any]]
    ) -> None:
        self._ledger, self._job = ledger, job
        self._num_chains = num_chains
        self._unusable = unusable
        self._began = time.monotonic()
        self._first = ledger.counts(job.job_id)

    @property
    def total(self) -> int:
        """Chains of the input, those included that none could be made of; no others' molecules."""
        return self._num_chains + len(self._unusable) - len(self.left_out())

    def broken(self) -> list[dict[str, Any]]:
        """What is broken, and so not in the snapshot: unusable inputs and dead chains."""
        return [item for item in self._missing() if item["type"] not in _LEFT_OUT]

    def left_out(self) -> list[dict[str, Any]]:
        """What is no protein, and files that no chain uses, each with why."""
        return [item for item in self._missing() if item["type"] in _LEFT_OUT]

    def _missing(self) -> list[dict[str, Any]]:
        dead = self._ledger.chains(self._job.job_id)
        return [*self._unusable, *({name: chain[name] for name in _BROKEN} for chain in dead)]

    def notes(self) -> dict[str, list[str]]:
        """What was left out of good chains, by chain id."""
        units = self._ledger.units(self._job.job_id)
        notes = {c: n for unit in units for c, n in (unit["notes"] or {}).items()}
        return dict(sorted(notes.items()))

    def progress(self) -> JobProgress:
        """State and progress of the job."""
        counts = self._ledger.counts(self._job.job_id)
        seconds = time.monotonic() - self._began
        cost_here = counts["cost_done"] - self._first["cost_done"]
        left = counts["cost"] - counts["cost_done"]
        return JobProgress(
            num_chains=self._num_chains,
            good=counts["chains_good"],
            broken=counts["chains_broken"],
            suspects=len(self._ledger.chains(self._job.job_id, dead=False)),
            share=counts["cost_done"] / max(counts["cost"], 1),
            chains_per_second=self._done_here(counts) / max(seconds, 1e-9),
            seconds_left=seconds * left / cost_here if cost_here > 0 else None,
        )

    def report(
        self, state: str, message: str, ref: str, snapshot: Snapshot | None, lost_workers: int
    ) -> JobReport:
        """The end of this run, as values; nothing is written."""
        job_id = self._job.job_id
        counts, units = self._ledger.counts(job_id), self._ledger.units(job_id)
        seconds = time.monotonic() - self._began
        shards = snapshot.manifest.shards if snapshot else ()
        return JobReport(
            job_id=job_id,
            state=state,
            message=message,
            input_uri=self._job.input_uri,
            dataset_uri=self._job.dataset_uri,
            ref=ref,
            snapshot=snapshot.digest if snapshot else None,
            num_chains=self.total,
            num_good=counts["chains_good"],
            broken=tuple(self.broken()),
            left_out=tuple(self.left_out()),
            notes=self.notes(),
            num_shards=len(shards),
            num_bytes=sum(shard.nbytes for shard in shards),
            units=len(units),
            resumed=self._first["units_done"],
            lost_workers=lost_workers,
            seconds=round(seconds, 3),
            chains_per_second=round(self._done_here(counts) / max(seconds, 1e-9), 2),
            path=report_path(self._ledger.url, self._job.dataset_uri, job_id),
        )

    def _done_here(self, counts: dict[str, int]) -> int:
        done = counts["chains_good"] + counts["chains_broken"]
        return done - self._first["chains_good"] - self._first["chains_broken"]


Entries = Sequence[Mapping[str, Any]]
"""Chains and what there is to say of them: `kind` (`broken`, or `note` for what was left out
of a good chain), `chain_id type message path line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHost:
    """How a job belongs to what runs it; each part may be left out."""

    owner: str = ""
    """Jobs of different owners share finished units and nothing else."""
    retry: bool = False
    """Chains that are known to be broken get another chance."""
    found: Callable[[Entries], None] = lambda _: None
    """Called with broken chains and notes as they come, and first with those known already."""
    move: MoveRef = move_ref
    """Moves the ref when the snapshot is there."""
    waits: Waits = a_while
    """Asked while another process drives the job: whether to go on waiting."""
    limits: Limits | None = None
    """Folders that inputs must lie in, wherever links lead; None: anywhere."""


def broken_entries(chains: Entries) -> list[dict[str, Any]]:
    """Chains that are in no snapshot."""
    return [{**chain, "kind": "broken"} for chain in chains]


def note_entries(notes: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """What was left out of good chains."""
    head = {"kind": "note", "type": "", "path": None, "line": None}
    pairs = ((chain_id, text) for chain_id, found in notes.items() for text in found)
    return [{**head, "chain_id": chain_id, "message": text} for chain_id, text in pairs]
