"""The plan of a job: which chains are worked on together, decided before anything runs.

A plan depends on the input and the settings only, never on how many workers
there are: a unit becomes a shard, so the plan decides the bytes of the snapshot.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evofeed import __version__
from evofeed.errors import InputError
from evofeed.featurize.config import CropConfig, FeaturizeConfig
from evofeed.featurize.sources import ChainSource

MIN_CHAINS, MAX_CHAINS = 16, 64
_COMMON_COST = 50_000  # bytes' worth of work that every chain costs, however small


@dataclass(frozen=True, slots=True)
class Unit:
    """Some chains featurised together into one shard; `cost` is in bytes of input."""

    unit_id: str
    chain_ids: tuple[str, ...]
    cost: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All units of a job, the most expensive first, and the sources by chain id."""

    digest: str
    units: tuple[Unit, ...]
    sources: dict[str, ChainSource]


def make_plan(
    sources: Sequence[ChainSource], config: FeaturizeConfig, crop: CropConfig | None
) -> Plan:
    """Units of 16 to 64 chains (fewer only in small inputs) of about equal cost.

    Raises:
        InputError: two chains have the same id, or there is none.
    """
    by_id = {source.chain_id: source for source in sources}
    if len(by_id) != len(sources) or not sources:
        raise InputError(_complaint(sources))
    stamps = {source.chain_id: _stamp(source, config) for source in sources}
    costs = {chain_id: cost for chain_id, (_, cost) in stamps.items()}
    settings = [__version__, config.digest, crop.digest if crop else ""]
    units = []
    for chain_ids in _pack(costs):
        parts = [*settings, *(f"{chain_id} {stamps[chain_id][0]}" for chain_id in chain_ids)]
        units.append(Unit(_sha(parts), chain_ids, sum(costs[chain_id] for chain_id in chain_ids)))
    units.sort(key=lambda unit: (-unit.cost, unit.unit_id))
    return Plan(_sha([unit.unit_id for unit in units]), tuple(units), by_id)


def _complaint(sources: Sequence[ChainSource]) -> str:
    ids = sorted(source.chain_id for source in sources)
    twice = [a for a, b in itertools.pairwise(ids) if a == b]
    return f"chain {twice[0]} is there twice ({len(twice)} such)" if twice else "no chain in it"


def _pack(costs: dict[str, int]) -> list[tuple[str, ...]]:
    """Each chain, dearest first, into the cheapest unit that has room."""
    size = min(max(len(costs) // 64, MIN_CHAINS), MAX_CHAINS)
    count = -(-len(costs) // size)
    heap = [(0, k) for k in range(count)]
    members: list[list[str]] = [[] for _ in range(count)]
    for chain_id in sorted(costs, key=lambda chain_id: (-costs[chain_id], chain_id)):
        cost, k = heapq.heappop(heap)
        members[k].append(chain_id)
        if len(members[k]) < MAX_CHAINS:
            heapq.heappush(heap, (cost + costs[chain_id], k))
    return [tuple(sorted(chain_ids)) for chain_ids in members if chain_ids]


def _stamp(source: ChainSource, config: FeaturizeConfig) -> tuple[str, int]:
    """What changes when an input of the chain changes, and the predicted cost in bytes.

    Size and time of each file, not its content: reading it all would cost as much
    as the job. A file that is missing is work for the job to complain about.
    """
    parts, cost = [json.dumps(source.to_dict(), sort_keys=True, default=str)], _COMMON_COST
    try:
        refs = [ref for role, ref in source.alignment_files(config) if role != "other"]
    except InputError:
        refs = []
    structure = source.structure_ref()
    for ref in [*refs, structure] if structure else refs:
        try:
            stat = Path(ref.path).stat()
            parts.append(f"{ref.path} {ref.offset} {ref.size} {stat.st_size} {stat.st_mtime_ns}")
        except OSError:
            parts.append(f"{ref.path} missing")
        cost += ref.nbytes()
    return _sha(parts), cost


def _sha(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
