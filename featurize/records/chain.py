"""A chain's input files -> its `ChainRecord`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evofeed.base.errors import EvofeedError, InputError, MsaError, NoProtein
from evofeed.base.shapes import UInt8
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.fasta import checked_sequence, nucleic_acid, parse_fasta
from evofeed.featurize.formats.hits import TemplateHit, parse_hhr, parse_hmmsearch
from evofeed.featurize.formats.msa import Msa, merge, single_row
from evofeed.featurize.formats.reading import FileRef, file_ref, sha256
from evofeed.featurize.inputs.readers.parts import parse_msa, read_part
from evofeed.featurize.inputs.sources import ChainSource, Role, why_unread
from evofeed.featurize.records.template_library import TemplateLibrary, template_library
from evofeed.featurize.records.templates import (
    Template,
    TemplateQuery,
    featurize_templates,
    template_fields,
)
from evofeed.featurize.structures.other_molecules import describe_molecules
from evofeed.featurize.structures.structure import Structure
from evofeed.featurize.structures.structure_files import parse_structure
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import RESTYPES, UNKNOWN

_DEFAULT = FeaturizeConfig()


def featurize_chain(
    source: ChainSource,
    config: FeaturizeConfig = _DEFAULT,
    *,
    library: TemplateLibrary | None = None,
) -> ChainRecord:
    """The validated record of one chain, full length; `dropped` lists what was left out and why.

    Args:
        library: structures of template hits; None uses a library of the source's
            `template_mmcif_dir` that the process keeps.

    Raises:
        InputError: an input of the chain is missing or wrong (a MsaError, MmcifError or
            TemplateError); names file and line where it can.
    """
    try:
        return _ChainReader(source, config, library).record().validate()
    except EvofeedError as error:
        error.item = error.item or source.chain_id
        raise


@dataclass(slots=True)
class _ChainReader:
    """Reads a chain's files and records their digests and what was left out."""

    source: ChainSource
    config: FeaturizeConfig
    library: TemplateLibrary | None
    digests: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def read(self, ref: FileRef) -> bytes:
        data = read_part(ref, self.config.caps)
        self.digests[ref.name] = sha256(data)
        return data

    def record(self) -> ChainRecord:
        source = self.source
        self.dropped += source.notes
        files = source.alignment_files(self.config)
        alignments = self.alignments(files)
        target = self.target([msa for _, msa in alignments])
        sequence = target.pop("sequence")
        if self.config.check_query:
            self.check_queries(sequence, alignments)
        if not alignments:
            self.dropped.append("no alignment: the MSA is the query alone")
        merged = merge([msa for _, msa in alignments] or [single_row(sequence)])
        if alignments and len(merged["msa"]) == 1:
            self.dropped.append("no row in its alignments: the MSA is the query alone")
        query = TemplateQuery(sequence, source.entry_id, target.get("release_date", ""))
        templates = self.templates(query, files)
        return ChainRecord.of_query(
            source.chain_id,
            sequence,
            sequence_aatype(sequence),
            np.arange(len(sequence), dtype=np.int32),
            **merged,
            **template_fields(templates),
            **target,
            msa_sources=tuple(ref.plain_name for ref, _ in alignments) or ("query",),
            is_distillation=source.is_distillation,
            inputs=self.digests,
            config_digest=self.config.digest,
            dropped=tuple(self.dropped),
        )

    def alignments(self, files: Sequence[tuple[Role, FileRef]]) -> list[tuple[FileRef, Msa]]:
        alignments = []
        for role, ref in files:
            if role == "other" and (reason := why_unread(ref.plain_name)):
                self.dropped.append(f"{ref.plain_name}: {reason}")
            if role in ("a3m", "stockholm"):
                msa = parse_msa(self.read(ref), ref, self.config)
                alignments.append((ref, msa))
                self.dropped += [f"{ref.plain_name}: {note}" for note in msa.dropped]
        return alignments

    def target(self, msas: Sequence[Msa]) -> dict[str, Any]:
        """Fields of the record from structure, FASTA or query: sequence, description, atoms."""
        source = self.source
        description = source.description or source.chain_id
        if (ref := source.structure_ref()) is not None:
            return self.from_structure(ref)
        if source.sequence:
            sequence = checked_sequence(source.sequence, source.assembly or source.fasta or "")
            return {"sequence": sequence, "description": description}
        if source.fasta is not None:
            return self.from_fasta(file_ref(source.fasta))
        if msas:
            if bases := nucleic_acid(msas[0].query):
                raise NoProtein(f"an alignment of {bases}: only proteins are featurized")
            self.dropped.append("no structure or FASTA: the sequence is the alignment's query")
            return {"sequence": msas[0].query, "description": description}
        raise InputError("no structure, no FASTA and no alignment: nothing to featurize")

    def from_structure(self, ref: FileRef) -> dict[str, Any]:
        config, source = self.config, self.source
        structure = parse_structure(
            self.read(ref),
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
        self.dropped += [f"{ref.plain_name}: {note}" for note in chain.notes]
        if any(molecule.kind != "water" for molecule in structure.others):
            others = describe_molecules(structure.others)
            self.dropped.append(f"{ref.plain_name} also holds {others}: not read")
        fields = {
            "sequence": chain.sequence,
            "description": structure.description(name),
            "all_atom_positions": chain.positions,
            "all_atom_mask": chain.mask,
            "confidence": chain.confidence,
            "resolution": structure.resolution,
            "release_date": structure.release_date,
            "method": structure.method,
        }
        numbers = chain.residue_index
        return fields | ({} if numbers is None else {"residue_index": numbers})

    def from_fasta(self, ref: FileRef) -> dict[str, Any]:
        chain_id = self.source.chain_id
        records = parse_fasta(self.read(ref), path=ref.path, caps=self.config.caps)
        if not records:
            raise InputError("no sequence in it", path=ref.path)
        named = [r for r in records if r.name == chain_id] if len(records) > 1 else records
        if len(named) != 1:
            raise InputError(
                f"{len(named)} sequences named {chain_id!r} among {len(records)}", path=ref.path
            )
        return {"sequence": named[0].sequence, "description": named[0].description}

    def templates(
        self, query: TemplateQuery, files: Sequence[tuple[Role, FileRef]]
    ) -> list[Template]:
        config = self.config
        hit_files = [(role, ref) for role, ref in files if role in ("hhr", "hmmsearch")]
        if not hit_files or config.max_templates == 0:
            return []
        library = self.library or template_library(self.source, config)
        if library is None:
            self.dropped.append("template hits, but no folder of template structures was given")
            return []
        hits: list[TemplateHit] = []
        for role, ref in hit_files:
            data = self.read(ref)
            if role == "hhr":
                if not data.strip():  # without hits it still has a header
                    self.dropped.append(f"{ref.plain_name} is empty: no template hits")
                hits += parse_hhr(data, path=ref.path, old_hhr=config.old_hhr, caps=config.caps)
            else:
                hits += parse_hmmsearch(data, query.sequence, path=ref.path, caps=config.caps)
        templates, dropped = featurize_templates(hits, query, library, config)
        self.dropped += dropped
        return templates

    def check_queries(self, sequence: str, alignments: Sequence[tuple[FileRef, Msa]]) -> None:
        for ref, msa in alignments:
            query = msa.query
            if len(query) != len(sequence) or msa.letters.shape[1] != len(sequence):
                raise MsaError(
                    f"the query has {msa.letters.shape[1]} columns, the chain has {len(sequence)} "
                    "residues: they do not belong together (each protein needs a folder of its "
                    "own)",
                    path=ref.path,
                )
            mismatches = sum(a != b for a, b in zip(query, sequence, strict=True))
            if mismatches:
                self.dropped.append(
                    f"{ref.plain_name}: the query differs from the chain in {mismatches} letters"
                )


def chain_in(source: ChainSource, structure: Structure) -> str | None:
    """Author's id of a source's chain in its structure; None if the structure lacks it."""
    name = source.author_chain
    if name in structure.sequences:
        return name
    if source.structure_chain or len(structure.sequences) != 1:
        return None
    # A file of one chain and an id that names no chain: a predicted model.
    is_model = structure.kind == "pdb" or source.entry_id == source.chain_id
    return next(iter(structure.sequences)) if is_model else None


def sequence_aatype(sequence: str) -> UInt8[np.ndarray, " L"]:
    """Restype codes of a sequence; letters other than the twenty amino acids are X."""
    table = np.full(128, UNKNOWN, np.uint8)
    for code, letter in enumerate(RESTYPES):
        table[ord(letter)] = code
    return table[np.frombuffer(sequence.encode("ascii"), np.uint8)]
