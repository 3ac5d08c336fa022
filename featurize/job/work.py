"""One unit of work: featurize its chains, write their shard, describe their failures.

Runs inside a worker process (`worker.py`) that may die at any moment; the shards that
it writes are content-addressed, so that writing them again changes nothing.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from evofeed.base.errors import EvofeedError, InputError, StoreError
from evofeed.base.within import Limits, limited_to
from evofeed.featurize.config import CropConfig, FeaturizeConfig
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.msa import merge
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.job.template_use import TemplateUse
from evofeed.featurize.records.chain import featurize_chain
from evofeed.featurize.records.crop import crop_record
from evofeed.featurize.records.template_library import (
    FolderUse,
    TemplateLibrary,
    forget_libraries,
    template_library,
)
from evofeed.featurize.structures.structure_files import parse_structure
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.structure_text import ATOM_ITEMS, loop
from evofeed.store import write_shard

_NOTES_PER_CHAIN = 20
_BASE_MEMORY = 640 << 20  # interpreter and libraries of worker and watcher, cached templates
_MEMORY_STEP = 256 << 20
_MEMORY_PER_BYTE = 6  # measured: 4 on an a3m of 105 MB, with some room
_SHARD_PER_BYTE = 2
_A3M: Final = b">query\nMA\n>row\nM-\n"
_STOCKHOLM: Final = b"# STOCKHOLM 1.0\nquery MA\nrow M-\n//\n"
_ATOMS: Final = (
    "ATOM 1 C CA . MET A 1 1 ? 0 0 0 1 0 1 A 1",
    "ATOM 2 C CA . ALA A 1 2 ? 3.8 0 0 1 0 2 A 1",
)
_run = ""  # the run that this process, or the one it was forked from, last worked for


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOutput:
    """Result of a unit of any kind of job."""

    unit_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(abc.ABC):
    """Work for a worker of any kind of job: small, picklable.

    Attributes:
        dataset_uri: where its shard goes; empty if it makes none.
        expected_memory: bytes it is likely to take, for the scheduler; 0: unknown.
    """

    unit_id: str
    dataset_uri: str = ""
    expected_memory: int = 0

    @abc.abstractmethod
    def work(self, set_current: Callable[[str], None]) -> UnitOutput:
        """Do the unit. `set_current` is called with the id of each item before it is read, and
        with "" after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTask(Task):
    """Chains to featurize.

    Attributes:
        memory: bytes one chain may add to its process; above that, MemoryError.
        run: id of the job's run; a worker forgets the template files of an earlier run.
        limits: folders that inputs must lie in, and the dataset in its own; None: anywhere.
    """

    sources: tuple[ChainSource, ...]
    config: FeaturizeConfig
    crop: CropConfig | None
    memory: int
    run: str = ""
    limits: Limits | None = None

    def work(self, set_current: Callable[[str], None]) -> UnitResult:
        """Featurize every chain of the unit and write the good ones as one shard.

        Raises:
            StoreError: the shard cannot be written.
        """
        _load_readers()
        with limited_to(self.limits):
            return _featurize_unit(self, set_current)


def expected_memory(largest: int, total: int) -> int:
    """Bytes that worker and watcher are likely to take over a unit, by unpacked bytes of its
    largest chain's input, and of all: their packed records wait in memory for the shard.

    In steps: Ray schedules tasks that ask for the same together.
    """
    need = _BASE_MEMORY + _MEMORY_PER_BYTE * largest + _SHARD_PER_BYTE * total
    return -(-need // _MEMORY_STEP) * _MEMORY_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult(UnitOutput):
    """Result of a unit of chains or entries: names and counts, never features.

    Attributes:
        shard: `ShardEntry.to_dict()`; None if no chain was good.
        failures: one dict per broken chain: `chain_id type message path line`.
        templates: the template files that good chains needed, by folder.
        notes: messages by chain id on what was omitted from good chains.
    """

    shard: dict[str, Any] | None
    num_chains: int
    failures: tuple[dict[str, Any], ...]
    notes: dict[str, tuple[str, ...]]
    templates: TemplateUse = field(default_factory=dict)


class _Unit:
    """State of one unit while its chains are featurized."""

    def __init__(self, task: UnitTask, set_current: Callable[[str], None]) -> None:
        self.task = task
        self.set_current = set_current
        self.current = ""
        self.failures: dict[str, dict[str, Any]] = {}
        self.notes: dict[str, tuple[str, ...]] = {}
        self.num_chains = 0
        self.templates: TemplateUse = {}

    def records(self) -> Iterator[ChainRecord]:
        """Records of good chains one by one, so that only one is in memory uncompressed."""
        self.num_chains, self.templates = 0, {}
        for source in self.task.sources:
            if source.chain_id in self.failures:
                continue
            self.current = source.chain_id
            self.set_current(source.chain_id)
            with _memory_cap(self.task.memory):
                if record := self._featurize(source):
                    self.num_chains += 1
                    yield record  # encoded by the store before the next chain is made
        self.current = ""
        self.set_current("")

    def _featurize(self, source: ChainSource) -> ChainRecord | None:
        """The record of a chain, None if it is broken."""
        library = self._library(source)
        try:
            record = featurize_chain(source, self.task.config)
            record = crop_record(record, self.task.crop) if self.task.crop else record
        except Exception as error:  # the watcher handles a crash of the process
            self.add_failure(source.chain_id, error)
            return None
        if library is not None:
            self.templates.setdefault(library.folder, FolderUse()).add(library.use)
        if record.dropped:
            self.notes[source.chain_id] = tuple(dict.fromkeys(record.dropped))[:_NOTES_PER_CHAIN]
        return record

    def _library(self, source: ChainSource) -> TemplateLibrary | None:
        """The template library that `featurize_chain` will use, with its use reset."""
        with contextlib.suppress(InputError):  # which `featurize_chain` will raise again
            library = template_library(source, self.task.config)
            if library is not None:
                library.use = FolderUse()
            return library
        return None

    def add_failure(self, chain_id: str, error: Exception) -> None:
        self.notes.pop(chain_id, None)
        self.failures[chain_id] = describe(error, self.task.memory) | {"chain_id": chain_id}


@functools.cache
def _load_readers() -> None:
    """Load and compile the readers by reading two residues.

    In a fresh process that takes a second, with nothing compiled yet 10 s, on a slow machine a
    minute: so it is done before the deadline of a chain begins.
    """
    merge([parse_a3m(_A3M), parse_stockholm(_STOCKHOLM)])
    text = "\n".join(["data_1abc", *loop("_atom_site", ATOM_ITEMS, _ATOMS)])
    parse_structure(text.encode(), "1abc.cif").chain("A")
    pa.array([""])


def _featurize_unit(task: UnitTask, set_current: Callable[[str], None]) -> UnitResult:
    global _run
    if task.run != _run:
        forget_libraries()
        _run = task.run
    unit = _Unit(task, set_current)
    while True:
        records = unit.records()
        try:
            if (first := next(records, None)) is None:
                shard = None
            else:
                shard = write_shard(task.dataset_uri, itertools.chain([first], records)).to_dict()
            break
        except StoreError:
            raise
        except Exception as error:  # the store refused a record: try again without that chain
            if not unit.current:
                raise
            unit.add_failure(unit.current, error)
    failures = tuple(unit.failures[chain_id] for chain_id in sorted(unit.failures))
    return UnitResult(
        unit_id=task.unit_id,
        shard=shard,
        num_chains=unit.num_chains,
        failures=failures,
        notes=unit.notes,
        templates=unit.templates,
    )


def describe(error: Exception, memory: int = 0) -> dict[str, Any]:
    """An error as `type message path line`, the same each time it happens."""
    if isinstance(error, EvofeedError):
        fields = error.to_dict()
        del fields["item"]
        return fields
    frames = traceback.extract_tb(error.__traceback__)
    location = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = f"{error}{location} (not foreseen: please report it)"
    if isinstance(error, MemoryError):
        message = f"needs more than {memory >> 20} MiB; allow more if the input is right"
    return {"type": type(error).__name__, "message": message, "path": None, "line": None}


@contextmanager
def _memory_cap(nbytes: int) -> Iterator[None]:
    """Let the process grow by `nbytes` of address space; then MemoryError."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    cap = size + nbytes if hard == resource.RLIM_INFINITY else min(size + nbytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (cap, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
