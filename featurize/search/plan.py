"""Which sequences are searched together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from evofeed.featurize.job.units import Unit
from evofeed.featurize.search.config import Kind
from evofeed.featurize.search.searchers import Query

_CALL_COST: Final = 60
"""Residues' worth of work that a search costs however short its sequence is."""
_SHARES: Final = 6
"""Units per slot: few enough to cost nothing, enough that no slot waits long for the last."""
_MOST: Final[dict[Kind, int]] = {"fasta": 16, "rna": 16, "hh": 4, "mmseqs": 4096}
"""Sequences of a unit; what is killed with it is done again. mmseqs pays by the call."""


def cost_of(sequence: str) -> int:
    """Predicted work of one search, in residues."""
    return len(sequence) + _CALL_COST


def make_units(database: int, kind: Kind, queries: Iterable[Query], slots: int) -> list[Unit]:
    """Units of about equal cost, the most expensive sequences first.

    Args:
        database: its place in the list.
        kind: of the database.
        queries: what to search.
        slots: units that run at once.
    """
    waiting = sorted(queries, key=lambda query: (-len(query.sequence), query.key))
    shares = max(slots, 1) * (1 if kind == "mmseqs" else _SHARES)
    ceiling = -(-sum(cost_of(query.sequence) for query in waiting) // shares)
    units: list[list[Query]] = []
    filled = 0
    for query in waiting:
        full = filled + cost_of(query.sequence) > ceiling
        if not units or full or len(units[-1]) >= _MOST[kind]:
            units.append([])
            filled = 0
        units[-1].append(query)
        filled += cost_of(query.sequence)
    return [_unit(database, unit) for unit in units]


def _unit(database: int, queries: Sequence[Query]) -> Unit:
    keys = tuple(query.key for query in queries)
    name = hashlib.sha256("\n".join([str(database), *keys]).encode()).hexdigest()
    costs = [cost_of(query.sequence) for query in queries]
    return Unit(name, keys, sum(costs), max(costs))
