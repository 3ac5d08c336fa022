"""Accounting of an input's files: each is used, unused for a stated reason, or broken."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import InputError, UnusedInput
from evofeed.featurize.formats.fasta import SUFFIXES as FASTA
from evofeed.featurize.formats.reading import entry_kind, plain
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.structures.structure_files import SUFFIXES, entry_of, structure_files

_PROTEIN: Final = (".a3m", ".sto", ".hhr", *SUFFIXES, *FASTA, ".aligned.pqt", ".ffindex")
"""Suffixes of files that look like a protein's."""
_SEPARATORS: Final = "_-."
"""Characters between the name of a job and the rest of its files' names."""
_MAX_FILES: Final = 20_000
_MAX_DEPTH: Final = 4
_MAX_LISTED: Final = 5
_ADVICE: Final = {
    ".pkl": "features.pkl: give the alignments they were made of, as AlphaFold has them in msas/",
    ".npz": "arrays: give the alignments and structures they were made of",
    ".tar": "unpack the .tar first",
    ".tgz": "unpack the .tgz first",
    ".zip": "unpack the .zip first",
    ".mmtf": "MMTF: download the entries as mmCIF",
    ".arrow": "shards: this is a dataset already",
    ".dbtype": "an mmseqs database: it is searched with --search-db, or `mmseqs result2msa` it",
    ".hmm": "profiles: give the alignments they were made of",
    ".txt": "text: rename a FASTA file to .fasta",
    ".m8": "hits without alignments: give the .a3m of that search",
}
_READABLE: Final = (".a3m", ".sto", ".hhr", *SUFFIXES, *FASTA, ".pqt", ".ffindex")
_EXPECTED: Final = (
    "expected alignments/<chain>/ folders, an alignment_db with its .index, or .a3m, .fasta or "
    "structure files (INPUTS.md lists all layouts)"
)


def merge_sources(first: list[ChainSource], second: Iterable[ChainSource]) -> list[ChainSource]:
    """Chains of two layouts; chains of one id are merged, and the first's fields are preferred.

    Those with different sequences both stay: `unique_chains` reports them.
    """
    index_of = {source.chain_id: index for index, source in enumerate(first)}
    merged = list(first)
    for source in second:
        index = index_of.get(source.chain_id, -1)
        base = merged[index] if index >= 0 else None
        if base is None or len({base.sequence, source.sequence} - {""}) > 1:
            merged.append(source)
            continue
        changes: dict[str, Any] = {"fasta": base.fasta or source.fasta}
        if not base.alignments and base.alignment_dir is None:
            changes |= {"alignments": source.alignments, "alignment_dir": source.alignment_dir}
        if source.sequence and not base.structure and not base.sequence:
            changes |= {"sequence": source.sequence, "description": source.description}
        if source.structure and not base.structure:
            changes |= {
                "structure": source.structure,
                "structure_chain": source.structure_chain,
                "is_distillation": base.is_distillation or source.is_distillation,
            }
        merged[index] = dataclasses.replace(base, **changes)
    return merged


def explicit_files(sources: Iterable[ChainSource]) -> set[str]:
    """Alignment files that a job or a FASTA header names, which are not chains by themselves."""
    return {
        ref.path
        for source in sources
        for ref in source.alignments
        if plain(Path(ref.path).name).partition(".")[0] != source.chain_id
    }


def names_a_chain(
    path: Path, records: Sequence[ChainSource], sources: Iterable[ChainSource]
) -> bool:
    """True if a FASTA file has the name of a chain in `sources`, and its records do not.

    `x.fasta` next to `x.a3m` is the query of that search, whatever its header.
    """
    names = {name for source in sources for name in (source.chain_id, source.entry_id)}
    return _stem(path.name) in names and not any(record.chain_id in names for record in records)


def unused_structures(root: Path, sources: Sequence[ChainSource]) -> list[Path]:
    """Structure files of the folder itself that no chain uses, without models of its chains."""
    used = {source.structure for source in sources}
    return [
        path
        for path in structure_files(root, divided=False)
        if str(path) not in used and not _model_of(path.name, sources)
    ]


def unused_files(
    root: Path, sources: Sequence[ChainSource], used: Iterable[str]
) -> list[InputError]:
    """An error with the reason for each file of the folder that looks like a protein's and that no
    chain uses.

    Folders next to it (`mmcif/`, `templates/`) are libraries, of which not all files are used.
    """
    used = {*used, *(path for source in sources for path in _files_of(source))}
    unused: list[InputError] = []
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        name = plain(entry.name).lower()
        if entry.path in used or entry.name.startswith(".") or not name.endswith(_PROTEIN):
            continue
        if (kind := entry_kind(entry)) == "dir":
            continue
        if kind != "file":
            unused.append(InputError("not a regular file: fix or remove it", path=entry.path))
            continue
        unused.append(UnusedInput(_why_unused(Path(entry.path), sources), path=entry.path))
    return unused


def _why_unused(path: Path, sources: Sequence[ChainSource]) -> str:
    name = path.name
    if owner := _model_of(name, sources):
        suffix = Path(plain(name)).suffix
        hint = f"; to use it, call it {owner}{suffix}" if suffix.lower() in SUFFIXES else ""
        return f"unused: another file of {owner}, whose chain has its structure or sequence{hint}"
    stem = _stem(name)
    if any(entry_of(plain(Path(s.structure or "").name)) == stem for s in sources):
        return "unused: its entry is read from another format"
    return "unused: no chain has its name; give it alone, or name it <chain>.<kind>"


def _model_of(name: str, sources: Sequence[ChainSource]) -> str:
    """The chain, entry or job with whose name a file name begins; empty if there is none."""
    stem = _stem(name)
    names: dict[str, str] = {}
    for source in sources:
        names |= {_stem(ref.path): source.chain_id for ref in source.alignments}
        names |= {source.chain_id: source.chain_id, source.entry_id: source.entry_id}
        if source.assembly:
            names[_stem(source.assembly).removesuffix("_data")] = source.entry_id
    ends = [i for i, letter in enumerate(stem) if letter in _SEPARATORS] + [len(stem)]
    return next((names[stem[:end]] for end in reversed(ends) if stem[:end] in names), "")


def _stem(path: str) -> str:
    name = plain(Path(path).name)
    return entry_of(name) if "." in name else name


def _files_of(source: ChainSource) -> list[str]:
    paths = [source.structure, source.fasta, source.assembly, source.alignment_dir]
    return [path for path in (*(ref.path for ref in source.alignments), *paths) if path]


def check_folders(sources: Sequence[ChainSource], folders: Mapping[str, str | None]) -> None:
    """Checks that folders a user named, by their arguments of `discover`, have files of the chains.

    Raises:
        InputError: the first that has none; lists its files and those expected.
    """
    chain_id, entry = sources[0].chain_id, sources[0].entry_id
    structures = folders["structure_dir"]
    used = [Path(source.structure) for source in sources if source.structure is not None]
    if structures and not any(Path(structures) in path.parents for path in used):
        raise _no_match(structures, "structure", f"{entry}.cif or {entry}.pdb for chain {chain_id}")
    templates = folders["template_mmcif_dir"]
    names = (plain(path.name).lower() for path in _files_below(Path(templates or ".")))
    if templates and not any(name.endswith(SUFFIXES) for name in names):
        raise _no_match(templates, "template structure", "<pdb id>.cif files")


def _no_match(folder: str, kind: str, expected: str) -> InputError:
    files = itertools.islice(_files_below(Path(folder)), 4)
    names = [str(path.relative_to(folder)) for path in files]
    listed = ", ".join([*names[:3], "…"] if len(names) > 3 else names) or "no file"
    message = f"no {kind} here is of a chain of the input: expected {expected}, found {listed}"
    return InputError(message, path=folder)


def not_an_input(path: Path) -> str:
    """Reason why a file, or a folder by the suffixes of its files, has no chains, with advice."""
    if path.is_file():
        advice = _ADVICE.get(Path(plain(path.name)).suffix.lower(), "")
        return "; ".join(filter(None, [f"no file of chains: {_EXPECTED}", advice]))
    counts: Counter[str] = Counter()
    folders: dict[str, str] = {}
    for file in itertools.islice(_files_below(path, _MAX_DEPTH), _MAX_FILES):
        suffix = Path(plain(file.name)).suffix.lower() or file.name
        counts[suffix] += 1
        folders.setdefault(suffix, str(file.parent))
    if not counts:
        return f"nothing here looks like chains, it has no file: {_EXPECTED}"
    texts = [f"{count} {suffix}" for suffix, count in counts.most_common(_MAX_LISTED)]
    more = f" and {len(counts) - _MAX_LISTED} other kinds" if len(counts) > _MAX_LISTED else ""
    advices = [text for suffix, text in _ADVICE.items() if suffix in counts]
    readable = (folders[suffix] for suffix in _READABLE if suffix in folders)
    if below := next((folder for folder in readable if folder != str(path)), ""):
        advices.insert(0, f"files that could be read are further down: give {below} or its parent")
    advice = "; ".join([*advices, _EXPECTED])
    return f"nothing here looks like chains, it has {', '.join(texts)}{more}: {advice}"


def _files_below(root: Path, max_depth: int | None = None) -> Iterator[Path]:
    """Files of a folder and its subfolders, down to a depth."""
    for folder, subfolders, names in os.walk(root):
        if max_depth is not None and len(Path(folder).parts) - len(root.parts) >= max_depth:
            subfolders.clear()
        subfolders.sort()
        yield from (Path(folder) / name for name in sorted(names))
