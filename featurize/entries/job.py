"""A job of entries: discovery, plan, ledger, execution and one publication.

It shares ledger, executors, blame and report with a job of chains; only its units differ. Entries
and alignments come first, then the reference molecules of the components that the entries need.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from evofeed import __version__
from evofeed.base.errors import InputError, JobError
from evofeed.featurize.entries.input import (
    EntriesInput,
    alignment_items,
    cluster_table,
    entry_items,
    failure,
    structure_files,
    utf8_items,
    with_absolute_paths,
)
from evofeed.featurize.entries.molecules import conformer_version
from evofeed.featurize.entries.openfold3_templates import template_structure
from evofeed.featurize.entries.prepared import prepared_set
from evofeed.featurize.entries.templates import RULES
from evofeed.featurize.entries.work import CONFORMERS, EntriesTask
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.account import JobReport
from evofeed.featurize.job.driver import Items, LedgerJob, Progress, current_snapshot, job_lease
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.lock import driver_lock
from evofeed.featurize.job.options import JobOptions, absolute, check_separate, ledger_url
from evofeed.featurize.job.template_use import outdated_units
from evofeed.featurize.job.units import Plan, Unit, sha_of, stamp_of
from evofeed.featurize.structures.components import read_components
from evofeed.protein.molecules import Molecule
from evofeed.store import Dataset, ShardEntry, Snapshot, add_entries, write_records
from evofeed.store.inner import (
    PROJECTS,
    Lease,
    RecordSpan,
    encode_components,
    encode_molecules,
    open_storage,
    read_value,
    record_spans,
)

_UNIT_SIZES: Final = {"entry": 16, "alignment": 8, "molecules": 32}
_MEMORY: Final = 1 << 30


def prepare_entries(
    source: EntriesInput,
    dataset_uri: str,
    *,
    options: JobOptions | None = None,
    molecules: Mapping[str, Mapping[str, Molecule]] | None = None,
    progress: Progress | None = None,
) -> JobReport:
    """Records of every mmCIF file of an input, published as the entries of a snapshot.

    Run it again after a crash, a cancellation or a repair: finished units are kept, the result is
    the same. Entries that are broken, or that no project accepts, are listed with the reason.

    Args:
        dataset_uri: where shards and snapshot are written; chains in it stay.
        options: workers, limits, ledger, ref; `max_broken` also counts entries that no project
            accepts, None does not limit them.
        molecules: recorded reference molecules by project and name, used instead of making them.
        progress: called after each unit.

    Raises:
        InputError: no mmCIF file, no such project, or RDKit is needed but not installed.
        JobError: the ledger, Ray or another driver prevents the job.
        StoreError: the dataset cannot be written; everything done so far is kept.
    """
    options, dataset_uri = options or JobOptions(), absolute(dataset_uri)
    source = with_absolute_paths(source)
    check_separate(source.structures, dataset_uri)
    prepared = prepared_set(source.structures, source.alignments)
    projects = source.projects or ((prepared.project,) if prepared else PROJECTS)
    if unknown := [name for name in projects if name not in PROJECTS]:
        raise InputError(f"no rules of {unknown[0]!r}: there are {', '.join(PROJECTS)}")
    if prepared and projects != (prepared.project,):
        message = f"a set that {prepared.project} prepared has its rules only"
        raise InputError(message, path=source.structures)
    recorded = {project: dict((molecules or {}).get(project, {})) for project in projects}
    templates = source.templates or (prepared.templates if prepared else "")
    alignment_folder, left_out = source.alignments, Items()
    if prepared:
        files, alignment_folder = prepared.items, prepared.alignments
        left_out = [failure(name, reason) for name, reason in prepared.left_out]
        if prepared.project not in (molecules or {}):
            recorded[prepared.project] = dict(prepared.molecules)
    else:
        files = entry_items(structure_files(source.structures), source.structures)
    clusters = cluster_table(source.clusters)
    pools = [f"{p}:{source.conformers or CONFORMERS[p]}" for p in projects]
    versions = {"version": __version__, "rdkit": conformer_version()}
    with contextlib.ExitStack() as stack:
        ledger = Ledger(ledger_url(options.ledger, dataset_uri))
        stack.enter_context(contextlib.closing(ledger))
        name = sha_of(dataset_uri, options.ref, repr(source))  # each job has its own lease
        lease = stack.enter_context(job_lease(dataset_uri, name))
        components, span = _components(source.components, dataset_uri)
        rdkit = versions["rdkit"]
        common = f"{__version__} {span.record_id} {span.key} {rdkit} {' '.join(projects)}"
        settings = {
            "entry": common + "".join(f" {pool}" for pool in pools if "openfold3:" in pool),
            "alignment": common + (f" {templates}" if templates else ""),
            "molecules": f"{common} {' '.join(pools)}",
        }
        task = EntriesTask(
            unit_id="",
            kind="",
            dataset_uri=dataset_uri,
            items=(),
            components=span,
            projects=projects,
            conformers=source.conformers,
            templates=templates,
            expected_memory=_MEMORY,
            run=secrets.token_hex(8),
        )
        arguments = {
            "entries": {**dataclasses.asdict(source), "recorded": bool(molecules)},
            "options": {**options.to_dict(), "ledger": ""},  # its URL may hold a password
        }
        groups = [("entry", utf8_items(files, left_out))]
        if alignment_folder:
            alignments, repeated = alignment_items(alignment_folder)
            left_out += repeated
            groups.append(("alignment", utf8_items(alignments, left_out)))
        phase = _Phase(ledger, options, lease, progress, task, settings, arguments)
        stack.enter_context(phase.started(groups, left_out))
        is_done = phase.run_units(options)
        while is_done and phase.strike_repeated_entries():
            is_done = phase.run_units(options)
        if not is_done:
            return phase.cancelled()
        molecule_phase = dataclasses.replace(phase)
        if codes := phase.missing_molecules(recorded):
            items = [(f"component-{code}", code) for code in codes]
            stack.enter_context(molecule_phase.started([("molecules", items)]))
            phase.next_phase = molecule_phase
            if not molecule_phase.run_units(options):
                return phase.cancelled()
        shards, molecule_shards = phase.done_shards(), molecule_phase.done_shards() if codes else []
        if not any(shard["kind"] == "entry" for shard in shards):
            return phase.end(states.FAILED, f"none of {len(files)} entries can be published")
        if changed := phase.changed():
            return phase.end(states.FAILED, f"{changed} changed while the job ran: run it again")
        broken = phase.missing()[0] + (molecule_phase.missing()[0] if codes else [])
        if options.max_broken is not None and options.exceeded_share(len(broken), len(files)):
            message = f"{len(broken)} of {len(files)} entries are left out"
            message += f", more than max_broken {options.max_broken:g} allows; done work stays"
            return phase.end(states.FAILED, message)
        entry_shards = [ShardEntry.from_dict(s) for s in shards if s["kind"] != "molecules"]
        reference_shards = _molecules(dataset_uri, [*molecule_shards, *shards], recorded)
        snapshot = add_entries(
            dataset_uri,
            [components, *entry_shards, *reference_shards],
            ref=options.ref,
            expect=current_snapshot(dataset_uri, options.ref),
            clusters={k: v for shard in shards for k, v in shard["clusters"].items()} | clusters,
            config={**versions, "projects": list(projects), "conformers": pools},
            dropped=[{"entry": item["chain_id"], "reason": item["message"]} for item in broken],
        )
        unused = clusters and not _is_used(clusters, dataset_uri, snapshot)
        message = f"no polymer is in a cluster of {source.clusters}" if unused else ""
        return phase.end(states.PUBLISHED, message, snapshot)


def prepare_again(
    arguments: Mapping[str, Any], dataset_uri: str, ledger: str, progress: Progress | None = None
) -> JobReport:
    """Runs a job of entries again, with its arguments from the ledger.

    Raises:
        JobError: the job used recorded molecules, which the ledger does not have.
    """
    values = dict(arguments["entries"])
    if values.pop("recorded"):
        raise JobError("the job used recorded molecules: call prepare_entries with them again")
    source = EntriesInput(**{**values, "projects": tuple(values["projects"])})
    options = JobOptions(**{**arguments["options"], "ledger": ledger})
    return prepare_entries(source, dataset_uri, options=options, progress=progress)


@dataclass(eq=False)
class _Phase(LedgerJob):
    """Units of some kinds, in the ledger as a separate job; some may be done already."""

    ledger: Ledger
    options: JobOptions
    lease: Lease
    progress: Progress | None
    common: EntriesTask
    """Fields that the tasks of all units share."""
    settings: Mapping[str, str]
    """Settings that the records of each kind depend on, besides their files."""
    arguments: Mapping[str, Any]
    next_phase: _Phase | None = field(default=None, init=False)
    """A later phase, which ends with the same state."""
    _next_report: JobReport | None = field(default=None, init=False)

    @contextlib.contextmanager
    def started(
        self, groups: Iterable[tuple[str, Sequence[tuple[str, ...]]]], unusable: Sequence[Any] = ()
    ) -> Iterator[None]:
        """Begins or resumes a job with the units of these items by kind."""
        parts = [
            (kind, tuple(items[start : start + _UNIT_SIZES[kind]]))
            for kind, items in groups
            for start in range(0, len(items), _UNIT_SIZES[kind])
        ]
        self.tasks = {
            unit_id: dataclasses.replace(self.common, unit_id=unit_id, kind=kind, items=part)
            for kind, part in parts
            for unit_id in [self._unit_id(kind, part)]
        }
        units = [
            Unit(unit_id, tuple(name for name, *_ in task.items), len(task.items), 1)
            for unit_id, task in self.tasks.items()
        ]
        sources = {name: ChainSource(name) for unit in units for name in unit.chain_ids}
        plan = Plan(sha_of(*self.tasks), tuple(units), sources, {})
        dataset_uri, ref = self.common.dataset_uri, self.options.ref
        job_id = sha_of(plan.digest, dataset_uri, ref)
        arguments = {
            "input_uri": self.arguments["entries"]["structures"],
            "dataset_uri": dataset_uri,
            "arguments": self.arguments,
        }
        with driver_lock(self.ledger, job_id):
            job = self.ledger.begin(job_id, plan, arguments, current_snapshot(dataset_uri, ref))
            if self.common.templates:  # templates may have been added since
                for chain in self.ledger.chains(job_id):
                    is_alignment = self.tasks[chain["unit_id"]].kind == "alignment"
                    if is_alignment and chain["type"] != "WorkerKilled":
                        self.ledger.requeue(job_id, chain["unit_id"], forget_broken=True)
            self.begin(self.ledger, job, plan, list(unusable))
            with self.failures_recorded():
                yield

    def _unit_id(self, kind: str, items: Iterable[tuple[str, ...]]) -> str:
        """Id of a unit: a hash of its settings and of its files' present stamps."""
        stamps = (f"{path} {stamp_of(path)}" for item in items for path in item)
        return sha_of(self.settings[kind], kind, *stamps)

    def task(self, unit_id: str, item_ids: tuple[str, ...]) -> EntriesTask:
        """The task of these items of a unit."""
        task = self.tasks[unit_id]
        items = tuple(item for item in task.items if item[0] in item_ids)
        return dataclasses.replace(task, items=items)

    def outdated_units(self) -> dict[str, str]:
        """Units whose templates were changed or added since."""
        return outdated_units(self.done_units(), RULES, template_structure)

    def strike_repeated_entries(self) -> bool:
        """Leaves out files with an entry that an earlier file has; True if there are any."""
        first_file: dict[str, str] = {}
        repeated = []
        for unit in self.done_units():
            for record_id, name in (unit["shard"] or {}).get("records", {}).items():
                if first_file.setdefault(record_id, name) != name:
                    reason = f"entry {record_id} is in {first_file[record_id]} too"
                    repeated.append((unit["unit_id"], failure(name, reason)))
        for unit_id, item in repeated:
            self.ledger.strike(self.job_id, unit_id, item, 1)
        return bool(repeated)

    def missing_molecules(self, recorded: Mapping[str, Mapping[str, Molecule]]) -> list[str]:
        """Codes of components whose molecules a project needs but was not given."""
        needs = [need for shard in self.done_shards() for need in shard["needs"].items()]
        return sorted({c for project, codes in needs for c in codes if c not in recorded[project]})

    def changed(self) -> str:
        """A file changed since the job began, or ''; its unit is reset, to be done again."""
        changes = [f"a template in {folder}" for folder in self.outdated_units().values()]
        for unit_id, task in reversed(self.tasks.items()):
            if self._unit_id(task.kind, task.items) != unit_id:
                self.ledger.requeue(self.job_id, unit_id)
                changes.insert(0, f"a file of {task.items[0][0]} to {task.items[-1][0]}")
        return changes[0] if changes else ""

    def end(self, state: str, message: str, snapshot: Snapshot | None = None) -> JobReport:
        """Sets both phases' state in the ledger and returns their report."""
        if self.next_phase:
            self._next_report = self.next_phase.end(state, message, snapshot)
        return super().end(state, message, snapshot)

    def complete(self, report: JobReport) -> JobReport:
        """The report with the counts and notes of the next phase."""
        if not (next_report := self._next_report):
            return report
        added = ("broken", "units", "resumed", "lost_workers")
        sums: dict[str, Any] = {n: getattr(report, n) + getattr(next_report, n) for n in added}
        return dataclasses.replace(report, notes=report.notes | next_report.notes, **sums)


def _is_used(clusters: Mapping[str, str], dataset_uri: str, snapshot: Snapshot) -> bool:
    """True if a polymer of a snapshot is in one of the clusters."""
    points = Dataset.open(dataset_uri, snapshot.digest).entries.datapoints
    return not set(clusters.values()).isdisjoint(points["cluster_a"].unique().to_pylist())


def _components(path: str, dataset_uri: str) -> tuple[ShardEntry, RecordSpan]:
    """Writes the dictionary of components as a record of the dataset."""
    table = read_components(path)
    if not len(table):
        raise InputError("no component in it", path=path)
    entry = write_records(dataset_uri, "components", {"components": encode_components(table)})
    (span,) = record_spans(open_storage(dataset_uri), entry)
    return entry, span


def _molecules(
    dataset_uri: str, shards: Items, recorded: Mapping[str, Mapping[str, Molecule]]
) -> list[ShardEntry]:
    """One shard of all reference molecules; recorded ones replace computed ones."""
    storage = open_storage(dataset_uri)
    merged: dict[str, dict[str, Molecule]] = {project: {} for project in recorded}
    for entry in (ShardEntry.from_dict(s["molecules"]) for s in shards if s["molecules"]):
        for span in record_spans(storage, entry):
            table = merged[span.record_id]
            # Several of one name are from a prepared set: their atoms differ.
            for name, molecule in read_value(storage, span).items():
                table[name] = table[name].overlaid(molecule) if name in table else molecule
    for project, molecules in recorded.items():
        merged[project] |= molecules
    parts = {project: encode_molecules(table) for project, table in merged.items() if table}
    return [write_records(dataset_uri, "molecules", parts)] if parts else []
