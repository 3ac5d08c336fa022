"""Discovery of the chains of an input, in any of these layouts.

alignments/<chain>/*            OpenFold's flattened folders, with folders of structures
<chain>/{a3m,hhr,cif,pdb}/*     OpenProteinSet as downloaded, not flattened
<chain>/msas/*                  AlphaFold's output
*.index + *.db                  alignment_db: the sharded super-index or the old one
*.a3m                           ColabFold results, with their models
*.json, *.yaml                  jobs of AlphaFold 3, Protenix and Boltz
*_a3m.ffindex, *_a3m.ffdata     databases of hh-suite
proteins.fasta                  sequences, with alignments by name
*.cif, *.pdb                    structures alone, every protein chain
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError, NoProtein
from evofeed.featurize.formats.alignment_db import read_index
from evofeed.featurize.formats.fasta import SUFFIXES as FASTA
from evofeed.featurize.formats.reading import entry_kind, file_ref, paused_gc, plain, read_bytes
from evofeed.featurize.inputs import layouts
from evofeed.featurize.inputs.accounting import (
    check_folders,
    explicit_files,
    merge_sources,
    names_a_chain,
    not_an_input,
    unused_files,
    unused_structures,
)
from evofeed.featurize.inputs.readers.alignments import (
    chain_folders,
    from_ffindex,
    from_target,
    index_files,
)
from evofeed.featurize.inputs.readers.job_files import SUFFIXES as JOB_FILES
from evofeed.featurize.inputs.readers.job_files import from_job, is_job
from evofeed.featurize.inputs.readers.tables import SUFFIXES as TABLES
from evofeed.featurize.inputs.readers.tables import alignment_file
from evofeed.featurize.inputs.side_files import (
    FASTA_DIRS,
    STRUCTURE_DIRS,
    SideFiles,
    first_dir,
    first_file,
    folders,
)
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.inputs.stage import is_remote
from evofeed.featurize.structures.structure_files import SUFFIXES, structure_files

_ALIGNMENT_DIRS: Final = ("alignments", "pdb", "uniclust30", "openfold_alignments")
_DB_DIRS: Final = (".", "alignment_db", "alignment_dbs", "alignment_data/alignment_db")

Path_ = str | os.PathLike[str]


def discover(
    uri: Path_,
    *,
    structure_dir: Path_ | None = None,
    template_mmcif_dir: Path_ | None = None,
    is_distillation: bool = False,
    problems: list[InputError] | None = None,
) -> list[ChainSource]:
    """The chains of an input, ordered by chain id.

    Args:
        structure_dir: structures, if they are not in `mmcif/`, `data/`, … of the input.
        template_mmcif_dir: structures of template hits; else `structure_dir`.
        problems: receives errors such as bad chain ids, of which else the first is raised; also
            one for each non-protein (`NoProtein`) and each unused file (`UnusedInput`).

    Raises:
        InputError: no such input, nothing in it that looks like chains, or an invalid
            chain id.
    """
    if is_remote(os.fspath(uri)):
        raise InputError(
            "in a bucket: `evofeed featurize` copies it first; in Python, "
            "evofeed.featurize.stage_input(uri, folder) gives a path for discover",
            path=os.fspath(uri),
        )
    root = Path(_path(uri))
    if root.name in ("", ".."):  # `.` has neither a name nor a parent
        root = root.resolve()
    if not root.exists():
        raise InputError("no such file or folder", path=str(root))
    if not root.is_file() and not root.is_dir():
        raise InputError("neither a file nor a folder: copy it into a file first", path=str(root))
    errors: list[InputError] = []
    home = _home_of(root)
    alignments = first_dir(root if root.is_dir() else root.parent, _ALIGNMENT_DIRS)
    uris = {"structure_dir": structure_dir, "template_mmcif_dir": template_mmcif_dir}
    user_dirs = {name: None if folder is None else _path(folder) for name, folder in uris.items()}
    side_files = SideFiles.find(home, user_dirs, errors, is_distillation=is_distillation)
    with paused_gc():
        sources = _sources(root, alignments, side_files)
    if duplicates := first_file(home, ("duplicate_pdb_chains.txt",)):
        sources += _duplicate_chains(sources, duplicates, side_files)
    sources = unique_chains(sources, errors, str(root))
    if problems is not None:
        problems += errors
        if root.is_dir():
            used = {*side_files.used, *(error.path or "" for error in errors)}
            problems += unused_files(root, sources, used)
    elif fatal := [error for error in errors if not isinstance(error, NoProtein) or not sources]:
        raise fatal[0]
    if not sources and not errors:
        message = not_an_input(root) if root.is_dir() else "no chain in it: is it empty?"
        raise InputError(message, path=str(root))
    if sources:
        check_folders(sources, user_dirs)
    return sorted(sources, key=lambda source: source.chain_id)


def nothing_usable(problems: Sequence[InputError], uri: str) -> InputError:
    """The error for an input of which `discover` found only `problems`."""
    if not problems:
        return InputError("no chain in it", path=uri)
    first, more = problems[0], len(problems) - 1
    others = f" ({more} more like this; `evofeed check` lists them)" if more else ""
    message = f"no chain in it can be used: {first.message}{others}"
    return type(first)(message, path=first.path or uri, line=first.line, item=first.item)


def _home_of(root: Path) -> Path:
    """The folder with an input's alignments and side files."""
    home = root if root.is_dir() else root.parent
    if first_dir(home, _ALIGNMENT_DIRS) is None and home == home.parent / "alignments":
        return home.parent
    return home


def _sources(root: Path, alignments: Path | None, side_files: SideFiles) -> list[ChainSource]:
    if root.is_file():
        return _of_file(root, side_files)
    indices = (i for name in _DB_DIRS for i in sorted((root / name).glob("*.index")))
    index = next((i for i in indices if not i.with_suffix(".dbtype").exists()), None)  # mmseqs'
    if index is not None:
        return layouts.from_db(read_index(str(index)), side_files)
    return _of_folder(root, alignments, side_files)


def _of_folder(root: Path, alignments: Path | None, side_files: SideFiles) -> list[ChainSource]:
    """The chains of all layouts that a folder has, merged by chain id."""
    jobs = _from_files(filter(is_job, _files(root, JOB_FILES)), from_job, side_files)
    jobs = jobs or _from_files(sorted(root.glob("*/*_data.json*")), from_job, side_files)
    fasta = {p: _from_files([p], layouts.from_fasta, side_files) for p in _files(root, FASTA)}
    named = explicit_files([*jobs, *itertools.chain(*fasta.values())])
    # A folder in `alignments/` is a chain even if it is empty; one in `pdb/` may have structures.
    every = alignments is not None and alignments.name == "alignments"
    sources = layouts.from_chain_folders(alignments, side_files, every=every) if alignments else []
    sources = merge_sources(sources, jobs)
    sources = merge_sources(sources, _from_alignments(root, side_files, named))
    sources = merge_sources(sources, _from_files(index_files(root), from_ffindex, side_files))
    tables = [p for p in _files(root, TABLES) if str(p) not in named and alignment_file(p)]
    sources = merge_sources(sources, layouts.from_a3m_files(tables, side_files))
    for path, records in fasta.items():
        if not names_a_chain(path, records, sources):
            sources = merge_sources(sources, records)
            side_files.used.update([str(path)] if records else ())
    sources = sources or _from_files(fasta_files(root), layouts.from_fasta, side_files)
    structures = unused_structures(root, sources) if sources else _structures(root)
    return merge_sources(sources, layouts.from_structures(structures, side_files))


def _from_files(
    files: Iterable[Path],
    read_chains: Callable[[Path, SideFiles], list[ChainSource]],
    side_files: SideFiles,
) -> list[ChainSource]:
    """The chains of several files; an unreadable file is a problem, and the others are read."""
    sources = []
    for path in files:
        try:
            sources += read_chains(path, side_files)
        except InputError as error:
            side_files.problems.append(error)
    return sources


def _from_alignments(root: Path, side_files: SideFiles, named: set[str]) -> list[ChainSource]:
    if chain_folders(root):
        return from_target(root, side_files)
    layouts.refuse_one_chain(root)
    files = [path for path in _files(root, (".a3m",)) if str(path) not in named]
    from_files = layouts.from_a3m_files(files, side_files)
    return layouts.from_chain_folders(root, side_files) + from_files


def _of_file(path: Path, side_files: SideFiles) -> list[ChainSource]:
    name = plain(path.name).lower()
    if name.endswith(".index"):
        return layouts.from_db(read_index(str(path)), side_files)
    if name.endswith(FASTA):
        return layouts.from_fasta(path, side_files)
    if name.endswith(".a3m"):
        return layouts.from_a3m_files([path], side_files)
    if name.endswith(SUFFIXES):
        return layouts.from_structures([path], side_files)
    if name.endswith(JOB_FILES) and is_job(path):
        return from_job(path, side_files)
    if name.endswith((".ffindex", ".ffdata")):
        return from_ffindex(path.with_suffix(".ffindex"), side_files)
    if name.endswith(TABLES) and alignment_file(path):
        return layouts.from_a3m_files([path], side_files)
    raise InputError(not_an_input(path), path=str(path))


def _duplicate_chains(
    sources: list[ChainSource], path: str, side_files: SideFiles
) -> list[ChainSource]:
    """Chains with the alignments of another of the same sequence; a line of `path` lists those of
    one sequence."""
    by_id = {source.chain_id: source for source in sources}
    duplicates = []
    text = read_bytes(file_ref(path)).decode("utf-8", "replace")
    for group in map(str.split, text.splitlines()):
        original = next((by_id[name] for name in group if name in by_id), None)
        for name in group:
            if original is not None and name not in by_id:
                duplicates.append(side_files.copy_of(original, name))
    return duplicates


def unique_chains(
    sources: Iterable[ChainSource], problems: list[InputError], input_path: str
) -> list[ChainSource]:
    """The first source of each chain id; each further one is a problem of its file or the input."""
    by_id: dict[str, ChainSource] = {}
    for source in sources:
        chain_id = source.chain_id
        if chain_id in by_id:
            files = (source.assembly, source.fasta, source.alignment_dir, source.structure)
            path = next(filter(None, files), input_path)
            problems.append(InputError("there twice: give each a name", path=path, item=chain_id))
        else:
            by_id[chain_id] = source
    return list(by_id.values())


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    paths = [Path(entry.path) for entry in os.scandir(folder) if entry_kind(entry) == "file"]
    return [path for path in sorted(paths) if plain(path.name).lower().endswith(suffixes)]


def fasta_files(root: Path) -> list[Path]:
    """The FASTA files of a folder, or of its `fasta/`."""
    subfolders = folders(None, root, FASTA_DIRS)
    return _files(root, FASTA) or [f for folder in subfolders for f in _files(folder, FASTA)]


def _structures(root: Path) -> list[Path]:
    """Structures of a folder, else of its `mmcif/` or similar, else of all subfolders."""
    if files := structure_files(root):
        return files
    subfolders = folders(None, root, STRUCTURE_DIRS)
    files = [path for folder in subfolders for path in structure_files(folder)]
    return files or structure_files(root, deep=True)


def _path(uri: Path_) -> str:
    return os.fspath(uri).removeprefix("file://")
