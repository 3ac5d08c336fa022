"""A job of entries: found, planned, entered in the ledger, driven, published once.

Ledger, executors, blame and report are those of a job of chains; what a unit is differs. Entries
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
from evofeed.featurize.job.driver import Items, LedgerJob, Progress, current_snapshot, job_lease
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.lock import driving
from evofeed.featurize.job.options import JobOptions, absolute, check_separate, ledger_url
from evofeed.featurize.job.template_use import outdated_units
from evofeed.featurize.job.units import Plan, Unit, sha_of, stamp_of
from evofeed.featurize.structures.components import read_components
from evofeed.protein.molecules import Molecule
from evofeed.store import ShardEntry, Snapshot, add_entries, write_records
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
    check_separate(source.structures, dataset_uri)
    prepared = prepared_set(source.structures, source.alignments)
    projects = source.projects or ((prepared.project,) if prepared else PROJECTS)
    if unknown := [one for one in projects if one not in PROJECTS]:
        raise InputError(f"no rules of {unknown[0]!r}: there are {', '.join(PROJECTS)}")
    if prepared and projects != (prepared.project,):
        why = f"a set that {prepared.project} prepared has its rules alone"
        raise InputError(why, path=source.structures)
    known = {project: dict((molecules or {}).get(project, {})) for project in projects}
    templates = source.templates or (prepared.templates if prepared else "")
    rows, left_out = source.alignments, Items()
    if prepared:
        files, rows = prepared.items, prepared.alignments
        left_out = [failure(*one) for one in prepared.left_out]
        if prepared.project not in (molecules or {}):
            known[prepared.project] = dict(prepared.molecules)
    else:
        files = entry_items(structure_files(source.structures), source.structures)
    clusters = cluster_table(source.clusters)
    pools = [f"{p}:{source.conformers or CONFORMERS[p]}" for p in projects]
    how = {"version": __version__, "rdkit": conformer_version()}
    with contextlib.ExitStack() as stack:
        ledger = Ledger(ledger_url(options.ledger, dataset_uri))
        stack.enter_context(contextlib.closing(ledger))
        name = sha_of(dataset_uri, options.ref, repr(source))  # another job has another lease
        lease = stack.enter_context(job_lease(dataset_uri, name))
        components, span = _components(source.components, dataset_uri)
        common = f"{__version__} {span.record_id} {span.key} {how['rdkit']} {' '.join(projects)}"
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
        groups = [("entry", with_text(files, left_out))]
        if rows:
            found, twice = alignment_items(rows)
            left_out += twice
            groups.append(("alignment", with_text(found, left_out)))
        first = _Phase(ledger, options, lease, progress, task, settings, arguments)
        stack.enter_context(first.taken_up(groups, left_out))
        is_done = first.run_units(options)
        while is_done and first.strike_repeated():
            is_done = first.run_units(options)
        if not is_done:
            return first.cancelled()
        second, lacking = dataclasses.replace(first), first.lacking(known)
        if lacking:
            codes = [(f"component-{code}", code) for code in lacking]
            stack.enter_context(second.taken_up([("molecules", codes)]))
            first.further = second
            if not second.run_units(options):
                return first.cancelled()
        made, more = first.done_shards(), second.done_shards() if lacking else []
        if not any(one["kind"] == "entry" for one in made):
            return first.end(states.FAILED, f"none of {len(files)} entries can be published")
        if changed := first.changed():
            return first.end(states.FAILED, f"{changed} changed while the job ran: run it again")
        shards = [ShardEntry.from_dict(one) for one in made if one["kind"] != "molecules"]
        broken = first.missing()[0] + (second.missing()[0] if lacking else [])
        if options.max_broken is not None and options.exceeded_share(len(broken), len(files)):
            what = f"{len(broken)} of {len(files)} entries are left out"
            what += f", more than max_broken {options.max_broken:g} allows; done work stays"
            return first.end(states.FAILED, what)
        snapshot = add_entries(
            dataset_uri,
            [components, *shards, *_molecules(dataset_uri, [*more, *made], known)],
            ref=options.ref,
            expect=current_snapshot(dataset_uri, options.ref),
            clusters={k: v for one in made for k, v in one["clusters"].items()} | clusters,
            config={**how, "projects": list(projects), "conformers": pools},
            dropped=[{"entry": one["chain_id"], "reason": one["message"]} for one in broken],
        )
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


@dataclass(eq=False)
class _Phase(LedgerJob):
    """Units of some kinds of work, in the ledger as a job of their own; some were done before."""

    ledger: Ledger
    options: JobOptions
    lease: Lease
    progress: Progress | None
    common: EntriesTask
    """What the tasks of all units have in common."""
    settings: Mapping[str, str]
    """What the records of each kind depend on, their files apart."""
    arguments: Mapping[str, Any]
    further: _Phase | None = field(default=None, init=False)
    """A phase that comes after this one, and ends as it does."""
    _of_further: JobReport | None = field(default=None, init=False)

    @contextlib.contextmanager
    def taken_up(
        self, groups: Iterable[tuple[str, Sequence[tuple[str, ...]]]], unusable: Sequence[Any] = ()
    ) -> Iterator[None]:
        """Drive the units of some items of each kind, as far as they are not done."""
        parts = [
            (kind, tuple(items[start : start + _OF_UNIT[kind]]))
            for kind, items in groups
            for start in range(0, len(items), _OF_UNIT[kind])
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
        where = {
            "input_uri": self.arguments["entries"]["structures"],
            "dataset_uri": dataset_uri,
            "arguments": self.arguments,
        }
        with driving(self.ledger, job_id):
            job = self.ledger.begin(job_id, plan, where, current_snapshot(dataset_uri, ref))
            if self.common.templates:  # which may be there now
                for one in self.ledger.chains(job_id):
                    is_alignment = self.tasks[one["unit_id"]].kind == "alignment"
                    if is_alignment and one["type"] != "WorkerKilled":
                        self.ledger.requeue(job_id, one["unit_id"], forget_broken=True)
            self.begin(self.ledger, job, plan, list(unusable))
            with self.failures_recorded():
                yield

    def _unit_id(self, kind: str, items: Iterable[tuple[str, ...]]) -> str:
        """Name of a unit: of its files as they are now, and of what is made of them."""
        stamps = (f"{path} {stamp_of(path)}" for item in items for path in item)
        return sha_of(self.settings[kind], kind, *stamps)

    def task(self, unit_id: str, item_ids: tuple[str, ...]) -> EntriesTask:
        """These items of a unit, to prepare."""
        task = self.tasks[unit_id]
        items = tuple(item for item in task.items if item[0] in item_ids)
        return dataclasses.replace(task, items=items)

    def outdated_units(self) -> dict[str, str]:
        """Units whose templates changed or came since."""
        return outdated_units(self.done_units(), RULES, structure_beside)

    def strike_repeated(self) -> bool:
        """Leave out files with an entry that an earlier one has; True if there were any."""
        first: dict[str, str] = {}
        repeated = []
        for unit in self.done_units():
            for record_id, name in (unit["shard"] or {}).get("records", {}).items():
                if first.setdefault(record_id, name) != name:
                    why = f"entry {record_id} is in {first[record_id]} too"
                    repeated.append((unit["unit_id"], failure(name, why)))
        for unit_id, one in repeated:
            self.ledger.strike(self.job_id, unit_id, one, 1)
        return bool(repeated)

    def lacking(self, known: Mapping[str, Mapping[str, Molecule]]) -> list[str]:
        """Components whose molecules some project needs and has not."""
        needs = [need for one in self.done_shards() for need in one["needs"].items()]
        return sorted({c for project, codes in needs for c in codes if c not in known[project]})

    def changed(self) -> str:
        """A file that is not as it was when the job began; its unit is to be done again."""
        found = [f"a template in {folder}" for folder in self.outdated_units().values()]
        for unit_id, task in reversed(self.tasks.items()):
            if self._unit_id(task.kind, task.items) != unit_id:
                self.ledger.requeue(self.job_id, unit_id)
                found.insert(0, f"a file of {task.items[0][0]} to {task.items[-1][0]}")
        return found[0] if found else ""

    def end(self, state: str, message: str, snapshot: Snapshot | None = None) -> JobReport:
        """Both phases' state in the ledger, and their report."""
        if self.further:
            self._of_further = self.further.end(state, message, snapshot)
        return super().end(state, message, snapshot)

    def complete(self, report: JobReport) -> JobReport:
        """With what a further phase has to say."""
        if not (further := self._of_further):
            return report
        added = ("broken", "units", "resumed", "lost_workers")
        sums: dict[str, Any] = {n: getattr(report, n) + getattr(further, n) for n in added}
        return dataclasses.replace(report, notes=report.notes | further.notes, **sums)


def _components(path: str, dataset_uri: str) -> tuple[ShardEntry, RecordSpan]:
    """The dictionary of components as a record of the dataset."""
    table = read_components(path)
    if not len(table):
        raise InputError("no component in it", path=path)
    entry = write_records(dataset_uri, "components", {"components": encode_components(table)})
    (span,) = record_spans(open_storage(dataset_uri), entry)
    return entry, span


def _molecules(
    dataset_uri: str, made: Items, known: Mapping[str, Mapping[str, Molecule]]
) -> list[ShardEntry]:
    """One shard of all reference molecules, those recorded in place of those made."""
    storage = open_storage(dataset_uri)
    merged: dict[str, dict[str, Molecule]] = {project: {} for project in known}
    for entry in (ShardEntry.from_dict(one["molecules"]) for one in made if one["molecules"]):
        for span in record_spans(storage, entry):
            table = merged[span.record_id]
            for name, one in read_value(storage, span).items():  # of a prepared set, over ours
                table[name] = table[name].overlaid(one) if name in table else one
    for project, recorded in known.items():
        merged[project] |= recorded
    parts = {project: encode_molecules(table) for project, table in merged.items() if table}
    return [write_records(dataset_uri, "molecules", parts)] if parts else []
