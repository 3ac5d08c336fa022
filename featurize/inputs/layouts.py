"""Layouts of an input -> chain sources, with their side files."""

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
from evofeed.featurize.inputs.readers.alignments import chain_folders, from_complex, from_target
from evofeed.featurize.inputs.readers.job_files import (
    Molecule,
    is_other,
    left_out_note,
    molecule_of,
)
from evofeed.featurize.inputs.readers.tables import alignment_file, alignment_named, chai_name, stem
from evofeed.featurize.inputs.side_files import SideFiles, first_dir, first_file
from evofeed.featurize.inputs.sources import SUBFOLDERS, ChainSource, is_alignment
from evofeed.featurize.structures.listing import list_chains
from evofeed.featurize.structures.structure_files import entry_of, structures_by_entry

_COLABFOLD_SEARCH: Final = re.compile(r"(.+)_(?:env|all|nofilter|env-nofilter|pair[\w-]*)$")
"""ColabFold's working folder of `<name>.a3m`, with that alignment's parts."""
_COMMON_NAMES: Final = ("a3m", "a3ms", "alignments", "msa", "msas")
"""Folder names that are not chain ids; Boltz's `msa/`, as others', has a file for each protein."""
_HEAD_BYTES: Final = 1 << 18
"""Of an a3m: enough to read its query."""
_COLABFOLD_MODEL: Final = re.compile(r"_(?:un)?relaxed_rank_0*1_")


def refuse_one_chain(root: Path) -> None:
    """Raises for the folder of one chain: its alignments are not chains.

    Raises:
        InputError: it is one; names the folder to give instead.
    """
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        name = file_ref(entry.name).plain_name
        is_of_chain = name.endswith((".sto", ".hhr")) or (
            name.endswith(".a3m") and root.absolute().parent.name == "alignments"
        )
        if entry_kind(entry) == "dir":
            is_of_chain = (
                entry.name in SUBFOLDERS
                and any(map(_has_alignments, list(os.scandir(entry.path))))
                and not _has_several_proteins(Path(entry.path))
            )
        if is_of_chain:
            raise InputError(
                f"this is one chain's own folder, it has {entry.name}: give the folder of all "
                f"chains, {root.absolute().parent}",
                path=str(root),
            )


def from_chain_folders(
    root: Path, side_files: SideFiles, *, every: bool = False
) -> list[ChainSource]:
    """Chains of folders, flattened or as OpenProteinSet ships them; `every`: also of folders
    without alignments, which are skipped else."""
    sources = []
    for entry in os.scandir(root):
        if entry_kind(entry) != "dir" or entry.name.startswith("."):
            continue
        try:
            inner = list(os.scandir(entry.path))
        except OSError as error:  # a folder without permission: the others are read
            message = f"folder cannot be listed: {error.strerror}"
            side_files.problems.append(InputError(message, path=entry.path))
            continue
        if any(item.name == "msas" for item in inner) and chain_folders(Path(entry.path)):
            sources += from_target(Path(entry.path), side_files)
            continue
        if not every and not any(_has_alignments(item) for item in inner):
            continue
        if entry.name in _COMMON_NAMES and _has_several_proteins(Path(entry.path)):
            sources += from_a3m_files(_a3m_files(Path(entry.path)), side_files)
            continue
        match = _COLABFOLD_SEARCH.match(entry.name)
        if match and (root / f"{match[1]}.a3m").is_file():
            continue
        for source in side_files.chain(entry.name, entry.path, alignment_dir=entry.path):
            structure = source.structure or _inner_structure(inner)
            sources.append(dataclasses.replace(source, structure=structure))
    return sources


def _a3m_files(folder: Path) -> list[Path]:
    """The a3m files of a folder, in order of name."""
    return sorted(p for p in folder.iterdir() if plain(p.name).endswith(".a3m") and p.is_file())


def _has_several_proteins(folder: Path) -> bool:
    """True if the queries of a folder's a3m files differ."""
    queries = set()
    for path in _a3m_files(folder):
        with contextlib.suppress(InputError):  # raised where all of it is read
            queries.add(query_of(read_head(file_ref(path), _HEAD_BYTES), "a3m"))
        if len(queries) > 1:
            return True
    return False


def _has_alignments(item: os.DirEntry[str]) -> bool:
    return item.name in SUBFOLDERS if entry_kind(item) == "dir" else is_alignment(item.name)


def _inner_structure(inner: Iterable[os.DirEntry[str]]) -> str | None:
    """The structure in OpenProteinSet's `cif/` or `pdb/` of a chain's folder."""
    folders = [
        Path(item.path)
        for item in inner
        if item.name in ("cif", "pdb") and entry_kind(item) == "dir"
    ]
    path_of = structures_by_entry(sorted(folders))
    return path_of[min(path_of)] if path_of else None


def from_db(index: Mapping[str, DbEntry], side_files: SideFiles) -> list[ChainSource]:
    """The chains of an alignment_db."""
    sources = []
    for chain_id, entry in index.items():
        if entry.is_rna:
            side_files.problems.append(NoProtein("RNA", path=entry.db, item=chain_id))
            continue
        texts = {"sequence": entry.sequence, "description": entry.description}
        sources += side_files.chain(chain_id, entry.db, alignments=entry.files, **texts)
    return sources


def from_a3m_files(paths: Iterable[Path], side_files: SideFiles) -> list[ChainSource]:
    """Chains of ColabFold results, `<name>.a3m`, with the best model there as structure.

    Also of alignments as tables: Boltz's `.csv`, Chai's `.aligned.pqt`.
    """
    sources = []
    for path in paths:
        name = stem(path)
        assembly = assembly_in(path)
        if assembly is not None and sum(assembly.copies) > 1:
            model = _colabfold_model(path.parent, name)
            sources += from_complex(path, assembly, model, side_files)
            continue
        ref = alignment_file(path) or file_ref(path)
        for source in side_files.chain(name, str(path), alignments=(ref,)):
            model = source.structure or _colabfold_model(path.parent, name)
            is_model = source.is_distillation or model is not None
            sources.append(dataclasses.replace(source, structure=model, is_distillation=is_model))
    return sources


def _colabfold_model(folder: Path, name: str) -> str | None:
    models = [p for p in sorted(folder.glob(f"{name}*.pdb")) if _COLABFOLD_MODEL.search(p.name)]
    relaxed = [p for p in models if "unrelaxed" not in p.name]
    best = relaxed or models
    return str(best[0]) if best else None


def from_fasta(path: Path, side_files: SideFiles, *, rna: bool = False) -> list[ChainSource]:
    """Chains of a FASTA file; alignments are `<name>/` or `<name>.a3m` in its folder.

    Headers may be Boltz's or Chai's, with the kind of each molecule and the file of its alignment;
    molecules other than proteins, or RNA with `rna`, are listed in the notes of the proteins.
    """
    problems: list[InputError] = []
    records = parse_fasta(read_bytes(file_ref(path)), path=str(path), problems=problems, rna=rna)
    molecules = [molecule_of(problem.item or "") for problem in problems]
    pairs = zip(problems, molecules, strict=True)
    side_files.problems.extend(problem for problem, m in pairs if not is_other(m))
    others = [m for m in molecules if m is not None and is_other(m)]
    sources = []
    for record in records:
        molecule = molecule_of(record.description)
        if molecule is not None and is_other(molecule) and not (rna and molecule.kind == "rna"):
            others.append(molecule)
            continue
        texts = {"sequence": record.sequence, "description": record.description}
        for source in side_files.chain(_fasta_id(record.name, molecule, path), str(path), **texts):
            alignments = _alignments_of(record.sequence, source.chain_id, molecule, path)
            sources.append(dataclasses.replace(source, **alignments))
    if others and not sources:
        side_files.problems.append(NoProtein(left_out_note(others), path=str(path)))
    notes = (left_out_note(others),) if others else ()
    return [dataclasses.replace(source, notes=notes) for source in sources]


def _fasta_id(name: str, molecule: Molecule | None, path: Path) -> str:
    """Chain id by a FASTA header's first word; of `sp|P61626|LYSC_HUMAN` the accession."""
    if molecule is not None:
        entry = plain(path.name).rpartition(".")[0]
        return f"{entry}_{molecule.name}" if molecule.chain else molecule.name
    parts = name.split("|")
    return (parts[1] if len(parts) > 1 and parts[1] else name).partition("/")[0]


def _alignments_of(
    sequence: str, chain_id: str, molecule: Molecule | None, fasta: Path
) -> dict[str, Any]:
    """Fields of `ChainSource` with a sequence's alignments: those its header names, else by name
    in the folder of its file."""
    if molecule is not None and molecule.msa:
        return {"alignments": (alignment_named(molecule.msa, fasta),)}
    folder = first_dir(fasta.parent, (chain_id, f"alignments/{chain_id}"))
    if folder:
        return {"alignment_dir": str(folder)}
    names = [f"{chain_id}.a3m{packed}" for packed in ("", *PACKED)]
    names += [f"{subfolder}{chai_name(sequence)}" for subfolder in ("", "msas/", "msa/")]
    path = first_file(fasta.parent, names)
    ref = alignment_file(Path(path)) if path else None
    return {"alignments": (ref,) if ref else ()}


def from_structures(paths: Iterable[Path], side_files: SideFiles) -> list[ChainSource]:
    """Every protein chain of structure files, which are parsed for their chains."""
    sources = []
    files = list(paths)
    for path, listed in zip(files, list_chains(files), strict=True):
        if isinstance(listed, InputError):
            side_files.problems.append(listed)
            continue
        entry = entry_of(plain(path.name))
        for chain in listed:
            name = f"{entry}_{chain}" if chain else entry
            structure = {"structure": str(path), "structure_chain": chain}
            sources += side_files.chain(name, str(path), **structure)
    return sources
