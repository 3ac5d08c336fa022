"""Complexes end to end: the chains of an entry, their copies, coordinates and rows to pair."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from evofeed.assembly_record import AssemblyRecord
from evofeed.errors import InputError
from evofeed.features import ChainRecord
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.pairing import pairing_record, pairing_ref
from evofeed.featurize.reading import plain, read_bytes
from evofeed.featurize.roads.colabfold import assembly_in, chain_letter
from evofeed.featurize.sources import ChainSource
from evofeed.featurize.structure import Structure
from evofeed.featurize.structure_files import parse_structure
from evofeed.interfaces import interface_residues

__all__ = ["AssemblySource", "assembly_sources", "featurize_assembly"]

MAX_CHAINS: Final = 512
"""More chains than this are no complex to train on: a capsid is left out, with this reason."""
MAX_RESIDUES: Final = 50_000
"""Residues of all chains, likewise."""

_NUCLEIC: Final = re.compile(rb"poly(?:deoxy)?ribonucleotide")
_DEFAULT: Final = FeaturizeConfig()


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


def assembly_sources(sources: Iterable[ChainSource], fasta: str = "") -> list[AssemblySource]:
    """The complexes that chains come from, by name.

    Chains of one mmCIF or PDB file are one, and those of one ColabFold a3m of a complex. Chains
    that are alone are none.

    Args:
        sources: as `discover` found them.
        fasta: the FASTA file they all come from, which is then one complex.
    """
    groups: dict[tuple[str, str], list[ChainSource]] = {}
    for source in sources:
        if (key := _home(source, fasta)) is not None:
            groups.setdefault(key, []).append(source)
    found = []
    for (name, path), chains in sorted(groups.items()):
        first = assembly_in(Path(path)) if chains[0].structure != path and not fasta else None
        found.append(AssemblySource(name, tuple(chains), first.copies if first else ()))
    return found


def _home(source: ChainSource, fasta: str) -> tuple[str, str] | None:
    """Name and file of the complex that a chain is of."""
    if fasta:
        return plain(Path(fasta).name).rpartition(".")[0], fasta
    for ref in source.alignments:
        if ref.part.startswith("complex "):
            return ref.plain_name.removesuffix(".a3m"), str(ref.path)
    if source.structure is not None and source.structure_span is None:
        return source.entry_id, source.structure
    return None


def featurize_assembly(
    source: AssemblySource,
    record_of: Callable[[str], ChainRecord],
    config: FeaturizeConfig = _DEFAULT,
) -> AssemblyRecord:
    """The record of a complex.

    Args:
        source: its chains.
        record_of: the chain record of an id, such as `dataset.__getitem__`.
        config: as the chains were made with.

    Raises:
        InputError: a chain of the structure has no alignment here, an alignment to pair is
            missing or broken, it has too many chains, or there is only one of them.
        KeyError: a chain is not among the records.
    """
    try:
        return _assembly(source, record_of, config).validate()
    except InputError as error:
        error.item = error.item or source.assembly_id
        raise


def _assembly(
    source: AssemblySource, record_of: Callable[[str], ChainRecord], config: FeaturizeConfig
) -> AssemblyRecord:
    dropped: list[str] = []
    structure = None if source.copies else _structure(source, config, dropped)
    named = _named_chains(source, record_of) if structure is None else None
    members = _chains_of(structure, source) if structure else named or []
    if len(members) < 2:
        raise InputError("one chain: it is a sample of its own, and no complex")
    if len(members) > MAX_CHAINS:
        raise InputError(f"{len(members)} chains, more than {MAX_CHAINS}: left out")
    entities: dict[str, list[str]] = {}
    sources: dict[str, ChainSource] = {}
    records: dict[str, ChainRecord] = {}
    for name, chain, sequence in members:
        if sequence not in records:
            records[sequence], sources[sequence] = record_of(chain.chain_id), chain
            if records[sequence].sequence != sequence:
                raise InputError(
                    f"chain {name} has another sequence than the record {chain.chain_id}: "
                    "featurize it again"
                )
        entities.setdefault(sequence, []).append(name)
    total = sum(len(sequence) * len(names) for sequence, names in entities.items())
    if total > MAX_RESIDUES:
        raise InputError(f"{total} residues, more than {MAX_RESIDUES}: left out")
    pairing = [
        _pairing(records[sequence], sources[sequence], config) if len(entities) > 1 else None
        for sequence in entities
    ]
    copies = tuple(tuple(names) for names in entities.values())
    chains = tuple(records[sequence] for sequence in entities)
    positions, mask = _coordinates(structure, copies, dropped) if structure else (None, None)
    record = AssemblyRecord(
        assembly_id=source.assembly_id,
        chains=chains,
        pairing=tuple(pairing),
        copies=copies,
        all_atom_positions=positions,
        all_atom_mask=mask,
        resolution=structure.resolution if structure else 0.0,
        release_date=structure.release_date if structure else "",
        method=structure.method if structure else "",
        is_distillation=source.chains[0].is_distillation,
        dropped=tuple(dropped),
    )
    if positions is None or mask is None:
        return record
    near = interface_residues(positions, mask, record.asym_id())
    return dataclasses.replace(record, num_interface=len(near))


def _structure(
    source: AssemblySource, config: FeaturizeConfig, dropped: list[str]
) -> Structure | None:
    ref = source.chains[0].structure_ref()
    if ref is None:
        return None
    data = read_bytes(ref, config.caps)
    if _NUCLEIC.search(data):
        dropped.append("nucleic acids in the entry: only its protein chains are taken")
    return parse_structure(
        data,
        ref.plain_name,
        path=ref.path,
        config=config,
        is_distillation=source.chains[0].is_distillation,
    )


def _chains_of(structure: Structure, source: AssemblySource) -> list[tuple[str, ChainSource, str]]:
    """Name, files and sequence of every protein chain of a structure, in the file's order.

    A chain without files takes those of a chain with the same sequence.
    """
    by_name = {chain.author_chain: chain for chain in source.chains}
    by_sequence: dict[str, ChainSource] = {}
    for name, chain in by_name.items():
        if name in structure.sequences:
            by_sequence.setdefault(structure.sequences[name], chain)
    found, missing = [], []
    for name, sequence in structure.sequences.items():
        own = by_sequence.get(sequence)
        if own is None:
            missing.append(name)
        else:
            found.append((name, own, sequence))
    if missing:
        raise InputError(
            f"no alignment of chain {', '.join(missing)}, nor of one with its sequence: "
            "a complex without some of its chains is left out",
            path=source.chains[0].structure,
        )
    return found


def _named_chains(
    source: AssemblySource, record_of: Callable[[str], ChainRecord]
) -> list[tuple[str, ChainSource, str]]:
    """The chains of an input without structure; copies are named by letters."""
    found: list[tuple[str, ChainSource, str]] = []
    for number, chain in enumerate(source.chains):
        copies = source.copies[number] if source.copies else 1
        for _ in range(copies):
            name = chain_letter(len(found)) if source.copies else chain.chain_id
            found.append((name, chain, record_of(chain.chain_id).sequence))
    return found


def _pairing(record: ChainRecord, source: ChainSource, config: FeaturizeConfig) -> ChainRecord:
    ref = pairing_ref(source, config)
    if ref is None:  # nothing to pair by: the query alone
        return ChainRecord.of_query(
            record.chain_id, record.sequence, record.aatype, record.residue_index,
            dropped=("no alignment to pair (uniprot_hits.sto): only the query is paired",),
        )  # fmt: skip
    return pairing_record(record, ref, config)


def _coordinates(
    structure: Structure, copies: Sequence[Sequence[str]], dropped: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and masks of all copies, each its own."""
    chains = [structure.chain(name) for names in copies for name in names]
    for chain in chains:
        dropped += [f"chain {chain.chain_id}: {note}" for note in chain.notes]
        if not chain.mask.any():
            dropped.append(f"chain {chain.chain_id}: no atom is known")
    positions = np.concatenate([chain.positions for chain in chains]).astype(np.float32)
    return positions, np.concatenate([chain.mask for chain in chains])
