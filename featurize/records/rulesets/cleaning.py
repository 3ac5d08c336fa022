"""What the three projects' cleanings have in common: rules, and a list of what is left out."""

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
        """Every fault mended."""
        faults: Any = {one.name: False for one in dataclasses.fields(cls) if one.type == "bool"}
        return dataclasses.replace(cls(), **faults)


@dataclass(slots=True)
class Cleaning(Generic[_Rules]):
    """A record, the rules that it is cleaned by, and what they leave out."""

    record: EntryRecord
    components: ComponentTable
    rules: _Rules
    dropped: list[Dropped] = field(default_factory=list)

    def refusal(self, reason: str) -> EntryRefused:
        """The error that says why the project does not take the entry."""
        return EntryRefused(reason, item=self.record.entry)

    def drop(self, what: str, chain: str, component: str, reason: str) -> None:
        """Note that something is left out."""
        self.dropped.append(Dropped(what, chain, component, reason))

    def chain_name(self, atoms: AtomRows, row: int) -> str:
        """What reports call the chain of an atom."""
        return self.record.chain_label[int(atoms.asym[row])]

    def report(
        self, atoms: AtomRows, rows: Integer[np.ndarray, " n"], what: str, reason: str
    ) -> None:
        """Note that chains, residues or atoms are left out, by an atom of each."""
        for row in rows.tolist():
            self.drop(what, self.chain_name(atoms, row), str(atoms.res_name[row]), reason)

    def without(self, atoms: AtomRows, out: Bool[np.ndarray, " A"], reason: str) -> AtomRows:
        """The other atoms; residues whose first atom goes are reported."""
        starts = atoms.residue_starts()
        self.report(atoms, starts[out[starts]], "residue", reason)
        return atoms.take(~out)
