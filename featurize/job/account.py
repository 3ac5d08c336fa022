"""How far a job is and how it ended, as its ledger has it."""

from __future__ import annotations

import time
from typing import Any

from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.places import report_path
from evofeed.featurize.job.report import JobProgress, JobReport
from evofeed.featurize.job.tables import JobRow
from evofeed.store import Snapshot

_LEFT_OUT = ("NoProtein", "UnusedInput")
"""Errors of what is left out: no proteins, and files that no chain uses."""
_BROKEN = ("chain_id", "type", "message", "path", "line")


class Account:
    """One run of a job, from now on.

    Args:
        ledger: of the job.
        job: a row of it.
        num_chains: in the job's plan.
        unusable: inputs that no chain could be made of, as entries of the report.
    """

    def __init__(
        self, ledger: Ledger, job: JobRow, num_chains: int, unusable: list[dict[str, Any]]
    ) -> None:
        self._ledger, self._job = ledger, job
        self._num_chains = num_chains
        self._unusable = [item for item in unusable if item["type"] not in _LEFT_OUT]
        self._unread = [item for item in unusable if item["type"] in _LEFT_OUT]
        self._began = time.monotonic()
        self._first = ledger.counts(job.job_id)

    @property
    def total(self) -> int:
        """Chains of the input, those included that none could be made of; no others' molecules."""
        return self._num_chains + len(self._unusable) - len(self._dead(left_out=True))

    def broken(self) -> list[dict[str, Any]]:
        """What is broken, and so not in the snapshot: unusable inputs and dead chains."""
        return self._unusable + self._dead(left_out=False)

    def left_out(self) -> list[dict[str, Any]]:
        """What is no protein, and files that no chain uses, each with why."""
        return self._unread + self._dead(left_out=True)

    def _dead(self, *, left_out: bool) -> list[dict[str, Any]]:
        return [
            {name: chain[name] for name in _BROKEN}
            for chain in self._ledger.chains(self._job.job_id)
            if (chain["type"] in _LEFT_OUT) == left_out
        ]

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
