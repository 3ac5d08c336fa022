"""What a job says: how far it is while it runs, and its report when it has ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evofeed.base.files import write_atomic
from evofeed.base.within import Limits
from evofeed.featurize.job.lock import Waits, a_while
from evofeed.store.inner import MoveRef, move_ref


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
