"""What a job says while it runs and when it is over."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evofeed.base.files import write_atomic


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
        seconds: of this run.
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
