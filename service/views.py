"""Answers of the service and its client, and the filters they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
"""Final states of a job."""


class RowFilters(TypedDict, total=False):
    """Filters of chains and complexes; all must match."""

    where: Mapping[str, Any] | None
    columns: Sequence[str] | None
    min_length: int
    max_length: int
    max_resolution: float
    released_from: str
    released_before: str
    method: list[str]
    is_distillation: bool
    has_structure: bool
    # of chains
    min_depth: int
    max_depth: int
    min_templates: int
    # of complexes
    stoichiometry: list[str]
    min_chains: int
    max_chains: int
    min_entities: int
    max_entities: int
    min_interface: int


class JobOptions(TypedDict, total=False):
    """Options of a job besides its dataset and its input."""

    ref: str | None  # ref to move to the snapshot, `main` by default; None: none
    message: str  # why, for the ref's history
    preset: Literal["safe", "openfold"]  # `openfold` is bit for bit what OpenFold makes
    config: Mapping[str, Any]  # fields of `FeaturizeConfig` to change
    crop: Mapping[str, Any] | None  # fields of `CropConfig`; None: no crop
    recipe: str  # of a search in the service's databases that comes first: the input is FASTA
    executor: Literal["auto", "ray", "local"]  # `auto` is Ray where the service has a cluster
    workers: int  # processes; 0 is one per core
    deadline: float  # seconds for one chain
    memory: int  # bytes for one chain
    max_broken: float  # share of chains that may break, above which nothing is published
    replace: bool  # chains that the ref has and the input has not may go with the move


class PolicyRules(TypedDict, total=False):
    """The conditions for moving a ref."""

    protected: bool  # it does not move at all
    reviewer: Literal["publish", "admin"]  # scope needed to move it
    forbid: Sequence[Mapping[str, Any]]  # filters that no chain of its snapshot may pass
    apart_from: Sequence[Mapping[str, Any]]  # datasets that must not share a sequence with it


State = Literal["queued", "running", "cancelling", "cancelled", "succeeded", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A featurize job as it was when it was asked for; times are ISO 8601 UTC.

    Attributes:
        input_uri: its raw files; None for tokens that only read.
        ref: what it moves; None: nothing.
        attempts: runs of its process so far.
        progress: `num_chains`, `good`, `broken`, `share`, `seconds_left`, ...
        result: `snapshot`, counts and seconds, once it has ended.
        principal: token it was submitted with.
    """

    id: str
    dataset: str
    input_uri: str | None = None
    ref: str | None
    message: str
    state: State
    attempts: int
    progress: dict[str, Any]
    result: dict[str, Any]
    error: str
    created_at: str
    updated_at: str
    principal: str

    @property
    def has_ended(self) -> bool:
        """True if its state is final."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenChain:
    """A chain that is in no snapshot, or that something was left out of, and why."""

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
    """One move of a ref.

    Attributes:
        digest: where it points since; empty: it was deleted.
        previous: where it pointed; None: it was new.
        moved_at: ISO 8601 UTC.
        principal: who moved it; `store`: a writer that bypassed the service.
        job: the job that moved it, if one did.
    """

    digest: str
    previous: str | None
    moved_at: str
    principal: str
    job: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret; times are ISO 8601 UTC.

    Attributes:
        id: its name, and the middle of its text.
        datasets: it is for these only; None: for all.
        roots: places it may name; None: all that are open.
        parent: the token it was made with, and ends with.
        expires_at: when it ends; None: never.
        revoked_at: when it was made worthless, if it was.
        last_used_at: to the minute.
    """

    id: str
    label: str
    scopes: list[str]
    datasets: list[str] | None = None
    roots: list[str] | None = None
    parent: str | None = None
    created_at: str = ""
    expires_at: str | None = None
    revoked_at: str | None = None
    last_used_at: str | None = None
