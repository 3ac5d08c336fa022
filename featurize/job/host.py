"""What a job reports to the service that runs it, and asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evofeed.base.within import Limits
from evofeed.featurize.job.lock import Waits, a_while
from evofeed.store.inner import MoveRef, move_ref

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
