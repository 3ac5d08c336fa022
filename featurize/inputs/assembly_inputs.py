"""Which complexes the chains of an input make, and what is amiss with each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evofeed.base.errors import InputError
from evofeed.featurize.formats.colabfold_a3m import assembly_in
from evofeed.featurize.formats.fasta import BASES
from evofeed.featurize.formats.reading import plain
from evofeed.featurize.inputs.roads.complexes import LEFT_OUT
from evofeed.featurize.inputs.sources import ChainSource


@dataclass(frozen=True, slots=True)
class AssemblySource:
    """A complex to featurize.

    Attributes:
        assembly_id: of the record: the entry, or the name of its file.
        chains: those of its chains that have files, in the order of their ids.
        copies: how often each is there, where the input says so; empty: the structure says, or
            each is there once.
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
    """The complexes that chains come from, by name.

    Chains of one mmCIF or PDB file are one, those of one ColabFold a3m of a complex, and those
    of one job of AlphaFold 3, Protenix or Boltz. Chains that are alone are none,
    nor is a complex with a broken chain, by the `problems` that `discover` found. A FASTA file
    that they all come from is one complex.
    """
    groups: dict[tuple[str, str], list[ChainSource]] = {}
    for source in sources:
        if (key := _home(source, fasta)) is not None:
            groups.setdefault(key, []).append(source)
    names = Counter(name for name, _ in groups)
    found = []
    for (name, path), chains in sorted(groups.items()):
        notes, faults = _amiss(name, path, chains, problems)
        if names[name] > 1:
            faults.append(f"{names[name]} complexes are called {name}: give each a name")
        about: dict[str, Any] = {"notes": tuple(notes), "fault": "; ".join(faults)}
        found.append(AssemblySource(name, tuple(chains), *_copies(chains, path), **about))
    return found


def _home(source: ChainSource, fasta: str) -> tuple[str, str] | None:
    """Name and file of the complex that a chain is of."""
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
    """How often each chain is there, and the ids of its copies, where the input says so."""
    if chains[0].assembly:
        names = tuple(chain.copies for chain in chains)
        return tuple(map(len, names)), names
    if any(ref.part.startswith("complex ") for ref in chains[0].alignments):
        found = assembly_in(Path(path))
        return (found.copies if found else ()), ()
    return (), ()


def _amiss(
    name: str, path: str, chains: Sequence[ChainSource], problems: Sequence[InputError]
) -> tuple[list[str], list[str]]:
    """What is left out of a complex, and what is wrong with it."""
    own = [note for chain in chains for note in chain.notes if note.startswith(LEFT_OUT)]
    notes, faults = list(dict.fromkeys(own)), []
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
