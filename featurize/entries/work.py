"""A unit of a job of entries: mmCIF files, alignments or molecules, written as one shard."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from evofeed.base.errors import InputError, StoreError
from evofeed.featurize.config import InputCaps
from evofeed.featurize.entries.alignments import read_alignment
from evofeed.featurize.entries.molecules import (
    component_molecule,
    conformer_version,
    ligand_molecules,
    rdkit,
)
from evofeed.featurize.entries.prepare import prepare_entry
from evofeed.featurize.entries.prepared import read_target
from evofeed.featurize.entries.templates import with_templates
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.job.template_use import stored_templates
from evofeed.featurize.job.work import Task, UnitResult, describe
from evofeed.featurize.records.rulesets.contacts import contacts
from evofeed.featurize.records.template_library import FolderUse
from evofeed.featurize.structures.cif import read_block
from evofeed.protein.components import ComponentTable
from evofeed.protein.molecules import Molecule
from evofeed.store import write_records
from evofeed.store.inner import (
    RecordSpan,
    encode_alignment,
    encode_entry,
    encode_molecules,
    open_storage,
    read_value,
)

CONFORMERS = {"openfold3": 32, "boltz": 1, "protenix": 1}
"""Conformers per component, the pool that replaces each project's own generation of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesTask(Task):
    """Entries, alignments or molecules to prepare.

    An item is its name in reports and, by `kind`, an mmCIF file or an item of `PreparedSet.items`
    (`entry`), the files of one query (`alignment`) or the code of a component (`molecules`).
    """

    kind: str
    items: tuple[tuple[str, ...], ...]
    components: RecordSpan
    projects: tuple[str, ...]
    conformers: int | None = None
    templates: str = ""
    run: str = ""

    def work(self, set_current: Callable[[str], None]) -> UnitResult:
        """Processes every item and writes those that succeed as one shard.

        Raises:
            StoreError: the shard cannot be written.
        """
        _warm_up(self)
        unit = _UnitWork(self)
        for name, *files in self.items:
            set_current(name)
            unit.process(name, files)
        set_current("")
        return unit.result()


class _UnitWork:
    def __init__(self, task: EntriesTask) -> None:
        self.task = task
        self.encoded: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.clusters: dict[str, str] = {}
        self.failures: list[dict[str, Any]] = []
        self.notes: dict[str, tuple[str, ...]] = {}
        self.needs: dict[str, set[str]] = {project: set() for project in task.projects}
        self.molecules: dict[str, dict[str, Molecule]] = {p: {} for p in task.projects}
        self.template_use = FolderUse()

    def process(self, name: str, files: Sequence[str]) -> None:
        try:
            getattr(self, f"_{self.task.kind}")(name, files)
        except StoreError:
            raise
        except Exception as error:  # a crash is noticed by the watching parent
            self.failures.append({**describe(error), "chain_id": name})

    def _components(self) -> ComponentTable:
        return components_at(self.task.dataset_uri, self.task.components)

    def _entry(self, name: str, files: Sequence[str]) -> None:
        components = self._components()
        if len(files) > 1:  # from a prepared set, which has one project
            (project,) = self.task.projects
            entry, molecules, clusters = read_target(project, *files, components=components)
            if missing := sorted(entry.components(project) - set(components) - set(molecules)):
                raise InputError(f"component {missing[0]} is not in the dictionary", path=files[0])
            for code, molecule in molecules.items():
                present = self.molecules[project].get(code)
                self.molecules[project][code] = present.overlaid(molecule) if present else molecule
            self.clusters |= clusters
        else:
            data = read_bytes(file_ref(files[0]), InputCaps())
            entry = prepare_entry(data, components, self.task.projects, path=files[0])
        if earlier_file := self.names.get(entry.record_id):
            raise InputError(f"entry {entry.record_id} is in {earlier_file} too", path=files[0])
        for project, section in entry.sections.items():
            self.needs[project] |= entry.components(project)
            if project == "openfold3":  # ligands of several residues are one molecule
                count = self.task.conformers or CONFORMERS[project]
                ligands = ligand_molecules(entry.record, section, count)
                self.molecules[project] |= {key: ligand.molecule for key, ligand in ligands.items()}
        self.encoded[entry.record_id] = encode_entry(entry.record, entry.sections)
        self.names[entry.record_id] = name
        if notes := entry.notes():
            self.notes[name] = notes

    def _alignment(self, name: str, files: Sequence[str]) -> None:
        alignment = read_alignment(files)
        if self.task.templates:
            task, use = self.task, FolderUse()
            alignment, notes = with_templates(
                alignment, files, task.templates, task.projects, self._components(), use, task.run
            )
            self.template_use.add(use)
            self.notes |= {name: notes} if notes else {}
        self.encoded[alignment.name] = encode_alignment(alignment)

    def _molecules(self, name: str, codes: Sequence[str]) -> None:
        components = self._components()
        for project in self.task.projects:
            count = self.task.conformers or CONFORMERS[project]
            reference = component_molecule(components[codes[0]], count)
            self.molecules[project][codes[0]] = reference.molecule
            if reference.origin != "computed":
                note = f"no conformer could be computed: {reference.origin} coordinates"
                self.notes[name] = (note,)

    def result(self) -> UnitResult:
        task, shard, molecules = self.task, None, None
        if parts := {p: encode_molecules(table) for p, table in self.molecules.items() if table}:
            molecules = write_records(task.dataset_uri, "molecules", parts).to_dict()
        entry = molecules
        if self.encoded:
            entry = write_records(task.dataset_uri, task.kind, self.encoded).to_dict()
        if entry:
            shard = {
                **entry,
                "kind": task.kind,
                "records": self.names,
                "clusters": self.clusters,
                "needs": {project: sorted(codes) for project, codes in self.needs.items()},
                "molecules": molecules,
                "templates": stored_templates({task.templates: self.template_use}),
            }
        return UnitResult(
            unit_id=task.unit_id,
            shard=shard,
            num_chains=len(task.items) - len(self.failures),
            failures=tuple(self.failures),
            notes=self.notes,
        )


def _warm_up(task: EntriesTask) -> None:
    """Loads and compiles what the items need before the first one's deadline starts."""
    pa.array([""])
    if task.kind == "alignment":
        parse_a3m(b">query\nMA\n>row\nM-\n")
        parse_stockholm(b"# STOCKHOLM 1.0\nquery MA\nrow M-\n//\n")
    elif task.items:
        components_at(task.dataset_uri, task.components)
    # An item of a prepared set is longer than a name and a file.
    if task.kind != "alignment" and task.items and len(task.items[0]) == 2:
        read_block(b"data_1abc\n")
        for project in task.projects:
            importlib.import_module(f"evofeed.featurize.records.rulesets.{project}")
        contacts(np.zeros((2, 3)), np.arange(2), 1.0)
        if conformer_version():
            rdkit()


@functools.lru_cache(maxsize=1)
def components_at(dataset_uri: str, span: RecordSpan) -> ComponentTable:
    """The component dictionary of a job, read once per process."""
    components: ComponentTable = read_value(open_storage(dataset_uri), span)
    return components
