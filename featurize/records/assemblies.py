"""Complexes: the chains of an entry, their copies, coordinates and MSA rows to pair."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from evofeed.base.errors import InputError, LoneChain, MsaError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.colabfold_a3m import chain_letter
from evofeed.featurize.formats.msa import Msa, merge
from evofeed.featurize.formats.reading import FileRef, read_bytes
from evofeed.featurize.formats.species import pairing_species, species_of
from evofeed.featurize.inputs.assembly_inputs import AssemblySource
from evofeed.featurize.inputs.readers.parts import parse_msa, read_part
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.structures.other_molecules import describe_molecules
from evofeed.featurize.structures.structure import Structure
from evofeed.featurize.structures.structure_files import parse_structure
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.interfaces import interface_residues

MAX_CHAINS: Final = 512
"""A complex with more chains, such as a capsid, is left out with this reason."""
MAX_RESIDUES: Final = 50_000
"""Limit of the residues of all chains together."""

_PAIRING: Final = "uniprot_hits.sto uniprot_hits.a3m uniprot.sto uniprot.a3m pairing.a3m".split()
"""File names of an alignment to pair, preferred first: OpenFold, AlphaFold, Protenix."""
_MIN_FRAGMENT: Final = 0.8
_DEFAULT: Final = FeaturizeConfig()


class _Member(NamedTuple):
    """A chain of a complex: its id, sources of its sequence by preference, and the sequence."""

    name: str
    sources: tuple[ChainSource, ...]
    sequence: str = ""


def featurize_assembly(
    source: AssemblySource,
    record_of: Callable[[str], ChainRecord],
    config: FeaturizeConfig = _DEFAULT,
) -> AssemblyRecord:
    """The record of a complex; `record_of` returns a chain's record by id or raises KeyError.

    Raises:
        InputError: a chain has no record or, in a structure, no alignment; an alignment to pair
            is missing or broken; or there are too many chains.
        LoneChain: there is only one chain.
    """
    try:
        return _assembly(source, record_of, config).validate()
    except InputError as error:
        error.item = error.item or source.assembly_id
        raise


def _assembly(
    source: AssemblySource, record_of: Callable[[str], ChainRecord], config: FeaturizeConfig
) -> AssemblyRecord:
    if source.fault:
        raise InputError(source.fault)
    dropped = list(source.notes)
    structure = _structure(source, config, dropped)
    _check_number(sum(source.copies) if structure is None else len(structure.sequences))
    members = _named_chains(source) if structure is None else _chains_of(structure, source)
    _check_number(len(members))
    if len(members) < 2:
        raise LoneChain("one chain: it is a sample of its own, and no complex")
    repeated = [name for name, times in Counter(m.name for m in members).items() if times > 1]
    if repeated:
        raise InputError(f"several chains are called {', '.join(repeated)}: give each an id")
    names, sources, records = _entities(members, record_of, dropped)
    if structure:
        dropped += _fragments_of_others(names)
    total = sum(len(sequence) * len(ids) for sequence, ids in names.items())
    if total > MAX_RESIDUES:
        raise InputError(f"{total} residues, more than {MAX_RESIDUES}: left out")
    pairing = [
        pairing_record(records[sequence], pairing_ref(sources[sequence], config), config)
        if len(names) > 1
        else None
        for sequence in names
    ]
    copies = tuple(map(tuple, names.values()))
    positions, mask = _coordinates(structure, copies, dropped) if structure else (None, None)
    record = AssemblyRecord(
        assembly_id=source.assembly_id,
        chains=tuple(records.values()),
        pairing=tuple(pairing),
        copies=copies,
        all_atom_positions=positions,
        all_atom_mask=mask,
        resolution=structure.resolution if structure else 0.0,
        release_date=structure.release_date if structure else "",
        method=structure.method if structure else "",
        is_distillation=source.chains[0].is_distillation,
        dropped=tuple(dict.fromkeys(dropped)),
    )
    if positions is None or mask is None:
        return record
    interface = interface_residues(positions, mask, record.asym_id())
    return dataclasses.replace(record, num_interface=len(interface))


def _check_number(chains: int) -> None:
    if chains > MAX_CHAINS:
        raise InputError(f"{chains} chains, more than {MAX_CHAINS}: left out")


def _entities(
    members: Sequence[_Member], record_of: Callable[[str], ChainRecord], dropped: list[str]
) -> tuple[dict[str, list[str]], dict[str, ChainSource], dict[str, ChainRecord]]:
    """Chain ids, source and record of each distinct sequence, in the order of appearance."""
    names: dict[str, list[str]] = {}
    sources: dict[str, ChainSource] = {}
    records: dict[str, ChainRecord] = {}
    for member in members:
        sequence = member.sequence
        if sequence not in records:
            chain, record = _record(member, record_of, dropped)
            sequence = record.sequence
            if sequence not in records:
                sources[sequence], records[sequence] = chain, record
        names.setdefault(sequence, []).append(member.name)
    return names, sources, records


def _fragments_of_others(names: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes on sequences that are another's without some residues: maybe copies of which the file
    lists only resolved residues."""
    notes = []
    for fragment, sequence in itertools.permutations(names, 2):
        if _MIN_FRAGMENT * len(sequence) <= len(fragment) < len(sequence):
            letters = iter(sequence)
            if all(letter in letters for letter in fragment):
                notes.append(
                    f"chain {', '.join(names[fragment])} has {len(fragment)} of the "
                    f"{len(sequence)} residues of chain {', '.join(names[sequence])} and counts as "
                    "another sequence: if they are copies, give a file with the full sequence"
                )
    return notes


def _record(
    member: _Member, record_of: Callable[[str], ChainRecord], dropped: list[str]
) -> tuple[ChainSource, ChainRecord]:
    """The first source of a chain's sequence that has a record."""
    missing = []
    for chain in member.sources:
        try:
            record = record_of(chain.chain_id)
        except KeyError as error:
            missing.append(f"chain {chain.chain_id} has no record: {error}")
            continue
        if member.sequence and record.sequence != member.sequence:
            raise InputError(
                f"chain {member.name} has another sequence than the record {chain.chain_id}: "
                "featurize it again"
            )
        dropped += [f"{note}; {chain.chain_id} has the same sequence" for note in missing]
        return chain, record
    raise InputError("; ".join(missing))


def _structure(
    source: AssemblySource, config: FeaturizeConfig, dropped: list[str]
) -> Structure | None:
    first = source.chains[0]
    ref = None if source.copies and not first.assembly else first.structure_ref()
    if ref is None:
        return None
    structure = parse_structure(
        read_bytes(ref, config.caps),
        ref.plain_name,
        path=ref.path,
        config=config,
        is_distillation=first.is_distillation,
    )
    dropped += [f"left out: {other}" for other in structure.left_out]
    ligands = [m for m in structure.others if m.kind not in ("DNA", "RNA", "water")]
    dropped += [f"left out: {describe_molecules(ligands)}"] if ligands else []
    return structure


def _chains_of(structure: Structure, source: AssemblySource) -> list[_Member]:
    """Every protein chain of a structure, in the file's order.

    A chain takes the files of any chain with its sequence, those with alignments first.
    """
    by_name = {chain.author_chain: chain for chain in source.chains}
    by_sequence: dict[str, list[ChainSource]] = {}
    for name, chain in by_name.items():
        if name in structure.sequences:
            by_sequence.setdefault(structure.sequences[name], []).append(chain)
    for chains in by_sequence.values():
        chains.sort(key=lambda chain: not (chain.alignments or chain.alignment_dir))
    missing = [n for n, sequence in structure.sequences.items() if sequence not in by_sequence]
    if missing:
        raise InputError(
            f"no alignment of chain {', '.join(missing)}, nor of one with its sequence: "
            "a complex without some of its chains is left out",
            path=source.chains[0].structure,
        )
    return [
        _Member(name, tuple(by_sequence[sequence]), sequence)
        for name, sequence in structure.sequences.items()
    ]


def _named_chains(source: AssemblySource) -> list[_Member]:
    """The chains of an input without structure; copies without names get letters."""
    if not source.copies:
        return [_Member(chain.chain_id, (chain,)) for chain in source.chains]
    letters = (chain_letter(number) for number in itertools.count())
    names = source.names or [[next(letters) for _ in range(n)] for n in source.copies]
    return [
        _Member(name, (chain,))
        for chain, chain_names in zip(source.chains, names, strict=True)
        for name in chain_names
    ]


def _coordinates(
    structure: Structure, copies: Sequence[Sequence[str]], dropped: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and masks of all copies, one after the other."""
    chains = [structure.chain(name) for names in copies for name in names]
    reported = [text.removeprefix("chain ") for text in structure.left_out]  # reported once
    for chain in chains:
        dropped += [
            f"chain {chain.chain_id}: {note}"
            for note in chain.notes
            if not any(other in note for other in reported)
        ]
        if not chain.mask.any():
            dropped.append(f"chain {chain.chain_id}: no atom is known")
    positions = np.concatenate([chain.positions for chain in chains]).astype(np.float32)
    return positions, np.concatenate([chain.mask for chain in chains])


def pairing_ref(source: ChainSource, config: FeaturizeConfig) -> FileRef | None:
    """A chain's alignment to pair; None if it has none.

    ColabFold's a3m of a complex is already paired row by row, tables of Boltz and Chai by key.
    """
    refs = {ref.plain_name: ref for _, ref in source.alignment_files(config)}
    for ref in refs.values():
        if ref.part.startswith("complex "):
            return ref._replace(part=ref.part.replace("complex ", "paired "))
        if ref.part in ("table csv", "table pqt"):
            return ref._replace(part=f"{ref.part} paired")
    names = _PAIRING[:1] if config.hit_names == "openfold" else _PAIRING
    return next((refs[name] for name in names if name in refs), None)


def pairing_record(chain: ChainRecord, ref: FileRef | None, config: FeaturizeConfig) -> ChainRecord:
    """A chain's rows to pair, the query first, with the species of each.

    Without an alignment it has only the query; `hit_names` "openfold" reads UniProt species only.

    Raises:
        MsaError: the alignment is not of this chain.
    """
    query = ChainRecord.of_query(chain.chain_id, chain.sequence, chain.aatype, chain.residue_index)
    if ref is None:
        note = "no alignment to pair (uniprot_hits.sto): only the query is paired"
        return query.replace(dropped=(note,))
    msa = parse_msa(read_part(ref, config.caps), ref, config)
    if msa.letters.shape[1] != chain.num_res:
        raise MsaError(
            f"the alignment to pair has {msa.letters.shape[1]} columns, the chain has "
            f"{chain.num_res} residues",
            path=ref.path,
            item=chain.chain_id,
        )
    has_keys = ref.part.startswith("paired ") or ref.part.endswith(" paired")
    merged = merge([msa], species=_species(msa, config, has_keys), unique=not has_keys)
    return query.replace(**merged, msa_sources=(ref.plain_name,), dropped=msa.dropped).validate()


def _species(msa: Msa, config: FeaturizeConfig, has_keys: bool) -> list[str]:
    headers = msa.descriptions()
    if has_keys:  # the first is the query; other headers begin with the row or key to pair by
        return ["", *(header.split("\t")[0] for header in headers[1:])]
    if config.hit_names == "openfold":
        return [species_of(header) for header in headers]
    return [pairing_species(header) for header in headers]
