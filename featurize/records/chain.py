"""One chain end to end: the files in, its record out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evofeed.base.errors import EvofeedError, InputError, MsaError, NoProtein
from evofeed.base.shapes import UInt8
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.fasta import nucleic_acid, parse_fasta
from evofeed.featurize.formats.hits import TemplateHit, parse_hhr, parse_hmmsearch
from evofeed.featurize.formats.msa import Msa, merge, single_row
from evofeed.featurize.formats.reading import FileRef, file_ref, sha256
from evofeed.featurize.inputs.roads.parts import parse_msa, read_part
from evofeed.featurize.inputs.sources import ChainSource, Role, why_unread
from evofeed.featurize.records.template_library import TemplateLibrary, template_library
from evofeed.featurize.records.templates import (
    Template,
    TemplateQuery,
    featurize_templates,
    template_fields,
)
from evofeed.featurize.structures.left_out import in_words
from evofeed.featurize.structures.structure import Structure
from evofeed.featurize.structures.structure_places import parse_structure
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import RESTYPES, UNKNOWN

_DEFAULT = FeaturizeConfig()


@dataclass(slots=True)
class _Inputs:
    """Reads files and remembers what was read and what was left out."""

    config: FeaturizeConfig
    digests: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def read(self, ref: FileRef) -> bytes:
        data = read_part(ref, self.config.caps)
        self.digests[ref.name] = sha256(data)
        return data


def featurize_chain(
    source: ChainSource,
    config: FeaturizeConfig = _DEFAULT,
    *,
    library: TemplateLibrary | None = None,
) -> ChainRecord:
    """The record of one chain, full length.

    Args:
        library: structures of template hits; else one is made for the source's
            `template_mmcif_dir` and kept by the process.

    Returns:
        A validated record; `dropped` lists what was left out and why.

    Raises:
        InputError: an input of the chain is missing or wrong (MsaError, MmcifError
            and TemplateError are kinds of it); names file and line where it can.
    """
    inputs = _Inputs(config, dropped=list(source.notes))
    try:
        files = source.alignment_files(config)
        msas, refs = _alignments(files, inputs)
        target = _target(source, inputs, msas)
        return _record(source, target, msas, refs, files, inputs, library).validate()
    except EvofeedError as error:
        error.item = error.item or source.chain_id
        raise


def _alignments(
    files: Sequence[tuple[Role, FileRef]], inputs: _Inputs
) -> tuple[list[Msa], list[FileRef]]:
    msas, refs = [], []
    for role, ref in files:
        if role == "other" and (why := why_unread(ref.plain_name)):
            inputs.dropped.append(f"{ref.plain_name}: {why}")
        if role not in ("a3m", "stockholm"):
            continue
        msas.append(parse_msa(inputs.read(ref), ref, inputs.config))
        refs.append(ref)
        inputs.dropped += [f"{ref.plain_name}: {note}" for note in msas[-1].dropped]
    return msas, refs


def _target(source: ChainSource, inputs: _Inputs, msas: Sequence[Msa]) -> dict[str, Any]:
    """What a chain is, before alignments and templates, as fields of its record."""
    ref = source.structure_ref()
    if ref is not None:
        return _from_structure(source, ref, inputs)
    if source.sequence:
        (record,) = parse_fasta(f">{source.chain_id}\n{source.sequence}".encode())
        return _named(record.sequence, source)
    if source.fasta is not None:
        return _from_fasta(source, inputs)
    if msas:
        if bases := nucleic_acid(msas[0].query):
            raise NoProtein(f"an alignment of {bases}: only proteins are featurized")
        inputs.dropped.append("no structure or FASTA: the sequence is the alignment's query")
        return _named(msas[0].query, source)
    raise InputError("no structure, no FASTA and no alignment: nothing to featurize")


def _named(sequence: str, source: ChainSource) -> dict[str, Any]:
    return {"sequence": sequence, "description": source.description or source.chain_id}


def _from_structure(source: ChainSource, ref: FileRef, inputs: _Inputs) -> dict[str, Any]:
    config = inputs.config
    structure = parse_structure(
        inputs.read(ref),
        ref.plain_name,
        path=ref.path,
        config=config,
        is_distillation=source.is_distillation,
    )
    name = chain_in(source, structure)
    if name is None:
        raise InputError(
            f"no protein chain {source.author_chain!r}, only "
            f"{', '.join(structure.sequences) or 'none'} (a chain's id is <entry>_<chain>)",
            path=ref.path,
        )
    if config.require_release_date and structure.lacks_date:
        raise InputError("no revision history, so no release date", path=ref.path)
    chain = structure.chain(name)
    inputs.dropped += [f"{ref.plain_name}: {note}" for note in chain.notes]
    if any(molecule.kind != "water" for molecule in structure.others):
        inputs.dropped.append(f"{ref.plain_name} also holds {in_words(structure.others)}: not read")
    found = {
        "sequence": chain.sequence,
        "description": structure.description(name),
        "all_atom_positions": chain.positions,
        "all_atom_mask": chain.mask,
        "confidence": chain.confidence,
        "resolution": structure.resolution,
        "release_date": structure.release_date,
        "method": structure.method,
    }
    return found | ({} if chain.residue_index is None else {"residue_index": chain.residue_index})


def chain_in(source: ChainSource, structure: Structure) -> str | None:
    """Author's id of a source's chain in its structure; None if it is not there."""
    name = source.author_chain
    if name in structure.sequences:
        return name
    if source.structure_chain or len(structure.sequences) != 1:
        return None
    # A file of one chain, and an id that does not say which: a model.
    is_model = structure.kind == "pdb" or source.entry_id == source.chain_id
    return next(iter(structure.sequences)) if is_model else None


def _from_fasta(source: ChainSource, inputs: _Inputs) -> dict[str, Any]:
    ref = file_ref(source.fasta or "")
    records = parse_fasta(inputs.read(ref), path=ref.path, caps=inputs.config.caps)
    if not records:
        raise InputError("no sequence in it", path=ref.path)
    named = [r for r in records if r.name == source.chain_id] if len(records) > 1 else records
    if len(named) != 1:
        raise InputError(
            f"{len(named)} sequences named {source.chain_id!r} among {len(records)}", path=ref.path
        )
    return {"sequence": named[0].sequence, "description": named[0].description}


def _record(
    source: ChainSource,
    target: dict[str, Any],
    msas: Sequence[Msa],
    refs: Sequence[FileRef],
    files: Sequence[tuple[Role, FileRef]],
    inputs: _Inputs,
    library: TemplateLibrary | None,
) -> ChainRecord:
    config = inputs.config
    sequence = target.pop("sequence")
    _check_queries(sequence, msas, refs, inputs)
    if not msas:
        inputs.dropped.append("no alignment: the MSA is the query alone")
    merged = merge(msas or [single_row(sequence)])
    if msas and len(merged["msa"]) == 1:
        inputs.dropped.append("no row in its alignments: the MSA is the query alone")
    query = TemplateQuery(sequence, source.entry_id, target.get("release_date", ""))
    templates = _templates(source, query, files, inputs, library)
    return ChainRecord.of_query(
        source.chain_id,
        sequence,
        sequence_aatype(sequence),
        np.arange(len(sequence), dtype=np.int32),
        **merged,
        **template_fields(templates),
        **target,
        msa_sources=tuple(ref.plain_name for ref in refs) or ("query",),
        is_distillation=source.is_distillation,
        inputs=inputs.digests,
        config_digest=config.digest,
        dropped=tuple(inputs.dropped),
    )


def _templates(
    source: ChainSource,
    query: TemplateQuery,
    files: Sequence[tuple[Role, FileRef]],
    inputs: _Inputs,
    library: TemplateLibrary | None,
) -> list[Template]:
    config = inputs.config
    hit_files = [(role, ref) for role, ref in files if role in ("hhr", "hmmsearch")]
    if not hit_files or config.max_templates == 0:
        return []
    library = library or template_library(source, config)
    if library is None:
        inputs.dropped.append("template hits, but no folder of template structures was given")
        return []
    hits: list[TemplateHit] = []
    for role, ref in hit_files:
        data = inputs.read(ref)
        if role == "hhr":
            if not data.strip():  # without hits it still has a header
                inputs.dropped.append(f"{ref.plain_name} is empty: no template hits")
            hits += parse_hhr(data, path=ref.path, old_hhr=config.old_hhr, caps=config.caps)
        else:
            hits += parse_hmmsearch(data, query.sequence, path=ref.path, caps=config.caps)
    templates, dropped = featurize_templates(hits, query, library, config)
    inputs.dropped += dropped
    return templates


def _check_queries(
    sequence: str, msas: Sequence[Msa], refs: Sequence[FileRef], inputs: _Inputs
) -> None:
    if not inputs.config.check_query:
        return
    for msa, ref in zip(msas, refs, strict=True):
        query = msa.query
        if len(query) != len(sequence) or msa.letters.shape[1] != len(sequence):
            raise MsaError(
                f"the query has {msa.letters.shape[1]} columns, the chain has {len(sequence)} "
                "residues: they do not belong together (each protein needs a folder of its own)",
                path=ref.path,
            )
        other = sum(a != b for a, b in zip(query, sequence, strict=True))
        if other:
            inputs.dropped.append(
                f"{ref.plain_name}: the query differs from the chain in {other} letters"
            )


def sequence_aatype(sequence: str) -> UInt8[np.ndarray, " L"]:
    """Restype codes of a sequence; all but the twenty amino acids are X."""
    table = np.full(128, UNKNOWN, np.uint8)
    for code, letter in enumerate(RESTYPES):
        table[ord(letter)] = code
    return table[np.frombuffer(sequence.encode("ascii"), np.uint8)]
