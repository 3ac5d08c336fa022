"""The alignment of a chain by whose species its rows are paired with other chains' rows."""

from __future__ import annotations

from typing import Final

from evofeed.base.errors import MsaError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.msa import Msa, merge
from evofeed.featurize.formats.reading import FileRef
from evofeed.featurize.formats.species import pairing_species, species_of
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.inputs.roads.parts import read_part
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.protein.chain_record import ChainRecord

NAMES: Final = (
    "uniprot_hits.sto",
    "uniprot_hits.a3m",
    "uniprot.sto",
    "uniprot.a3m",
    "pairing.a3m",
)
"""What an alignment to pair is called, the preferred names first: OpenFold, AlphaFold, Protenix."""


def pairing_ref(source: ChainSource, config: FeaturizeConfig) -> FileRef | None:
    """A chain's alignment to pair; None if it has none.

    The rows of ColabFold's a3m of a complex are paired already, row by row of that file, and
    those of Boltz's and Chai's tables by their keys.
    """
    refs = {ref.plain_name: ref for _, ref in source.alignment_files(config)}
    for ref in refs.values():
        if ref.part.startswith("complex "):
            return ref._replace(part=ref.part.replace("complex ", "paired "))
        if ref.part in ("table csv", "table pqt"):
            return ref._replace(part=f"{ref.part} paired")
    names = NAMES[:1] if config.hit_names == "openfold" else NAMES
    return next((refs[name] for name in names if name in refs), None)


def pairing_record(chain: ChainRecord, ref: FileRef, config: FeaturizeConfig) -> ChainRecord:
    """The rows to pair of a chain, the query first, with the species of each.

    Args:
        chain: the chain's own record.
        ref: its alignment to pair.
        config: strictness; `hit_names` "openfold" knows UniProt's species names only.

    Raises:
        MsaError: it is no alignment of this chain.
    """
    parse = parse_stockholm if ref.plain_name.endswith(".sto") else parse_a3m
    msa = parse(
        read_part(ref, config.caps),
        path=str(ref.path),
        strict_letters=config.strict_letters,
        caps=config.caps,
    )
    if msa.letters.shape[1] != chain.num_res:
        raise MsaError(
            f"the alignment to pair has {msa.letters.shape[1]} columns, the chain has "
            f"{chain.num_res} residues",
            path=ref.path,
            item=chain.chain_id,
        )
    named = ref.part.startswith("paired ") or ref.part.endswith(" paired")
    merged = merge([msa], species=_species(msa, config, named), unique=not named)
    return ChainRecord.of_query(
        chain.chain_id,
        chain.sequence,
        chain.aatype,
        chain.residue_index,
        msa=merged.msa,
        deletion_row=merged.deletion_row,
        deletion_column=merged.deletion_column,
        deletion_count=merged.deletion_count,
        msa_source=merged.source,
        msa_sources=(ref.plain_name,),
        msa_species=merged.species,
        hhblits_profile_counts=merged.counts,
        dropped=msa.dropped,
    ).validate()


def _species(msa: Msa, config: FeaturizeConfig, named: bool) -> list[str]:
    headers = msa.descriptions()
    if named:  # the first is the query; others are named by their partners' row or key
        return ["", *(header.split("\t")[0] for header in headers[1:])]
    if config.hit_names == "openfold":
        return [species_of(header) for header in headers]
    return [pairing_species(header) for header in headers]
