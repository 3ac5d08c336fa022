"""How a search runs, how far it is, and what came of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from evofeed.base.configs import check_numbers
from evofeed.featurize.job.options import Workplace


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions(Workplace):
    """Places and limits of a search. What it finds depends on none of them."""

    executor: str = "local"
    """`local` (processes of this machine), `ray`, or `auto`."""
    threads: int = 1
    """Cores a search takes, `SearchConfig.threads`."""
    cache_dir: str = ""
    """Results of all searches, shared between jobs; empty is `cache/` beside the index."""
    scratch: str = ""
    """Folder for the programs' own files, on every machine; empty is the system's."""
    deadline: float = 7200.0
    """Seconds one call of a program may take."""

    def __post_init__(self) -> None:
        Workplace.__post_init__(self)
        check_numbers(self, "threads", least=1)

    @property
    def cores(self) -> int:
        """Cores that a unit takes."""
        return self.threads


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """How far a search is; `seconds_left` is None until the first unit has ended."""

    searched: int
    cache_hits: int
    share: float
    """Done of the stage at hand, 0 to 1."""
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReport:
    """What a search did.

    Attributes:
        digest: of all results: the same for the same sequences, databases and settings.
        num_chains, num_sequences: asked for, and how many different sequences they have.
        num_broken: chains without all their results.
        searched: searches of this run, of one sequence in one database.
        cache_hits: results that were there before.
        lost_workers: workers that died in this run.
        seconds: wall time of this run.
        databases: each with its digest, program, settings, and `worker_hours_per_1000`.
        broken: `chain_id database type message` of each.
    """

    digest: str
    num_chains: int
    num_sequences: int
    num_broken: int
    searched: int
    cache_hits: int
    lost_workers: int
    seconds: float
    databases: tuple[dict[str, Any], ...]
    broken: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return dataclasses.asdict(self)
