"""Base classes of the three projects' cleanings: rules, and a list of what was removed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.featurize.records.rulesets.atom_rows import AtomRows
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import Dropped, EntryRecord
from evofeed.protein.ruleset_section import EntryRefused

_Rules = TypeVar("_Rules", bound="Rules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits of a project's cleaning, and its faults by name: True does as the project does."""

    @classmethod
    def right(cls: type[_Rules]) -> _Rules:
        """The rules with every fault set to False."""
        faults: Any = {rule.name: False for rule in dataclasses.fields(cls) if rule.type == "bool"}
        return dataclasses.replace(cls(), **faults)


@dataclass(slots=True)
class Cleaning(Generic[_Rules]):
    """A record, the rules that clean it, and the list of what they remove."""

    record: EntryRecord
    components: ComponentTable
    rules: _Rules
    dropped: list[Dropped] = field(default_factory=list)

    def refusal(self, reason: str) -> EntryRefused:
        """The error for an entry that the project does not accept."""
        return EntryRefused(reason, item=self.record.entry)

    def drop(self, kind: str, chain: str, component: str, reason: str) -> None:
        """Adds an item to the list of what was removed."""
        self.dropped.append(Dropped(kind, chain, component, reason))

    def chain_name(self, atoms: AtomRows, row: int) -> str:
        """The name of an atom's chain in reports."""
        return self.record.chain_label[int(atoms.asym[row])]

    def report(
        self, atoms: AtomRows, rows: Integer[np.ndarray, " n"], kind: str, reason: str
    ) -> None:
        """Adds removed chains, residues or atoms to the list, given one atom of each."""
        for row in rows.tolist():
            self.drop(kind, self.chain_name(atoms, row), str(atoms.res_name[row]), reason)

    def without(self, atoms: AtomRows, removed: Bool[np.ndarray, " A"], reason: str) -> AtomRows:
        """The atoms that stay; residues whose first atom is removed are reported."""
        starts = atoms.residue_starts()
        self.report(atoms, starts[removed[starts]], "residue", reason)
        return atoms.take(~removed)
