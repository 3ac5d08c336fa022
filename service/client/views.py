"""What the service's client answers with, and the filters it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
"""States that a job does not leave by itself."""


class RowFilters(TypedDict, total=False):
    """What chains and complexes are filtered by; all that are given must hold."""

    where: Mapping[str, Any] | None
    columns: Sequence[str] | None
    max_length: int
    max_resolution: float
    released_from: str
    released_before: str


class ChainFilters(RowFilters, total=False):
    """What chains are filtered by beside that."""

    min_length: int
    min_depth: int
    max_depth: int
    min_templates: int
    method: list[str]
    is_distillation: bool
    has_structure: bool


class AssemblyFilters(RowFilters, total=False):
    """What complexes are filtered by beside that."""

    stoichiometry: list[str]
    min_chains: int
    max_chains: int
    min_entities: int
    max_entities: int
    min_interface: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A featurize job as it was when it was asked for.

    Attributes:
        id: its name.
        dataset: what it adds to.
        ref: what it moves; None: nothing.
        message: why, for the ref's history.
        state: queued, running, cancelling, cancelled, succeeded or failed.
        attempts: runs so far.
        progress: `num_chains`, `good`, `broken`, `seconds_left`, ...
        result: `snapshot` and counts, once it has ended.
        error: why it failed.
    """

    id: str
    dataset: str
    ref: str | None
    message: str
    state: str
    attempts: int
    progress: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def has_ended(self) -> bool:
        """True if it does not go on by itself."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenChain:
    """A chain that is in no snapshot, and why."""

    chain_id: str
    type: str
    message: str
    path: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefState:
    """Where a ref points, and since when."""

    name: str
    digest: str
    updated_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move of a ref: by whom, by which job, why. No digest: it was deleted."""

    digest: str
    previous: str | None
    moved_at: str
    principal: str
    job: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret."""

    id: str
    label: str
    scopes: list[str]
    datasets: list[str] | None = None
    expires_at: str | None = None
    revoked_at: str | None = None
