"""One unit of a job of entries: some mmCIF files, or alignments, to one shard."""

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
"""Conformers in the pool of each project: what stands in for its own way to make them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesTask(Task):
    """Entries, alignments or molecules to prepare.

    An item is its name in reports and, by `kind`, an mmCIF file or what `PreparedSet.items` has
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
        """Do every item and write the good ones as one shard.

        Raises:
            StoreError: the shard cannot be written.
        """
        _load(self)
        unit = _Unit(self)
        for name, *files in self.items:
            set_current(name)
            unit.do(name, files)
        set_current("")
        return unit.result()


class _Unit:
    def __init__(self, task: EntriesTask) -> None:
        self.task = task
        self.encoded: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.clusters: dict[str, str] = {}
        self.failures: list[dict[str, Any]] = []
        self.notes: dict[str, tuple[str, ...]] = {}
        self.needs: dict[str, set[str]] = {project: set() for project in task.projects}
        self.molecules: dict[str, dict[str, Molecule]] = {p: {} for p in task.projects}
        self.used = FolderUse()

    def do(self, name: str, files: Sequence[str]) -> None:
        try:
            getattr(self, f"_{self.task.kind}")(name, files)
        except StoreError:
            raise
        except Exception as error:  # anything else is caught by whoever watches the process
            self.failures.append({**describe(error), "chain_id": name})

    def _components(self) -> ComponentTable:
        return components_at(self.task.dataset_uri, self.task.components)

    def _entry(self, name: str, files: Sequence[str]) -> None:
        components = self._components()
        if len(files) > 1:  # of a prepared set, which is one project's
            (project,) = self.task.projects
            made, molecules, clusters = read_target(project, *files, components=components)
            if lost := sorted(made.components(project) - set(components) - set(molecules)):
                raise InputError(f"component {lost[0]} is not in the dictionary", path=files[0])
            for code, one in molecules.items():
                known = self.molecules[project].get(code)
                self.molecules[project][code] = known.overlaid(one) if known else one
            self.clusters |= clusters
        else:
            data = read_bytes(file_ref(files[0]), InputCaps())
            made = prepare_entry(data, components, self.task.projects, path=files[0])
        if earlier := self.names.get(made.record_id):
            raise InputError(f"entry {made.record_id} is in {earlier} too", path=files[0])
        for project, section in made.sections.items():
            self.needs[project] |= made.components(project)
            if project == "openfold3":  # ligands of several residues are one molecule
                count = self.task.conformers or CONFORMERS[project]
                ligands = ligand_molecules(made.record, section, count)
                self.molecules[project] |= {key: one.molecule for key, one in ligands.items()}
        self.encoded[made.record_id] = encode_entry(made.record, made.sections)
        self.names[made.record_id] = name
        if notes := made.notes():
            self.notes[name] = notes

    def _alignment(self, name: str, files: Sequence[str]) -> None:
        alignment = read_alignment(files)
        if self.task.templates:
            task, use = self.task, FolderUse()
            alignment, passed_over = with_templates(
                alignment, files, task.templates, task.projects, self._components(), use, task.run
            )
            self.used.add(use)
            self.notes |= {name: passed_over} if passed_over else {}
        self.encoded[alignment.name] = encode_alignment(alignment)

    def _molecules(self, name: str, codes: Sequence[str]) -> None:
        components = self._components()
        for project in self.task.projects:
            count = self.task.conformers or CONFORMERS[project]
            made = component_molecule(components[codes[0]], count)
            self.molecules[project][codes[0]] = made.molecule
            if made.origin != "computed":
                self.notes[name] = (f"no conformer could be computed: {made.origin} coordinates",)

    def result(self) -> UnitResult:
        task, shard, made = self.task, None, None
        if parts := {p: encode_molecules(one) for p, one in self.molecules.items() if one}:
            made = write_records(task.dataset_uri, "molecules", parts).to_dict()
        entry = made
        if self.encoded:
            entry = write_records(task.dataset_uri, task.kind, self.encoded).to_dict()
        if entry:
            shard = {
                **entry,
                "kind": task.kind,
                "records": self.names,
                "clusters": self.clusters,
                "needs": {project: sorted(codes) for project, codes in self.needs.items()},
                "molecules": made,
                "templates": stored_templates({task.templates: self.used}),
            }
        return UnitResult(
            unit_id=task.unit_id,
            shard=shard,
            num_chains=len(task.items) - len(self.failures),
            failures=tuple(self.failures),
            notes=self.notes,
        )


def _load(task: EntriesTask) -> None:
    """Load and compile what its items need before one is in hand, for its deadline counts."""
    pa.array([""])
    if task.kind == "alignment":
        parse_a3m(b">query\nMA\n>row\nM-\n")
        parse_stockholm(b"# STOCKHOLM 1.0\nquery MA\nrow M-\n//\n")
    elif task.items:
        components_at(task.dataset_uri, task.components)
    if task.kind != "alignment" and task.items and len(task.items[0]) == 2:  # no prepared set's
        read_block(b"data_1abc\n")
        for project in task.projects:
            importlib.import_module(f"evofeed.featurize.records.rulesets.{project}")
        contacts(np.zeros((2, 3)), np.arange(2), 1.0)
        if conformer_version():
            rdkit()


@functools.lru_cache(maxsize=1)
def components_at(dataset_uri: str, span: RecordSpan) -> ComponentTable:
    """The dictionary of components of a job, read once a process."""
    components: ComponentTable = read_value(open_storage(dataset_uri), span)
    return components
