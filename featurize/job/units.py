"""The plan of a job: which chains are worked on together, decided before anything runs.

A plan depends on the input and the settings only, never on how many workers
there are: a unit becomes a shard, so the plan decides the bytes of the snapshot.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from evofeed import __version__
from evofeed.base.errors import InputError
from evofeed.featurize.config import CropConfig, FeaturizeConfig
from evofeed.featurize.formats.reading import PACKED, FileRef, file_ref
from evofeed.featurize.inputs.sources import ChainSource

_FEWEST = ((128, 4), (512, 8), (4096, 16))  # chains of a unit, in inputs of fewer than
_UNPACKED = 5  # times the size of a packed alignment, usually
_COMMON_COST = 50_000  # bytes' worth of work that every chain costs, however small


@dataclass(frozen=True, slots=True)
class Unit:
    """Some chains featurized together into one shard; `cost` is in bytes of input.

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

    `inputs` has size and time of every file that is there, by `input_key`.
    """

    digest: str
    units: tuple[Unit, ...]
    sources: dict[str, ChainSource]
    inputs: dict[str, str]


def make_plan(
    sources: Sequence[ChainSource], config: FeaturizeConfig, crop: CropConfig | None
) -> Plan:
    """Units of some dozen chains, which change little when chains come or go.

    Raises:
        InputError: two chains have the same id, or there is none.
    """
    by_id = {source.chain_id: source for source in sources}
    if len(by_id) != len(sources) or not sources:
        raise InputError(_complaint(sources))
    inputs: dict[str, str] = {}
    stamps, costs, sizes = {}, {}, {}
    stamp = functools.cache(stamp_of)
    for source in sources:
        found = list(inputs_of(source, config))
        seen = {input_key(ref): stamp(ref.path) for ref in found}
        inputs |= {key: now for key, now in seen.items() if now}
        named = [f"{key} {now or 'missing'}" for key, now in seen.items()]
        found = [
            ref for ref in found if ref.path not in (source.release_dates, source.obsolete_pdbs)
        ]
        stamps[source.chain_id] = sha_of(json.dumps(source.to_dict(), sort_keys=True), *named)
        costs[source.chain_id] = _COMMON_COST + sum(ref.nbytes() for ref in found)
        sizes[source.chain_id] = sum(map(_unpacked, found))
    settings = [__version__, config.digest, crop.digest if crop else ""]
    units = []
    for chain_ids in _cut(by_id):
        parts = [*settings, *(f"{chain_id} {stamps[chain_id]}" for chain_id in chain_ids)]
        cost = sum(costs[chain_id] for chain_id in chain_ids)
        units.append(Unit(sha_of(*parts), chain_ids, cost, max(sizes[c] for c in chain_ids)))
    units.sort(key=lambda unit: (-unit.cost, unit.chain_ids))
    return Plan(sha_of(*(unit.unit_id for unit in units)), tuple(units), by_id, inputs)


def _complaint(sources: Sequence[ChainSource]) -> str:
    ids = sorted(source.chain_id for source in sources)
    twice = [a for a, b in itertools.pairwise(ids) if a == b]
    return f"chain {twice[0]} is there twice ({len(twice)} such)" if twice else "no chain in it"


def unit_sizes(num_chains: int) -> tuple[int, int]:
    """The fewest and the most chains of a unit: small inputs need many units to be shared out."""
    fewest = next((size for below, size in _FEWEST if num_chains < below), 32)
    return fewest, 2 * fewest


def _cut(chain_ids: Collection[str]) -> list[tuple[str, ...]]:
    """Chains in the order of their names, cut where a name's own hash says so.

    A chain more or less moves the cuts beside it, until one falls on the same name as before.
    """
    fewest, most = unit_sizes(len(chain_ids))
    units: list[list[str]] = [[]]
    for chain_id in sorted(chain_ids):
        units[-1].append(chain_id)
        ends = zlib.crc32(chain_id.encode()) % max(fewest // 2, 1) == 0
        if len(units[-1]) == most or (ends and len(units[-1]) >= fewest):
            units.append([])
    return [tuple(unit) for unit in units if unit]


def _unpacked(ref: FileRef) -> int:
    """About how many bytes an input has once it is unpacked."""
    packed = ref.path.endswith(PACKED) or ref.name.endswith(PACKED)
    return ref.nbytes() * (_UNPACKED if packed else 1)


def sha_of(*parts: str) -> str:
    """What names a unit or a job: of these texts in this order."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def inputs_of(source: ChainSource, config: FeaturizeConfig) -> Iterator[FileRef]:
    """Every input a chain's features are made of, template structures apart."""
    unread = {"other"}
    if source.template_mmcif_dir is None or not config.max_templates:
        unread |= {"hhr", "hmmsearch"}
    with contextlib.suppress(InputError):  # for the job to complain about
        files = [one for one in source.alignment_files(config) if one[0] not in unread]
        yield from (ref for _, ref in files)
        if any(role in ("hhr", "hmmsearch") for role, _ in files):
            yield from map(file_ref, filter(None, (source.release_dates, source.obsolete_pdbs)))
    structure = source.structure_ref()
    if structure is not None:
        yield structure
    elif source.fasta is not None and not source.sequence:
        yield file_ref(source.fasta)


def input_key(ref: FileRef) -> str:
    """Where an input is."""
    span = f"{ref.offset} {ref.size}"
    if ref.part:  # of a whole file
        span = f"{quote(ref.part)} -"
    return f"{span} {ref.path}"


def path_of(key: str) -> str:
    """The file of an input, by its `input_key`."""
    return key.split(" ", 2)[2]


def stamp_of(path: str | Path) -> str:
    """Size and time of a file as it is now; '' if it is not there.

    Reading everything to name it by its content would cost as much as the job. So a file that
    was only touched, copied or moved since is another one, and its units are done again.
    """
    try:
        stat = Path(path).stat()
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns}"
