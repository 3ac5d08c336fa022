"""One mmCIF file -> its record, what each project makes of it, and what is left out and why."""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError
from evofeed.featurize.config import InputCaps
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.records.entry import entry_record
from evofeed.featurize.structures.components import read_components
from evofeed.protein.components import ComponentMissing, ComponentTable
from evofeed.protein.datapoints import molecule_names
from evofeed.protein.entry_record import Dropped, EntryRecord, solvent_rows
from evofeed.protein.ruleset_section import EntryRefused, RulesetSection
from evofeed.store.inner import PROJECTS

_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEntry:
    """An entry ready to be stored."""

    record: EntryRecord
    sections: dict[str, RulesetSection]
    """By project; those that refuse it are absent."""
    refused: dict[str, str]
    """Why a project does not take it."""

    @property
    def record_id(self) -> str:
        """Name in the store: entry and assembly."""
        assembly = self.record.assembly
        return f"{self.record.entry}-{assembly}" if assembly else self.record.entry

    def components(self, project: str) -> set[str]:
        """Codes of the components that a project needs reference molecules of."""
        section = self.sections[project]
        if project != "openfold3":  # a molecule a residue
            return set(section.residue_name.tolist())
        names = set(molecule_names(self.record.entry, section)[1])
        return {name for name in names if not name.startswith(f"{self.record.entry}_")}

    def notes(self) -> tuple[str, ...]:
        """What is left out, in words; a project a line."""
        found = [f"{project} does not take it: {why}" for project, why in self.refused.items()]
        found += [f"{one.what} left out: {one.reason}" for one in self.record.dropped]
        for project, section in self.sections.items():
            counts = Counter(_words(one) for one in section.dropped)
            found += [f"{project}: {words}" for words in sorted(counts)]
        return tuple(found[:_SHOWN])


def count_left_out(files: Iterable[str], components: str) -> dict[str, dict[str, int]]:
    """How often the rules of each project leave something out of mmCIF files, in words; nothing is
    made of them. `entry` counts those that it takes.

    Raises:
        InputError: there is no dictionary of components.
    """
    table = read_components(components)
    found = {project: Counter({"entry": 0}) for project in PROJECTS}
    for path in files:
        try:
            record = entry_record(read_bytes(file_ref(path), InputCaps()), path=path)
            sections, refused = _sections(record, table, found)
            _stored(record, sections)
        except InputError as error:
            sections, refused = {}, dict.fromkeys(found, error.message)
        for project, why in refused.items():
            found[project][f"entry left out: {why}"] += 1
        for project, section in sections.items():
            words = (_words(dataclasses.replace(one, chain="")) for one in section.dropped)
            found[project].update(["entry", *words])
    return {project: dict(counts) for project, counts in found.items()}


def _words(one: Dropped) -> str:
    where = " ".join(
        part for part in (one.component, one.chain and f"of chain {one.chain}") if part
    )
    return f"{one.what} {where} left out: {one.reason}".replace("  ", " ")


def prepare_entry(
    data: bytes,
    components: ComponentTable,
    projects: Iterable[str],
    *,
    path: str = "",
    options: Mapping[str, Any] | None = None,
) -> PreparedEntry:
    """The record of an mmCIF file and what every project makes of it, by `options` of its name.

    Raises:
        MmcifError: it is no mmCIF, or its tables contradict each other.
        EntryRefused: no project takes it; the message has every reason.
    """
    record = entry_record(data, path=path)
    sections, refused = _sections(record, components, projects, options or {})
    if not sections:
        why = "; ".join(f"{project}: {reason}" for project, reason in refused.items())
        raise EntryRefused(f"no project takes it: {why}", item=record.entry, path=path)
    return PreparedEntry(**_stored(record, sections), refused=refused)


def _sections(
    record: EntryRecord,
    components: ComponentTable,
    projects: Iterable[str],
    options: Mapping[str, Any] = {},
) -> tuple[dict[str, RulesetSection], dict[str, str]]:
    """What every project makes of a record, and why those refuse it that do."""
    sections: dict[str, RulesetSection] = {}
    refused: dict[str, str] = {}
    for project in projects:
        try:
            module = importlib.import_module(f"evofeed.featurize.records.rulesets.{project}")
            make = getattr(module, f"{project}_section")
            sections[project] = make(record, components, options.get(project))
        except (EntryRefused, ComponentMissing) as error:
            refused[project] = error.message
    return sections, refused


def _stored(record: EntryRecord, sections: dict[str, RulesetSection]) -> dict[str, Any]:
    """Record and sections without waters and hydrogens, which no project takes."""
    keep = ~solvent_rows(record)
    for section in sections.values():
        keep[section.atom_row[section.atom_row >= 0]] = True
    moved = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1)
    short = record.taking(keep)
    place = {label: row for row, label in enumerate(short.chain_label)}
    chains = np.array([place.get(label, -1) for label in record.chain_label], np.int64)
    out = {}
    for project, section in sections.items():
        asym = chains[section.chain_asym]
        if (asym < 0).any():
            raise InputError("a chain without a heavy atom is taken", item=record.entry)
        out[project] = dataclasses.replace(
            section,
            atom_row=moved[section.atom_row].astype(section.atom_row.dtype),
            chain_asym=asym.astype(section.chain_asym.dtype),
        )
    return {"record": short, "sections": out}
