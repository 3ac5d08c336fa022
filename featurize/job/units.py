"""The plan of a job: which chains are worked on together, decided before anything runs.

A plan depends on the input and the settings only, never on how many workers
there are: a unit becomes a shard, so the plan decides the bytes of the snapshot.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evofeed import __version__
from evofeed.errors import InputError
from evofeed.featurize.config import CropConfig, FeaturizeConfig
from evofeed.featurize.job.inputs import Stamp, input_key, inputs_of, stamp_of
from evofeed.featurize.reading import FileRef
from evofeed.featurize.sources import ChainSource

MIN_CHAINS, MAX_CHAINS = 16, 64
_UNPACKED = 5  # times the size of a packed alignment, usually
_COMMON_COST = 50_000  # bytes' worth of work that every chain costs, however small


@dataclass(frozen=True, slots=True)
class Unit:
    """Some chains featurised together into one shard; `cost` is in bytes of input.

    `largest` is the size of its largest chain, about what it is unpacked: it decides how much
    memory is needed.
    """

    unit_id: str
    chain_ids: tuple[str, ...]
    cost: int
    largest: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All units of a job, the most expensive first, the sources by chain id, and their inputs.

    `inputs` has every file that is there, by `input_key`, as it was seen while planning.
    """

    digest: str
    units: tuple[Unit, ...]
    sources: dict[str, ChainSource]
    inputs: dict[str, Stamp]


def make_plan(
    sources: Sequence[ChainSource],
    config: FeaturizeConfig,
    crop: CropConfig | None,
    known: Mapping[str, Stamp] | None = None,
    check_content: bool = False,
) -> Plan:
    """Units of 16 to 64 chains (fewer only in small inputs) of about equal cost.

    Args:
        sources: the chains.
        config: how they are featurised.
        crop: what is cut off.
        known: inputs that were read before, by `input_key`.
        check_content: read those again rather than believe size and time.

    Raises:
        InputError: two chains have the same id, or there is none.
    """
    by_id = {source.chain_id: source for source in sources}
    if len(by_id) != len(sources) or not sources:
        raise InputError(_complaint(sources))
    inputs: dict[str, Stamp] = {}
    stamps, costs, sizes = {}, {}, {}
    for source in sources:
        found = [
            (ref, _seen(ref, config, known or {}, check_content, inputs))
            for ref in inputs_of(source, config)
        ]
        stamps[source.chain_id] = _stamp(source, [stamp for _, stamp in found])
        costs[source.chain_id] = _COMMON_COST + sum(ref.nbytes() for ref, _ in found)
        sizes[source.chain_id] = sum(_unpacked(ref) for ref, _ in found)
    settings = [__version__, config.digest, crop.digest if crop else ""]
    units = []
    for chain_ids in _pack(costs):
        parts = [*settings, *(f"{chain_id} {stamps[chain_id]}" for chain_id in chain_ids)]
        cost = sum(costs[chain_id] for chain_id in chain_ids)
        units.append(Unit(_sha(parts), chain_ids, cost, max(sizes[c] for c in chain_ids)))
    units.sort(key=lambda unit: (-unit.cost, unit.unit_id))
    return Plan(_sha([unit.unit_id for unit in units]), tuple(units), by_id, inputs)


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


def _seen(
    ref: FileRef,
    config: FeaturizeConfig,
    known: Mapping[str, Stamp],
    check_content: bool,
    inputs: dict[str, Stamp],
) -> str:
    """What names an input, which is entered into `inputs` if it is there."""
    key = input_key(ref)
    stamp = stamp_of(ref, config, known.get(key), check_content)
    if stamp is None:  # work for the job to complain about
        return f"{key} missing"
    inputs[key] = stamp
    return f"{key} {stamp.name}"


def _unpacked(ref: FileRef) -> int:
    """About how many bytes an input has once it is unpacked."""
    packed = ref.name.endswith((".gz", ".zst"))
    return ref.nbytes() * (_UNPACKED if packed else 1)


def _stamp(source: ChainSource, inputs: Sequence[str]) -> str:
    """What changes when an input of the chain changes."""
    return _sha([json.dumps(source.to_dict(), sort_keys=True, default=str), *inputs])


def _sha(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
