"""A job of entries: found, planned, entered in the ledger, driven, published once.

Ledger, executors, blame and report are those of a job of chains; what a unit is differs. Entries
and alignments come first, then the reference molecules of the components that the entries need.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evofeed import __version__
from evofeed.base.errors import InputError, JobError
from evofeed.featurize.entries.input import (
    EntriesInput,
    alignment_items,
    cluster_table,
    entry_items,
    failure,
    from_anywhere,
    structure_files,
    with_text,
)
from evofeed.featurize.entries.molecules import conformer_version
from evofeed.featurize.entries.openfold3_templates import structure_beside
from evofeed.featurize.entries.prepared import prepared_set
from evofeed.featurize.entries.templates import RULES
from evofeed.featurize.entries.work import CONFORMERS, EntriesTask
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.account import JobReport
from evofeed.featurize.job.driver import KeptJob, Progress, undisturbed
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.lock import driving
from evofeed.featurize.job.options import JobOptions, absolute, ledger_url
from evofeed.featurize.job.publish import parent_of
from evofeed.featurize.job.template_use import outdated
from evofeed.featurize.job.units import Plan, Unit, sha_of, stamp_of
from evofeed.featurize.structures.components import read_components
from evofeed.protein.molecules import Molecule
from evofeed.store import ShardEntry, add_entries, write_records
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

_OF_UNIT: Final = {"entry": 16, "alignment": 8, "molecules": 32}
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
    the same. Entries that are broken, or that no project takes, are listed with the reason.

    Args:
        dataset_uri: where shards and snapshot go; chains that it has stay.
        options: workers, limits, ledger, ref; `max_broken` counts what no project takes, too, and
            is no limit where it is None.
        molecules: recorded reference molecules by project and name, used instead of making them.
        progress: called after each unit.

    Raises:
        InputError: no mmCIF file, no such project, or RDKit is needed and not there.
        JobError: the ledger, Ray or another driver is in the way.
        StoreError: the dataset cannot be written; everything done so far is kept.
    """
    options, dataset_uri = options or JobOptions(), absolute(dataset_uri)
    source = from_anywhere(source)
    prepared = prepared_set(source.structures, source.alignments)
    projects = source.projects or ((prepared.project,) if prepared else PROJECTS)
    if unknown := [one for one in projects if one not in PROJECTS]:
        raise InputError(f"no rules of {unknown[0]!r}: there are {', '.join(PROJECTS)}")
    if prepared and projects != (prepared.project,):
        why = f"a set that {prepared.project} prepared has its rules alone"
        raise InputError(why, path=source.structures)
    files, rows, left_out, recorded = [], source.alignments, [], dict(molecules or {})
    templates = source.templates or (prepared.templates if prepared else "")
    if prepared:
        files, rows = prepared.items, prepared.alignments
        left_out = [failure(*one) for one in prepared.left_out]
        recorded.setdefault(prepared.project, prepared.molecules)
    else:
        files = entry_items(structure_files(source.structures), source.structures)
    clusters = cluster_table(source.clusters)
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(
            contextlib.closing(Ledger(ledger_url(options.ledger, dataset_uri)))
        )
        lease = stack.enter_context(undisturbed(dataset_uri, sha_of(dataset_uri, options.ref)))
        components, span = _components(source.components, dataset_uri)
        rdkit = conformer_version()
        pools = [f"{p}:{source.conformers or CONFORMERS[p]}" for p in projects]
        common = f"{__version__} {span.record_id} {span.key} {rdkit} {' '.join(projects)}"
        settings = dict.fromkeys(_OF_UNIT, common)
        settings["alignment"] += f" {templates}" if templates else ""
        settings["entry"] += "".join(f" {pool}" for pool in pools if pool.startswith("openfold3:"))
        settings["molecules"] += f" {' '.join(pools)}"
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
        groups = [("entry", with_text(files, left_out))]
        if rows:
            found, twice = alignment_items(rows)
            left_out += twice
            groups.append(("alignment", with_text(found, left_out)))
        arguments = {
            "entries": {**dataclasses.asdict(source), "recorded": bool(molecules)},
            "options": {**options.to_dict(), "ledger": ""},  # its URL may hold a password
        }
        run = _Run(ledger, arguments, dataset_uri, options, lease, progress)
        first = _Phase(run, settings, groups, task, stack, left_out)
        while True:
            if not first.work_off(options):
                return first.cancelled()
            if not first.strike_repeated():
                break
        known = {project: dict(recorded.get(project, {})) for project in projects}
        wanted = sorted(first.needs(known))
        second = None
        if wanted:
            codes = [("molecules", [(f"component-{code}", code) for code in wanted])]
            second = _Phase(run, settings, codes, task, stack)
            if not second.work_off(options):
                return second.cancelled()
        if not first.num_entries():
            return first.end(states.FAILED, f"none of {len(files)} entries can be published")
        if changed := first.changed():
            return first.end(states.FAILED, f"{changed} changed while the job ran: run it again")
        shards = [components, *first.shards(), *_molecules(dataset_uri, first, second, known)]
        broken = first.account.broken() + (second.account.broken() if second else [])
        if options.max_broken is not None and options.too_many(len(broken), len(files)):
            what = f"{len(broken)} of {len(files)} entries are left out"
            what += f", more than max_broken {options.max_broken:g} allows; done work stays"
            return first.end(states.FAILED, what)
        how = {"version": __version__, "rdkit": rdkit}
        snapshot = add_entries(
            dataset_uri,
            shards,
            ref=options.ref,
            expect=parent_of(dataset_uri, options.ref),
            clusters=first.clusters() | clusters,
            config=how | {"projects": list(projects), "conformers": pools},
            dropped=[{"entry": one["chain_id"], "reason": one["message"]} for one in broken],
        )
        if second:
            first.further = second.end(states.PUBLISHED, "", snapshot)
        return first.end(states.PUBLISHED, "", snapshot)


def prepare_again(
    arguments: Mapping[str, Any], dataset_uri: str, ledger: str, progress: Progress | None = None
) -> JobReport:
    """A job of entries run again, with the arguments that the ledger has of it.

    Raises:
        JobError: it was given recorded molecules, which the ledger does not hold.
    """
    values = dict(arguments["entries"])
    if values.pop("recorded"):
        raise JobError("it was given recorded molecules: call prepare_entries with them again")
    source = EntriesInput(**{**values, "projects": tuple(values["projects"])})
    options = JobOptions(**{**arguments["options"], "ledger": ledger})
    return prepare_entries(source, dataset_uri, options=options, progress=progress)


@dataclass(frozen=True, slots=True)
class _Run:
    ledger: Ledger
    arguments: dict[str, Any]
    dataset_uri: str
    options: JobOptions
    lease: Lease
    progress: Progress | None


class _Phase(KeptJob):
    """Units of one kind of work, in the ledger as a job of their own; some were done before."""

    further: JobReport | None = None
    """Of a phase that came after this one."""

    def __init__(
        self,
        run: _Run,
        settings: Mapping[str, str],
        groups: Iterable[tuple[str, Sequence[tuple[str, ...]]]],
        common: EntriesTask,
        stack: contextlib.ExitStack,
        unusable: Iterable[dict[str, Any]] = (),
    ) -> None:
        self.options, self.settings = run.options, settings
        self.lease, self.progress = run.lease, run.progress
        self.tasks: dict[str, EntriesTask] = {}
        units: list[Unit] = []
        sources: dict[str, ChainSource] = {}
        for kind, items in groups:
            for start in range(0, len(items), _OF_UNIT[kind]):
                part = items[start : start + _OF_UNIT[kind]]
                names = tuple(name for name, *_ in part)
                unit_id = self._unit_id(kind, part)
                own = dataclasses.replace(common, unit_id=unit_id, kind=kind, items=tuple(part))
                self.tasks[unit_id] = own
                units.append(Unit(unit_id, names, len(part), 1))
                sources |= {name: ChainSource(name) for name in names}
        plan = Plan(sha_of(*self.tasks), tuple(units), sources, {})
        job_id = sha_of(plan.digest, run.dataset_uri, run.options.ref)
        stack.enter_context(driving(run.ledger, job_id))
        where = {
            "input_uri": run.arguments["entries"]["structures"],
            "dataset_uri": run.dataset_uri,
            "arguments": run.arguments,
        }
        parent = parent_of(run.dataset_uri, run.options.ref)
        job = run.ledger.begin(job_id, plan, where, parent)
        found = run.ledger.chains(job_id) if common.templates else ()
        amiss = {one["unit_id"] for one in found if one["type"] != "WorkerKilled"}
        again = {unit_id for unit_id in amiss if self.tasks[unit_id].kind == "alignment"}
        for unit_id in again.union(_outdated(run.ledger, job_id)):
            run.ledger.give_back(job_id, unit_id, acquit=True)
        self.begin(run.ledger, job, plan, list(unusable))
        stack.enter_context(self.told())

    def _unit_id(self, kind: str, items: Iterable[tuple[str, ...]]) -> str:
        """Name of a unit: of its files as they are now, and of what is made of them."""
        stamps = (f"{path} {stamp_of(path)}" for item in items for path in item)
        return sha_of(self.settings[kind], kind, *stamps)

    def task(self, unit_id: str, item_ids: tuple[str, ...]) -> EntriesTask:
        """These items of a unit, to prepare."""
        task = self.tasks[unit_id]
        items = tuple(item for item in task.items if item[0] in item_ids)
        return dataclasses.replace(task, items=items)

    def _made(self) -> Iterator[dict[str, Any]]:
        for unit in self.ledger.units(self.job_id, states.DONE):
            if unit["shard"]:
                yield unit["shard"]

    def strike_repeated(self) -> bool:
        """Leave out files with an entry that an earlier one has; True if there were any."""
        first: dict[str, str] = {}
        repeated = []
        for unit in self.ledger.units(self.job_id, states.DONE):
            for record_id, name in (unit["shard"] or {}).get("records", {}).items():
                if first.setdefault(record_id, name) != name:
                    why = f"entry {record_id} is in {first[record_id]} too"
                    repeated.append((unit["unit_id"], failure(name, why)))
        for unit_id, one in repeated:
            self.ledger.strike(self.job_id, unit_id, one, 1)
        return bool(repeated)

    def changed(self) -> str:
        """A file that is not as it was when the job began; its unit is to be done again."""
        found = ""
        for unit_id, task in self.tasks.items():
            if self._unit_id(task.kind, task.items) != unit_id:
                self.ledger.give_back(self.job_id, unit_id)
                found = found or f"a file of {task.items[0][0]} to {task.items[-1][0]}"
        for unit_id, folder in _outdated(self.ledger, self.job_id).items():
            self.ledger.give_back(self.job_id, unit_id)
            found = found or f"a template in {folder}"
        return found

    def shards(self) -> list[ShardEntry]:
        """Those of entries and alignments."""
        return [ShardEntry.from_dict(one) for one in self._made() if one["kind"] != "molecules"]

    def num_entries(self) -> int:
        """Good entries."""
        return sum(one["chains"] for one in self._made() if one["kind"] == "entry")

    def molecules(self) -> list[ShardEntry]:
        """Those of reference molecules."""
        return [ShardEntry.from_dict(one["molecules"]) for one in self._made() if one["molecules"]]

    def clusters(self) -> dict[str, str]:
        """Those that a prepared set has."""
        return {k: v for one in self._made() for k, v in one.get("clusters", {}).items()}

    def needs(self, known: Mapping[str, Mapping[str, Molecule]]) -> set[str]:
        """Components whose molecules some project needs and has not."""
        return {
            code
            for one in self._made()
            for project, codes in one["needs"].items()
            for code in codes
            if code not in known.get(project, {})
        }

    def complete(self, report: JobReport) -> JobReport:
        """With what a further phase has to say."""
        if not (further := self.further):
            return report
        added = ("broken", "units", "resumed", "lost_workers")
        sums: dict[str, Any] = {n: getattr(report, n) + getattr(further, n) for n in added}
        return dataclasses.replace(report, notes=report.notes | further.notes, **sums)


def _outdated(ledger: Ledger, job_id: str) -> dict[str, str]:
    """Units whose templates changed or came since."""
    return outdated(ledger.units(job_id, states.DONE), RULES, structure_beside)


def _components(path: str, dataset_uri: str) -> tuple[ShardEntry, RecordSpan]:
    """The dictionary of components as a record of the dataset."""
    table = read_components(path)
    if not len(table):
        raise InputError("no component in it", path=path)
    entry = write_records(dataset_uri, "components", {"components": encode_components(table)})
    (span,) = record_spans(open_storage(dataset_uri), entry)
    return entry, span


def _molecules(
    dataset_uri: str, first: _Phase, second: _Phase | None, known: dict[str, dict[str, Molecule]]
) -> list[ShardEntry]:
    """One shard of all reference molecules, those recorded in place of those made."""
    storage = open_storage(dataset_uri)
    merged: dict[str, dict[str, Molecule]] = {project: {} for project in known}
    for entry in [*(second.molecules() if second else []), *first.molecules()]:
        for span in record_spans(storage, entry):
            table = merged.setdefault(span.record_id, {})
            for name, one in read_value(storage, span).items():  # of a prepared set, over ours
                table[name] = table[name].overlaid(one) if name in table else one
    for project, table in known.items():
        merged[project] |= table
    parts = {project: encode_molecules(table) for project, table in merged.items() if table}
    return [write_records(dataset_uri, "molecules", parts)] if parts else []
