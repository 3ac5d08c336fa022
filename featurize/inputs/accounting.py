"""Every file and place of an input is used, unused for a reason, or broken."""

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
"""Files that look like a protein's."""
_JOINTS: Final = "_-."
"""What stands between the name of a job and what its files are."""
_MOST_FILES: Final = 20_000
_DEEPEST: Final = 4
_SHOWN: Final = 5
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
_READ: Final = (".a3m", ".sto", ".hhr", *SUFFIXES, *FASTA, ".pqt", ".ffindex")
_EXPECTED: Final = (
    "expected alignments/<chain>/ folders, an alignment_db with its .index, or .a3m, .fasta or "
    "structure files (INPUTS.md lists all layouts)"
)


def join(sources: list[ChainSource], more: Iterable[ChainSource]) -> list[ChainSource]:
    """Chains of two roads; of one name they are one chain, with what the second has besides."""
    by_name = {source.chain_id: number for number, source in enumerate(sources)}
    joined = list(sources)
    for source in more:
        number = by_name.get(source.chain_id)
        if number is None or _says_other(joined[number], source):
            joined.append(source)
            continue
        first = joined[number]
        extra: dict[str, Any] = {}
        if not first.alignments and first.alignment_dir is None:
            extra = {"alignments": source.alignments, "alignment_dir": source.alignment_dir}
        if source.sequence and not first.structure and not first.sequence:
            extra |= {"sequence": source.sequence, "description": source.description}
        if source.structure and not first.structure:
            extra |= {
                "structure": source.structure,
                "structure_chain": source.structure_chain,
                "is_distillation": first.is_distillation or source.is_distillation,
            }
        extra |= {"fasta": first.fasta or source.fasta}
        joined[number] = dataclasses.replace(first, **extra)
    return joined


def _says_other(one: ChainSource, other: ChainSource) -> bool:
    """Whether two chains of a name have different sequences: `there twice` then says so."""
    return bool(one.sequence and other.sequence and one.sequence != other.sequence)


def explicit_files(sources: Iterable[ChainSource]) -> set[str]:
    """Alignments that a job or a FASTA header names: no chains of their own."""
    return {
        ref.path
        for source in sources
        for ref in source.alignments
        if plain(Path(ref.path).name).partition(".")[0] != source.chain_id
    }


def names_a_chain(
    path: Path, records: Sequence[ChainSource], sources: Iterable[ChainSource]
) -> bool:
    """Whether a FASTA file is called like a chain that is there already, and its records are not.

    `x.fasta` beside `x.a3m` is what was searched with, whatever its header says.
    """
    names = {name for source in sources for name in (source.chain_id, source.entry_id)}
    return _stem(path.name) in names and not any(record.chain_id in names for record in records)


def structures_of_no_chain(root: Path, sources: Sequence[ChainSource]) -> list[Path]:
    """Structure files of the folder itself that no chain uses and that are no chain's models."""
    used = {source.structure for source in sources}
    return [
        path
        for path in structure_files(root, divided=False)
        if str(path) not in used and not _model_of(path.name, sources)
    ]


def unused_files(
    root: Path, sources: Sequence[ChainSource], used: Iterable[str]
) -> list[InputError]:
    """Files of an input's folder that look like a protein's and that no chain uses, each with why.

    Folders beside (`mmcif/`, `templates/`) are libraries: not all of them is meant to be used.
    """
    used = {*used, *(path for source in sources for path in _files_of(source))}
    found: list[InputError] = []
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        name = plain(entry.name).lower()
        if entry.path in used or entry.name.startswith(".") or not name.endswith(_PROTEIN):
            continue
        if (kind := entry_kind(entry)) == "dir":
            continue
        if kind != "file":
            found.append(InputError("not a regular file: fix or remove it", path=entry.path))
            continue
        found.append(UnusedInput(_why(Path(entry.path), sources), path=entry.path))
    return found


def _why(path: Path, sources: Sequence[ChainSource]) -> str:
    name = path.name
    if other := _model_of(name, sources):
        kind = Path(plain(name)).suffix
        use = f"; to use it, call it {other}{kind}" if kind.lower() in SUFFIXES else ""
        return f"unused: another file of {other}, whose chain has its structure or sequence{use}"
    stem = _stem(name)
    if any(entry_of(plain(Path(s.structure or "").name)) == stem for s in sources):
        return "unused: its entry is read from another format"
    return "unused: no chain has its name; give it alone, or name it <chain>.<kind>"


def _model_of(name: str, sources: Sequence[ChainSource]) -> str:
    """The chain, entry or job whose name a file's begins with; empty if there is none."""
    stem = _stem(name)
    names: dict[str, str] = {}
    for source in sources:
        names |= {_stem(ref.path): source.chain_id for ref in source.alignments}
        names |= {source.chain_id: source.chain_id, source.entry_id: source.entry_id}
        if source.assembly:
            names[_stem(source.assembly).removesuffix("_data")] = source.entry_id
    ends = [at for at, letter in enumerate(stem) if letter in _JOINTS] + [len(stem)]
    return next((names[stem[:end]] for end in reversed(ends) if stem[:end] in names), "")


def _stem(path: str) -> str:
    name = plain(Path(path).name)
    return entry_of(name) if "." in name else name


def _files_of(source: ChainSource) -> list[str]:
    refs = [ref.path for ref in source.alignments]
    own = [source.structure, source.fasta, source.assembly, source.alignment_dir]
    return [path for path in (*refs, *own) if path]


def refuse_unfit(sources: Sequence[ChainSource], given: Mapping[str, str | None]) -> None:
    """Raise for the first place that a user named and that no chain has anything from, by their
    names in `discover`.

    Raises:
        InputError: says what the place holds and what was looked for.
    """
    chain_id, entry = sources[0].chain_id, sources[0].entry_id
    structures = given["structure_dir"]
    if structures and not any(_below(structures, source.structure) for source in sources):
        _refuse(structures, "structure", f"{entry}.cif or {entry}.pdb for chain {chain_id}")
    templates = given["template_mmcif_dir"]
    names = (plain(path.name).lower() for path in _files_below(Path(templates or ".")))
    if templates and not any(name.endswith(SUFFIXES) for name in names):
        _refuse(templates, "template structure", "<pdb id>.cif files")


def _refuse(folder: str, what: str, expected: str) -> None:
    files = itertools.islice(_files_below(Path(folder)), 4)
    here = [str(path.relative_to(folder)) for path in files]
    holds = ", ".join([*here[:3], "…"] if len(here) > 3 else here) or "no file"
    raise InputError(
        f"no {what} here is a chain's of the input: expected {expected}, found {holds}", path=folder
    )


def _below(folder: str, path: str | None) -> bool:
    return path is not None and Path(folder) in Path(path).parents


def nothing_here(root: Path) -> str:
    """Why a folder is no input: what it holds by kind, and what to do about it."""
    seen: Counter[str] = Counter()
    homes: dict[str, str] = {}
    for path in itertools.islice(_files_below(root, _DEEPEST), _MOST_FILES):
        kind = Path(plain(path.name)).suffix.lower() or path.name
        seen[kind] += 1
        homes.setdefault(kind, str(path.parent))
    if not seen:
        return f"nothing here looks like chains, it has no file: {_EXPECTED}"
    kinds = [f"{count} {kind}" for kind, count in seen.most_common(_SHOWN)]
    more = f" and {len(seen) - _SHOWN} other kinds" if len(seen) > _SHOWN else ""
    advice = [text for kind, text in _ADVICE.items() if kind in seen]
    below = next((homes[kind] for kind in _READ if homes.get(kind, str(root)) != str(root)), None)
    if below is not None:
        advice.insert(0, f"files that could be read are further down: give {below} or its parent")
    return f"nothing here looks like chains, it has {', '.join(kinds)}{more}: " + "; ".join(
        [*advice, _EXPECTED]
    )


def no_input(path: Path) -> str:
    """Why a file is no input, and what to do about it."""
    kind = Path(plain(path.name)).suffix.lower()
    advice = _ADVICE.get(kind, "")
    return "; ".join(filter(None, [f"no file of chains: {_EXPECTED}", advice]))


def _files_below(root: Path, deepest: int | None = None) -> Iterator[Path]:
    """Files of a folder and those in it, down to some depth."""
    for folder, below, names in os.walk(root):
        if deepest is not None and len(Path(folder).parts) - len(root.parts) >= deepest:
            below.clear()
        below.sort()
        yield from (Path(folder) / name for name in sorted(names))
