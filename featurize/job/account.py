"""Progress of a running job, and the report of a job that has ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evofeed.base.files import write_atomic
from evofeed.base.within import Limits
from evofeed.featurize.job.lock import KeepWaiting, wait_briefly
from evofeed.store.inner import MoveRef, move_ref


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """State and progress of a job."""

    num_chains: int
    good: int
    broken: int
    suspects: int
    """Chains that killed a worker and will be retried."""
    share: float
    """Done share of the predicted work, 0 to 1."""
    chains_per_second: float
    """Rate of this run."""
    seconds_left: float | None
    """Estimated from the work done in this run; None before the first unit is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The outcome of a job, also written as JSON next to its ledger.

    Attributes:
        state: `published`, `failed` or `cancelled`.
        snapshot: digest of the published snapshot, None if there is none.
        broken: one dict per chain that is not in the snapshot: `chain_id type message
            path line`, by chain id.
        left_out: likewise for inputs that are not proteins (`NoProtein`) and for files that look
            like a protein's but that no chain uses (`UnusedInput`); not counted as broken.
        notes: messages by chain id on what was omitted from good chains (templates, rows).
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
        """Write the JSON file at `path` atomically."""
        write_atomic(Path(self.path), json.dumps(self.to_dict(), indent=1) + "\n")


Entries = Sequence[Mapping[str, Any]]
"""Report entries of chains: `kind` (`broken`, or `note` on what was omitted from a good chain),
`chain_id type message path line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHost:
    """Owner and callbacks of the program that runs a job, such as the service; all optional."""

    owner: str = ""
    """Jobs of different owners share finished units and nothing else."""
    retry: bool = False
    """Retry chains that an earlier run found broken."""
    report_chains: Callable[[Entries], None] = lambda _: None
    """Called with broken chains and notes: first those of earlier runs, then each new one."""
    move: MoveRef = move_ref
    """Moves the ref once the snapshot is written."""
    waits: KeepWaiting = wait_briefly
    """True to keep waiting while another process drives the job."""
    limits: Limits | None = None
    """Folders that inputs must lie in, wherever links lead; None: anywhere."""


def broken_entries(chains: Entries) -> list[dict[str, Any]]:
    """Entries of chains that are not in the snapshot."""
    return [{**chain, "kind": "broken"} for chain in chains]


def note_entries(notes: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Entries of the notes on good chains."""
    head = {"kind": "note", "type": "", "path": None, "line": None}
    return [
        {**head, "chain_id": chain_id, "message": message}
        for chain_id, messages in notes.items()
        for message in messages
    ]
