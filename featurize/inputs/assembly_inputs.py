"""The complexes of an input's chains, with their copies, notes and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.featurize.formats.colabfold_a3m import assembly_in
from evofeed.featurize.formats.fasta import BASES
from evofeed.featurize.formats.reading import plain
from evofeed.featurize.inputs.readers.job_files import LEFT_OUT
from evofeed.featurize.inputs.sources import ChainSource


@dataclass(frozen=True, slots=True)
class AssemblySource:
    """A complex to featurize.

    Attributes:
        assembly_id: of the record: the entry, or the name of its file.
        chains: its chains that have files, in the order of their ids.
        copies: number of copies of each, by the input; empty: by the structure, else one each.
    """

    assembly_id: str
    chains: tuple[ChainSource, ...]
    copies: tuple[int, ...] = ()
    names: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    fault: str = ""


def assembly_sources(
    sources: Iterable[ChainSource], fasta: str = "", problems: Sequence[InputError] = ()
) -> list[AssemblySource]:
    """The complexes of some chains, by name.

    The chains of one mmCIF or PDB file are a complex, those of one ColabFold a3m of a complex,
    and those of one job of AlphaFold 3, Protenix or Boltz; with `fasta`, all chains, which come
    from that file. One with a broken chain, by the `problems` of `discover`, has a fault.
    """
    groups: dict[tuple[str, str], list[ChainSource]] = {}
    for source in sources:
        if (key := _complex_of(source, fasta)) is not None:
            groups.setdefault(key, []).append(source)
    counts = Counter(name for name, _ in groups)
    complexes = []
    for (name, path), chains in sorted(groups.items()):
        notes, faults = _notes_and_faults(name, path, chains, problems)
        if counts[name] > 1:
            faults.append(f"{counts[name]} complexes are called {name}: give each a name")
        fault = "; ".join(faults)
        copies, names = _copies(chains, path)
        complexes.append(AssemblySource(name, tuple(chains), copies, names, tuple(notes), fault))
    return complexes


def _complex_of(source: ChainSource, fasta: str) -> tuple[str, str] | None:
    """Name and file of a chain's complex."""
    if fasta:
        return plain(Path(fasta).name).rpartition(".")[0], fasta
    if source.assembly:
        return source.entry_id, source.assembly
    for ref in source.alignments:
        if ref.part.startswith("complex "):
            return ref.plain_name.removesuffix(".a3m"), str(ref.path)
    if source.structure is not None:
        return source.entry_id, source.structure
    return None


def _copies(
    chains: Sequence[ChainSource], path: str
) -> tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]:
    """Number of copies of each chain, and their ids; empty where the input does not give them."""
    if chains[0].assembly:
        names = tuple(chain.copies for chain in chains)
        return tuple(map(len, names)), names
    if any(ref.part.startswith("complex ") for ref in chains[0].alignments):
        assembly = assembly_in(Path(path))
        return (assembly.copies if assembly else ()), ()
    return (), ()


def _notes_and_faults(
    name: str, path: str, chains: Sequence[ChainSource], problems: Sequence[InputError]
) -> tuple[list[str], list[str]]:
    """Notes on molecules left out of a complex, and its faults."""
    left_out = [note for chain in chains for note in chain.notes if note.startswith(LEFT_OUT)]
    notes, faults = list(dict.fromkeys(left_out)), []
    for problem in problems:
        item = problem.item or ""
        if problem.path != path or (
            chains[0].assembly and name not in (item, item.rpartition("_")[0])
        ):
            continue
        if problem.message.startswith(BASES):
            notes.append(f"{LEFT_OUT}: {item} ({problem.message})")
        else:
            faults.append(f"{item or 'one of its chains'} is broken: {problem.message}")
    return notes, faults
