"""Which chains an input holds, whatever layout it has.

alignments/<chain>/*            OpenFold's flattened folders, structures beside them
<chain>/{a3m,hhr,cif,pdb}/*     OpenProteinSet as downloaded, nothing flattened
<chain>/msas/*                  AlphaFold's output
*.index + *.db                  alignment_db: the sharded super-index or the old one
*.a3m                           ColabFold results, models beside them
*.json, *.yaml                  jobs of AlphaFold 3, Protenix and Boltz
*_a3m.ffindex, *_a3m.ffdata     databases of hh-suite
proteins.fasta                  sequences, alignments by name beside them
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
from evofeed.featurize.inputs import layouts, side_files
from evofeed.featurize.inputs.accounting import (
    explicit_files,
    join,
    names_a_chain,
    no_input,
    nothing_here,
    refuse_unfit,
    structures_of_no_chain,
    unused_files,
)
from evofeed.featurize.inputs.roads.alignments import (
    chain_folders,
    from_ffindex,
    from_target,
    index_files,
)
from evofeed.featurize.inputs.roads.complexes import SUFFIXES as JOB_FILES
from evofeed.featurize.inputs.roads.complexes import from_job, is_job
from evofeed.featurize.inputs.roads.tables import SUFFIXES as TABLES
from evofeed.featurize.inputs.roads.tables import alignment_file
from evofeed.featurize.inputs.side_files import SideFiles, first_dir, first_file, folders
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
        structure_dir: structures, if they are not in `mmcif/`, `data/`, … beside.
        template_mmcif_dir: structures of template hits; else `structure_dir`.
        problems: where bad chain ids and the like go, instead of raising the first; also what
            is no protein (`NoProtein`) and files that nothing uses (`UnusedInput`).

    Raises:
        InputError: no such input, nothing in it that looks like chains, or a chain
            id that is none.
    """
    if is_remote(os.fspath(uri)):
        raise InputError(
            "in a bucket: `evofeed featurize` copies it first; in Python, "
            "evofeed.featurize.stage_input(uri, folder) gives a path for discover",
            path=os.fspath(uri),
        )
    root = Path(_path(uri))
    if root.name in ("", ".."):  # `.` tells neither its own name nor the folder above
        root = root.resolve()
    if not root.exists():
        raise InputError("no such file or folder", path=str(root))
    if not root.is_file() and not root.is_dir():
        raise InputError("neither a file nor a folder: copy it into a file first", path=str(root))
    faults: list[InputError] = []
    home = home_of(root)
    alignments = first_dir(root if root.is_dir() else root.parent, _ALIGNMENT_DIRS)
    places = {"structure_dir": structure_dir, "template_mmcif_dir": template_mmcif_dir}
    given = {name: None if place is None else _path(place) for name, place in places.items()}
    beside = SideFiles.find(home, given, faults, is_distillation=is_distillation)
    with paused_gc():
        sources = _sources(root, alignments, beside)
    if twins := first_file(home, ("duplicate_pdb_chains.txt",)):
        sources += _duplicates(sources, twins, beside)
    sources = once(sources, faults, str(root))
    if problems is not None:
        problems += faults
        if root.is_dir():
            used = {*beside.used, *(fault.path or "" for fault in faults)}
            problems += unused_files(root, sources, used)
    elif broken := [fault for fault in faults if not isinstance(fault, NoProtein) or not sources]:
        raise broken[0]
    if not sources and not faults:
        why = nothing_here(root) if root.is_dir() else "no chain in it: is it empty?"
        raise InputError(why, path=str(root))
    if sources:
        refuse_unfit(sources, given)
    return sorted(sources, key=lambda source: source.chain_id)


def nothing_usable(problems: Sequence[InputError], uri: str) -> InputError:
    """The error for an input of which `discover` found only `problems`."""
    if not problems:
        return InputError("no chain in it", path=uri)
    first, more = problems[0], len(problems) - 1
    others = f" ({more} more like this; `evofeed check` lists them)" if more else ""
    why = f"no chain in it can be used: {first.message}{others}"
    return type(first)(why, path=first.path or uri, line=first.line, item=first.item)


def home_of(root: Path) -> Path:
    """The folder that holds an input and what is beside it."""
    home = root if root.is_dir() else root.parent
    inside = first_dir(home, _ALIGNMENT_DIRS)
    if inside is None and first_dir(home.parent, ("alignments",)) == home:
        return home.parent
    return home


def _sources(root: Path, alignments: Path | None, beside: SideFiles) -> list[ChainSource]:
    if root.is_file():
        return _of_file(root, beside)
    indices = (i for name in _DB_DIRS for i in sorted((root / name).glob("*.index")))
    index = next((i for i in indices if not i.with_suffix(".dbtype").exists()), None)  # mmseqs'
    if index is not None:
        return layouts.from_db(read_index(str(index)), beside)
    return _of_folder(root, alignments, beside)


def _of_folder(root: Path, alignments: Path | None, beside: SideFiles) -> list[ChainSource]:
    """The chains of all roads that a folder shows, those of one name joined."""
    jobs = _each(filter(is_job, _files(root, JOB_FILES)), from_job, beside)
    jobs = jobs or _each(sorted(root.glob("*/*_data.json*")), from_job, beside)
    fasta = {p: _each([p], layouts.from_fasta, beside) for p in _files(root, FASTA)}
    named = explicit_files([*jobs, *itertools.chain(*fasta.values())])
    # What is in `alignments/` is a chain even if it is empty; `pdb/` may hold structures.
    every = alignments is not None and alignments.name == "alignments"
    sources = layouts.from_chain_folders(alignments, beside, every=every) if alignments else []
    sources = join(sources, jobs)
    sources = join(sources, _chains_here(root, beside, named))
    sources = join(sources, _each(index_files(root), from_ffindex, beside))
    tables = [p for p in _files(root, TABLES) if str(p) not in named and alignment_file(p)]
    sources = join(sources, layouts.from_a3m_files(tables, beside))
    for path, records in fasta.items():
        if not names_a_chain(path, records, sources):
            sources = join(sources, records)
            beside.used.update([str(path)] if records else ())
    sources = sources or _each(fasta_files(root), layouts.from_fasta, beside)
    loose = structures_of_no_chain(root, sources)
    if loose or not sources:
        sources = join(
            sources, layouts.from_structures(loose if sources else _structures(root), beside)
        )
    return sources


def _each(
    files: Iterable[Path], road: Callable[[Path, SideFiles], list[ChainSource]], beside: SideFiles
) -> list[ChainSource]:
    """The chains of several files; one that cannot be read hides no other."""
    sources = []
    for path in files:
        try:
            sources += road(path, beside)
        except InputError as error:
            beside.faults.append(error)
    return sources


def _chains_here(root: Path, beside: SideFiles, named: set[str]) -> list[ChainSource]:
    if chain_folders(root):
        return from_target(root, beside)
    layouts.refuse_one_chain(root)
    files = [path for path in _files(root, (".a3m",)) if str(path) not in named]
    a3m = layouts.from_a3m_files(files, beside)
    return layouts.from_chain_folders(root, beside) + a3m


def _of_file(path: Path, beside: SideFiles) -> list[ChainSource]:
    name = plain(path.name).lower()
    if name.endswith(".index"):
        return layouts.from_db(read_index(str(path)), beside)
    if name.endswith(FASTA):
        return layouts.from_fasta(path, beside)
    if name.endswith(".a3m"):
        return layouts.from_a3m_files([path], beside)
    if name.endswith(SUFFIXES):
        return layouts.from_structures([path], beside)
    if name.endswith(JOB_FILES) and is_job(path):
        return from_job(path, beside)
    if name.endswith((".ffindex", ".ffdata")):
        return from_ffindex(path.with_suffix(".ffindex"), beside)
    if name.endswith(TABLES) and alignment_file(path):
        return layouts.from_a3m_files([path], beside)
    raise InputError(no_input(path), path=str(path))


def _duplicates(sources: list[ChainSource], path: str, beside: SideFiles) -> list[ChainSource]:
    """Chains of one sequence, a line each group, by the one of them that has alignments."""
    known = {source.chain_id: source for source in sources}
    copies = []
    text = read_bytes(file_ref(path)).decode("utf-8", "replace")
    for group in map(str.split, text.splitlines()):
        original = next((known[name] for name in group if name in known), None)
        for name in group:
            if original is not None and name not in known:
                copies.append(beside.copy_of(original, name))
    return copies


def once(sources: Iterable[ChainSource], faults: list[InputError], place: str) -> list[ChainSource]:
    """The first of each chain id; a fault, in `place` at least, for each further one."""
    seen: dict[str, ChainSource] = {}
    for source in sources:
        if source.chain_id in seen:
            where = (
                source.assembly or source.fasta or source.alignment_dir or source.structure or place
            )
            faults.append(
                InputError("there twice: give each a name", path=where, item=source.chain_id)
            )
        else:
            seen[source.chain_id] = source
    return list(seen.values())


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    found = [Path(entry.path) for entry in os.scandir(folder) if entry_kind(entry) == "file"]
    return [path for path in sorted(found) if plain(path.name).lower().endswith(suffixes)]


def fasta_files(root: Path) -> list[Path]:
    """The FASTA files of a folder, or of its `fasta/`."""
    inside = [
        f for folder in folders(None, root, side_files.FASTA_DIRS) for f in _files(folder, FASTA)
    ]
    return _files(root, FASTA) or inside


def _structures(root: Path) -> list[Path]:
    """Structures of a folder, else of its usual folders, else of all below."""
    usual = folders(None, root, side_files.STRUCTURE_DIRS)
    here = structure_files(root) or [f for place in usual for f in structure_files(place)]
    return here or structure_files(root, deep=True)


def _path(uri: Path_) -> str:
    return os.fspath(uri).removeprefix("file://")
