"""Which sequences are searched together, and which node takes which database next."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from evofeed.featurize.job.executors import Node
from evofeed.featurize.search.config import Database, Kind
from evofeed.featurize.search.searchers import Query

_CALL_COST: Final = 60
"""Residues' worth of work that a search costs however short its sequence is."""
_SHARES: Final = 6
"""Units per slot: few enough to cost nothing, enough that no slot waits long for the last."""
_MOST: Final[dict[Kind, int]] = {"fasta": 16, "shards": 16, "part": 16, "hh": 4, "mmseqs": 4096}
"""Sequences of a unit; what is killed with it is done again. mmseqs pays by the call."""


@dataclass(frozen=True, slots=True)
class SearchUnit:
    """Sequences searched together. `database` is its place in the list of databases."""

    unit_id: str
    database: int
    kind: Kind
    queries: tuple[Query, ...]
    cost: int
    avoid: str = ""
    """Node that failed with it."""


def cost_of(query: Query) -> int:
    """Predicted work of one search, in residues."""
    return len(query.sequence) + _CALL_COST


def make_units(
    database: int, kind: Kind, queries: Iterable[Query], slots: int, avoid: str = ""
) -> list[SearchUnit]:
    """Units of about equal cost, the most expensive sequences first.

    Args:
        database: its place in the list.
        kind: of the database.
        queries: what to search.
        slots: units that run at once.
        avoid: a node that shall not have them if another can.
    """
    waiting = sorted(queries, key=lambda query: (-len(query.sequence), query.key))
    shares = max(slots, 1) * (1 if kind == "mmseqs" else _SHARES)
    ceiling = -(-sum(map(cost_of, waiting)) // shares)
    units: list[list[Query]] = []
    filled = 0
    for query in waiting:
        full = filled + cost_of(query) > ceiling or (units and len(units[-1]) >= _MOST[kind])
        if not units or full:
            units.append([])
            filled = 0
        units[-1].append(query)
        filled += cost_of(query)
    return [_unit(database, kind, tuple(unit), avoid) for unit in units]


def cut_up(unit: SearchUnit, parts: int) -> list[SearchUnit]:
    """A unit as up to `parts` smaller ones; one that is a single sequence stays as it is."""
    each = -(-len(unit.queries) // parts)
    starts = range(0, len(unit.queries), each)
    return [_unit(unit.database, unit.kind, unit.queries[n : n + each], unit.avoid) for n in starts]


def _unit(database: int, kind: Kind, queries: tuple[Query, ...], avoid: str) -> SearchUnit:
    name = hashlib.sha256("\n".join([str(database), *(q.key for q in queries)]).encode())
    return SearchUnit(name.hexdigest(), database, kind, queries, sum(map(cost_of, queries)), avoid)


class Schedule:
    """Units waiting for nodes. A node works through one database before it takes the next."""

    def __init__(self, databases: Sequence[Database], units: Iterable[SearchUnit] = ()) -> None:
        self.databases = databases
        self.waiting: list[deque[SearchUnit]] = [deque() for _ in databases]
        self._at: dict[str, int] = {}
        for unit in units:
            self.put(unit)

    def __bool__(self) -> bool:
        return any(self.waiting)

    def put(self, unit: SearchUnit) -> None:
        """One more unit to do."""
        self.waiting[unit.database].append(unit)

    def take(self, node: Node, nodes: Sequence[Node]) -> SearchUnit | None:
        """The next unit for a node, None if there is none that it can do."""
        order = list(range(len(self.databases)))
        at = self._at.get(node.node_id, 0)
        for number in order[at:] + order[:at]:
            if not self.holds(node, number, nodes):
                continue
            for position, unit in enumerate(self.waiting[number]):
                others = [n for n in nodes if n != node and self.holds(n, number, nodes)]
                if unit.avoid != node.node_id or not others:
                    del self.waiting[number][position]
                    self._at[node.node_id] = number
                    return unit
        return None

    def holds(self, node: Node, number: int, nodes: Sequence[Node]) -> bool:
        """Whether a node has a database; all have those that none names as its resource.

        Who offers a sharded database as a whole has each of its shards.
        """
        database = self.databases[number]
        names = {database.resource, *([f"db:{database.whole}"] if database.whole else [])}
        named = [other for other in nodes if names & other.resources.keys()]
        return node in named if named else True

    def orphans(self, nodes: Sequence[Node]) -> list[str]:
        """Databases with units waiting that no node holds."""
        return [
            self.databases[number].name
            for number, waiting in enumerate(self.waiting)
            if waiting and not any(self.holds(node, number, nodes) for node in nodes)
        ]
