"""Each layout of an input -> its chain sources, with what is beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import InputError, NoProtein
from evofeed.featurize.formats.alignment_db import DbEntry
from evofeed.featurize.formats.colabfold_a3m import assembly_in
from evofeed.featurize.formats.fasta import parse_fasta
from evofeed.featurize.formats.reading import (
    PACKED,
    entry_kind,
    file_ref,
    plain,
    read_bytes,
    read_head,
)
from evofeed.featurize.inputs.queries import query_of
from evofeed.featurize.inputs.roads.alignments import chain_folders, from_complex, from_target
from evofeed.featurize.inputs.roads.complexes import Molecule, is_other, molecule_of, no_protein
from evofeed.featurize.inputs.roads.tables import alignment_file, alignment_named, chai_name, stem
from evofeed.featurize.inputs.side_files import SideFiles, first_dir, first_file
from evofeed.featurize.inputs.sources import SUBFOLDERS, ChainSource, is_alignment
from evofeed.featurize.structures.listing import list_chains
from evofeed.featurize.structures.structure_files import entry_of, structures_by_entry

_COLABFOLD_SEARCH: Final = re.compile(r"(.+)_(?:env|all|nofilter|env-nofilter|pair[\w-]*)$")
"""ColabFold's own working folder of `<name>.a3m`, with that alignment's parts."""
_COMMON_NAMES: Final = ("a3m", "a3ms", "alignments", "msa", "msas")
"""Folders whose name names no chain; Boltz's and others' `msa/` has a file for each protein."""
_HEAD_BYTES: Final = 1 << 18
"""Of an a3m, with its query in it."""
_COLABFOLD_MODEL: Final = re.compile(r"_(?:un)?relaxed_rank_0*1_")


def refuse_one_chain(root: Path) -> None:
    """Raise for a chain's own folder: its alignments are not chains.

    Raises:
        InputError: it is one; names the folder to give instead.
    """
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        name = file_ref(entry.name).plain_name
        own = name.endswith((".sto", ".hhr")) or (
            name.endswith(".a3m") and root.absolute().parent.name == "alignments"
        )
        if entry_kind(entry) == "dir":
            own = (
                entry.name in SUBFOLDERS
                and any(map(_holds_alignments, list(os.scandir(entry.path))))
                and not several_proteins(Path(entry.path))
            )
        if own:
            raise InputError(
                f"this is one chain's own folder, it has {entry.name}: give the folder of all "
                f"chains, {root.absolute().parent}",
                path=str(root),
            )


def from_chain_folders(root: Path, beside: SideFiles, *, every: bool = False) -> list[ChainSource]:
    """Chain folders, flattened or as OpenProteinSet ships them; `every`: those without
    alignments too, which else are something else."""
    sources = []
    for entry in os.scandir(root):
        if entry_kind(entry) != "dir" or entry.name.startswith("."):
            continue
        try:
            inner = list(os.scandir(entry.path))
        except OSError as error:  # one that is not ours to read hides no other
            why = f"folder cannot be listed: {error.strerror}"
            beside.faults.append(InputError(why, path=entry.path))
            continue
        if any(item.name == "msas" for item in inner) and chain_folders(Path(entry.path)):
            sources += from_target(Path(entry.path), beside)
            continue
        if not every and not any(_holds_alignments(item) for item in inner):
            continue
        if entry.name in _COMMON_NAMES and several_proteins(Path(entry.path)):
            sources += from_a3m_files(a3m_files(Path(entry.path)), beside)
            continue
        search = _COLABFOLD_SEARCH.match(entry.name)
        if search and (root / f"{search[1]}.a3m").is_file():
            continue
        for source in beside.chain(entry.name, entry.path, alignment_dir=entry.path):
            structure = source.structure or _inner_structure(inner)
            sources.append(dataclasses.replace(source, structure=structure))
    return sources


def a3m_files(folder: Path) -> list[Path]:
    """The a3m files of a folder, in order of name."""
    return sorted(p for p in folder.iterdir() if plain(p.name).endswith(".a3m") and p.is_file())


def several_proteins(folder: Path) -> bool:
    """Whether the a3m files of a folder are those of several proteins: their queries differ."""
    queries = set()
    for path in a3m_files(folder):
        with contextlib.suppress(InputError):  # said when it is read
            queries.add(query_of(read_head(file_ref(path), _HEAD_BYTES), "a3m"))
        if len(queries) > 1:
            return True
    return False


def _holds_alignments(item: os.DirEntry[str]) -> bool:
    return item.name in SUBFOLDERS if entry_kind(item) == "dir" else is_alignment(item.name)


def _inner_structure(inner: Iterable[os.DirEntry[str]]) -> str | None:
    """The structure in OpenProteinSet's `cif/` or `pdb/` below a chain's folder."""
    below = [
        Path(item.path)
        for item in inner
        if item.name in ("cif", "pdb") and entry_kind(item) == "dir"
    ]
    found = structures_by_entry(sorted(below))
    return found[min(found)] if found else None


def from_db(index: Mapping[str, DbEntry], beside: SideFiles) -> list[ChainSource]:
    """The chains of an alignment_db."""
    sources = []
    for chain_id, entry in index.items():
        if entry.is_rna:
            beside.faults.append(NoProtein("RNA", path=entry.db, item=chain_id))
            continue
        own = {"sequence": entry.sequence, "description": entry.description}
        more = {name: value for name, value in own.items() if value}
        sources += beside.chain(chain_id, entry.db, alignments=entry.files, **more)
    return sources


def from_a3m_files(paths: Iterable[Path], beside: SideFiles) -> list[ChainSource]:
    """ColabFold results: `<name>.a3m`, the best model beside it as its structure.

    Also the same as tables: Boltz's `.csv`, Chai's `.aligned.pqt`.
    """
    sources = []
    for path in paths:
        name = stem(path)
        assembly = assembly_in(path)
        if assembly is not None and sum(assembly.copies) > 1:
            model = _colabfold_model(path.parent, name)
            sources += from_complex(path, assembly, model, beside)
            continue
        ref = alignment_file(path) or file_ref(path)
        for source in beside.chain(name, str(path), alignments=(ref,)):
            model = source.structure or _colabfold_model(path.parent, name)
            is_model = source.is_distillation or model is not None
            sources.append(dataclasses.replace(source, structure=model, is_distillation=is_model))
    return sources


def _colabfold_model(folder: Path, name: str) -> str | None:
    models = [p for p in sorted(folder.glob(f"{name}*.pdb")) if _COLABFOLD_MODEL.search(p.name)]
    relaxed = [p for p in models if "unrelaxed" not in p.name]
    best = relaxed or models
    return str(best[0]) if best else None


def from_fasta(path: Path, beside: SideFiles, *, rna: bool = False) -> list[ChainSource]:
    """Sequences of a FASTA file; alignments are `<name>/` or `<name>.a3m` beside it.

    Headers may be Boltz's or Chai's, which say what kind of molecule each is and where its
    alignment is; what is no protein, nor `rna` if that is wanted, is noted with the proteins.
    """
    faults: list[InputError] = []
    records = parse_fasta(read_bytes(file_ref(path)), path=str(path), faults=faults, rna=rna)
    molecules = [molecule_of(fault.item or "") for fault in faults]
    beside.faults.extend(f for f, e in zip(faults, molecules, strict=True) if not is_other(e))
    others = [m for m in molecules if m is not None and is_other(m)]
    sources = []
    for record in records:
        molecule = molecule_of(record.description)
        if molecule is not None and is_other(molecule) and not (rna and molecule.kind == "rna"):
            others.append(molecule)
            continue
        own = {"sequence": record.sequence, "description": record.description}
        for source in beside.chain(_fasta_id(record.name, molecule, path), str(path), **own):
            found = _alignments_of(record.sequence, source.chain_id, molecule, path)
            sources.append(dataclasses.replace(source, **found))
    if others and not sources:
        beside.faults.append(NoProtein(no_protein(others), path=str(path)))
    notes = (no_protein(others),) if others else ()
    return [dataclasses.replace(source, notes=notes) for source in sources]


def _fasta_id(name: str, molecule: Molecule | None, path: Path) -> str:
    """Chain id of a FASTA header's first word; of `sp|P61626|LYSC_HUMAN` the accession."""
    if molecule is not None:
        entry = plain(path.name).rpartition(".")[0]
        return f"{entry}_{molecule.name}" if molecule.chain else molecule.name
    parts = name.split("|")
    return (parts[1] if len(parts) > 1 and parts[1] else name).partition("/")[0]


def _alignments_of(
    sequence: str, chain_id: str, molecule: Molecule | None, fasta: Path
) -> dict[str, Any]:
    """Where the alignments of a sequence lie: as its header says, or by name beside its file."""
    if molecule is not None and molecule.msa:
        return {"alignments": (alignment_named(molecule.msa, fasta),)}
    folder = first_dir(fasta.parent, (chain_id, f"alignments/{chain_id}"))
    if folder:
        return {"alignment_dir": str(folder)}
    names = [f"{chain_id}.a3m{packed}" for packed in ("", *PACKED)]
    names += [f"{home}{chai_name(sequence)}" for home in ("", "msas/", "msa/")]
    beside_it = first_file(fasta.parent, names)
    ref = alignment_file(Path(beside_it)) if beside_it else None
    return {"alignments": (ref,) if ref else ()}


def from_structures(paths: Iterable[Path], beside: SideFiles) -> list[ChainSource]:
    """Every protein chain of structure files; the files are parsed to know them."""
    sources = []
    files = list(paths)
    for path, listed in zip(files, list_chains(files), strict=True):
        if isinstance(listed, InputError):
            beside.faults.append(listed)
            continue
        entry = entry_of(plain(path.name))
        for chain in listed:
            name = f"{entry}_{chain}" if chain else entry
            own = {"structure": str(path), "structure_chain": chain}
            sources += beside.chain(name, str(path), **own)
    return sources
