"""The plan of a job: its chains grouped into units, before anything runs.

A plan depends on the input and the settings only, never on the number of workers:
a unit becomes a shard, so the plan decides the bytes of the snapshot.
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

_UNIT_SIZES = ((128, 4), (512, 8), (4096, 16))  # (chains of the input below, fewest of a unit)
_UNPACKED = 5  # times the size of a packed alignment, usually
_COMMON_COST = 50_000  # cost in bytes that every chain has, however small


@dataclass(frozen=True, slots=True)
class Unit:
    """Some chains featurized together into one shard; `cost` is in bytes of input.

    `largest` is the approximate unpacked size of its largest chain, which decides how much memory
    is needed.
    """

    unit_id: str
    chain_ids: tuple[str, ...]
    cost: int
    largest: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All units of a job, the most expensive first, the sources by chain id, and their inputs.

    `inputs` has size and time of every existing file, by `input_key`.
    """

    digest: str
    units: tuple[Unit, ...]
    sources: dict[str, ChainSource]
    inputs: dict[str, str]


def make_plan(
    sources: Sequence[ChainSource], config: FeaturizeConfig, crop: CropConfig | None
) -> Plan:
    """A plan with units of a few dozen chains, most of which stay when chains are added or removed.

    Raises:
        InputError: two chains have the same id, or the input has none.
    """
    by_id = {source.chain_id: source for source in sources}
    if len(by_id) != len(sources) or not sources:
        raise InputError(_describe_duplicates(sources))
    inputs: dict[str, str] = {}
    stamps, costs, sizes = {}, {}, {}
    stamp = functools.cache(stamp_of)
    for source in sources:
        refs = list(input_files(source, config))
        by_key = {input_key(ref): stamp(ref.path) for ref in refs}
        inputs |= {key: file_stamp for key, file_stamp in by_key.items() if file_stamp}
        parts = [f"{key} {file_stamp or 'missing'}" for key, file_stamp in by_key.items()]
        stamps[source.chain_id] = sha_of(json.dumps(source.to_dict(), sort_keys=True), *parts)
        shared = (source.release_dates, source.obsolete_pdbs)
        refs = [ref for ref in refs if ref.path not in shared]
        costs[source.chain_id] = _COMMON_COST + sum(ref.nbytes() for ref in refs)
        sizes[source.chain_id] = sum(map(_unpacked_size, refs))
    settings = [__version__, config.digest, crop.digest if crop else ""]
    units = []
    for chain_ids in _cut_into_units(by_id):
        parts = [*settings, *(f"{chain_id} {stamps[chain_id]}" for chain_id in chain_ids)]
        cost = sum(costs[chain_id] for chain_id in chain_ids)
        units.append(Unit(sha_of(*parts), chain_ids, cost, max(sizes[c] for c in chain_ids)))
    units.sort(key=lambda unit: (-unit.cost, unit.chain_ids))
    return Plan(sha_of(*(unit.unit_id for unit in units)), tuple(units), by_id, inputs)


def _describe_duplicates(sources: Sequence[ChainSource]) -> str:
    """Message on chain ids that are there twice, or on an input without chains."""
    ids = sorted(source.chain_id for source in sources)
    twice = [a for a, b in itertools.pairwise(ids) if a == b]
    return f"chain {twice[0]} is there twice ({len(twice)} such)" if twice else "no chain in it"


def unit_sizes(num_chains: int) -> tuple[int, int]:
    """Minimum and maximum chains of a unit: small inputs need many units to occupy all workers."""
    minimum = next((size for below, size in _UNIT_SIZES if num_chains < below), 32)
    return minimum, 2 * minimum


def _cut_into_units(chain_ids: Collection[str]) -> list[tuple[str, ...]]:
    """Chain ids in sorted order, cut after an id whose hash says so (content-defined chunking).

    An added or removed chain moves the next cuts only, up to the first that falls on the same id.
    """
    minimum, maximum = unit_sizes(len(chain_ids))
    units: list[list[str]] = [[]]
    for chain_id in sorted(chain_ids):
        units[-1].append(chain_id)
        is_cut = zlib.crc32(chain_id.encode()) % max(minimum // 2, 1) == 0
        if len(units[-1]) == maximum or (is_cut and len(units[-1]) >= minimum):
            units.append([])
    return [tuple(unit) for unit in units if unit]


def _unpacked_size(ref: FileRef) -> int:
    """Approximate size of an input in bytes once it is unpacked."""
    is_packed = ref.path.endswith(PACKED) or ref.name.endswith(PACKED)
    return ref.nbytes() * (_UNPACKED if is_packed else 1)


def sha_of(*parts: str) -> str:
    """The SHA-256 of texts in this order, as the id of a unit or a job."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def input_files(source: ChainSource, config: FeaturizeConfig) -> Iterator[FileRef]:
    """Every input file of a chain's features, except template structures."""
    unread = {"other"}
    if source.template_mmcif_dir is None or not config.max_templates:
        unread |= {"hhr", "hmmsearch"}
    with contextlib.suppress(InputError):  # which the worker will report
        files = [(role, ref) for role, ref in source.alignment_files(config) if role not in unread]
        yield from (ref for _, ref in files)
        if any(role in ("hhr", "hmmsearch") for role, _ in files):
            yield from map(file_ref, filter(None, (source.release_dates, source.obsolete_pdbs)))
    structure = source.structure_ref()
    if structure is not None:
        yield structure
    elif source.fasta is not None and not source.sequence:
        yield file_ref(source.fasta)


def input_key(ref: FileRef) -> str:
    """Key of an input: its span in a file, and the file's path."""
    span = f"{ref.offset} {ref.size}"
    if ref.part:  # of a whole file
        span = f"{quote(ref.part)} -"
    return f"{span} {ref.path}"


def path_of(key: str) -> str:
    """The file of an input, by its `input_key`."""
    return key.split(" ", 2)[2]


def stamp_of(path: str | Path) -> str:
    """Size and modification time of a file; '' if it does not exist.

    A digest of every file's content would cost as much as the job. So a file that was only
    touched, copied or moved counts as changed, and its units are done again.
    """
    try:
        stat = Path(path).stat()
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns}"
