"""Which sequences are searched together, and which node takes which database next."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from evofeed.base.errors import JobError
from evofeed.featurize.job.dispatch import InFlight, Queue
from evofeed.featurize.job.executors import Executor, Node
from evofeed.featurize.job.units import Unit
from evofeed.featurize.search.config import Database, Kind
from evofeed.featurize.search.searchers import Query

_CALL_COST: Final = 60
"""Residues' worth of work that a search costs however short its sequence is."""
_SHARES: Final = 6
"""Units per slot: few enough to cost nothing, enough that no slot waits long for the last."""
_MOST: Final[dict[Kind, int]] = {"fasta": 16, "rna": 16, "hh": 4, "mmseqs": 4096}
"""Sequences of a unit; what is killed with it is done again. mmseqs pays by the call."""
_NOWHERE: Final = 60.0
"""Seconds to wait for a node that holds a database."""
REST: Final = 6.0
"""Seconds until Ray says that a node has died, and some."""


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


class Schedule(Queue):
    """Units waiting for nodes. A node works through one database before it takes the next.

    Args:
        databases: all that are searched.
        units: number of its database, by unit.
        cores: that a unit takes.
        rest: seconds a node that may be lost gets no unit.
    """

    def __init__(
        self,
        databases: Sequence[Database],
        units: Mapping[str, int],
        cores: int = 1,
        rest: float = REST,
    ) -> None:
        self.databases, self._database, self._cores = databases, units, cores
        self.waiting: list[deque[str]] = [deque() for _ in databases]
        for unit_id, number in units.items():
            self.waiting[number].append(unit_id)
        self._rest = rest
        self._current: dict[str, int] = {}  # database by node
        self._failed_at: dict[str, str] = {}  # node by unit
        self._resting: dict[str, float] = {}
        self._idle_since = time.monotonic()

    def __bool__(self) -> bool:
        return any(self.waiting)

    def put(self, unit_id: str, node: str, *, is_lost: bool = False) -> None:
        """One more unit to do, elsewhere if there is an elsewhere."""
        self.waiting[self._database[unit_id]].append(unit_id)
        self._failed_at[unit_id] = node
        if is_lost:
            self._resting[node] = time.monotonic() + self._rest

    def take(self, executor: Executor, in_flight: InFlight) -> tuple[str, str] | None:
        """The next unit and its node.

        Raises:
            JobError: no node holds a database.
        """
        nodes, now = executor.nodes(self._cores), time.monotonic()
        busy = Counter(node_id for node_id, _ in in_flight.values())
        for node in nodes:
            if busy[node.node_id] >= node.slots or self._resting.get(node.node_id, 0.0) > now:
                continue
            if unit_id := self.take_for(node, nodes):
                return unit_id, node.node_id
        if in_flight or not self:
            self._idle_since = now
        elif now - self._idle_since > _NOWHERE:
            waiting = (number for number, units in enumerate(self.waiting) if units)
            nowhere = (n for n in waiting if not any(self._holds(a, n, nodes) for a in nodes))
            name = next((self.databases[number].name for number in nowhere), "?")
            raise JobError(
                f"no node holds the database {name!r}: start one with `ray start --address=... "
                f"--resources='{{\"db:{name}\": 1}}'`, and run it again"
            )
        return None

    def take_for(self, node: Node, nodes: Sequence[Node]) -> str:
        """The next unit for a node, '' if there is none that it can do."""
        order = list(range(len(self.databases)))
        start = self._current.get(node.node_id, 0)
        for number in order[start:] + order[:start]:
            if not self._holds(node, number, nodes):
                continue
            elsewhere = any(self._holds(n, number, nodes) for n in nodes if n != node)
            for position, unit_id in enumerate(self.waiting[number]):
                if self._failed_at.get(unit_id) != node.node_id or not elsewhere:
                    del self.waiting[number][position]
                    self._current[node.node_id] = number
                    return unit_id
        return ""

    def _holds(self, node: Node, number: int, nodes: Sequence[Node]) -> bool:
        """Whether a node has a database; all have those that none names as its resource."""
        resource = self.databases[number].resource
        named = [other for other in nodes if resource in other.resources]
        return node in named if named else True
