"""One mmCIF file -> its record, a section of each project, and notes on what is left out."""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from collections.abc import Iterable
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

_MAX_NOTES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEntry:
    """An entry ready to be stored."""

    record: EntryRecord
    sections: dict[str, RulesetSection]
    """By project; projects that refuse the entry are absent."""
    refused: dict[str, str]
    """Reason by project that does not accept the entry."""

    @property
    def record_id(self) -> str:
        """Name in the store: entry and assembly."""
        assembly = self.record.assembly
        return f"{self.record.entry}-{assembly}" if assembly else self.record.entry

    def components(self, project: str) -> set[str]:
        """Codes of the components whose reference molecules a project needs."""
        section = self.sections[project]
        if project != "openfold3":  # one molecule for each residue
            return set(section.residue_name.tolist())
        names = set(molecule_names(self.record.entry, section)[1])
        return {name for name in names if not name.startswith(f"{self.record.entry}_")}

    def notes(self) -> tuple[str, ...]:
        """Notes on what is left out."""
        notes = [f"{name} does not accept it: {reason}" for name, reason in self.refused.items()]
        notes += [f"{item.what} left out: {item.reason}" for item in self.record.dropped]
        for project, section in self.sections.items():
            counts = Counter(_describe(item) for item in section.dropped)
            notes += [f"{project}: {note}" for note in sorted(counts)]
        return tuple(notes[:_MAX_NOTES])


def count_left_out(files: Iterable[str], components: str) -> dict[str, dict[str, int]]:
    """Counts by project of what its rules leave out of mmCIF files, by description.

    `entry` counts the entries that it accepts. Nothing is written.

    Raises:
        InputError: there is no dictionary of components.
    """
    table = read_components(components)
    counts = {project: Counter({"entry": 0}) for project in PROJECTS}
    for path in files:
        try:
            record = entry_record(read_bytes(file_ref(path), InputCaps()), path=path)
            sections, refused = _sections(record, table, counts)
            _without_solvent(record, sections)
        except InputError as error:
            sections, refused = {}, dict.fromkeys(counts, error.message)
        for project, reason in refused.items():
            counts[project][f"entry left out: {reason}"] += 1
        for project, section in sections.items():
            notes = (_describe(dataclasses.replace(item, chain="")) for item in section.dropped)
            counts[project].update(["entry", *notes])
    return {project: dict(counter) for project, counter in counts.items()}


def _describe(item: Dropped) -> str:
    where = " ".join(
        part for part in (item.component, item.chain and f"of chain {item.chain}") if part
    )
    return f"{item.what} {where} left out: {item.reason}".replace("  ", " ")


def prepare_entry(
    data: bytes, components: ComponentTable, projects: Iterable[str], *, path: str = ""
) -> PreparedEntry:
    """The record of an mmCIF file and the section of every project that accepts it.

    Raises:
        MmcifError: the file is not mmCIF, or its tables contradict each other.
        EntryRefused: no project accepts it; the message has every reason.
    """
    record = entry_record(data, path=path)
    sections, refused = _sections(record, components, projects)
    if not sections:
        reasons = "; ".join(f"{project}: {reason}" for project, reason in refused.items())
        raise EntryRefused(f"no project accepts it: {reasons}", item=record.entry, path=path)
    return PreparedEntry(**_without_solvent(record, sections), refused=refused)


def _sections(
    record: EntryRecord, components: ComponentTable, projects: Iterable[str]
) -> tuple[dict[str, RulesetSection], dict[str, str]]:
    """The section of every project that accepts the record, the reason of every other."""
    sections: dict[str, RulesetSection] = {}
    refused: dict[str, str] = {}
    for project in projects:
        try:
            module = importlib.import_module(f"evofeed.featurize.records.rulesets.{project}")
            sections[project] = getattr(module, f"{project}_section")(record, components)
        except (EntryRefused, ComponentMissing) as error:
            refused[project] = error.message
    return sections, refused


def _without_solvent(record: EntryRecord, sections: dict[str, RulesetSection]) -> dict[str, Any]:
    """Record and sections without waters and hydrogens that no project keeps."""
    keep = ~solvent_rows(record)
    for section in sections.values():
        keep[section.atom_row[section.atom_row >= 0]] = True
    new_row = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1)
    reduced = record.taking(keep)
    chain_row = {label: row for row, label in enumerate(reduced.chain_label)}
    chains = np.array([chain_row.get(label, -1) for label in record.chain_label], np.int64)
    renumbered = {}
    for project, section in sections.items():
        asym = chains[section.chain_asym]
        if (asym < 0).any():
            raise InputError("a chain without a heavy atom is taken", item=record.entry)
        renumbered[project] = dataclasses.replace(
            section,
            atom_row=new_row[section.atom_row].astype(section.atom_row.dtype),
            chain_asym=asym.astype(section.chain_asym.dtype),
        )
    return {"record": reduced, "sections": renumbered}
