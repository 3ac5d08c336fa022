"""Organism of a sequence, from its header."""

from __future__ import annotations

import re
from typing import Final

# db|accession[_isoform]|entry_species[_n], e.g. tr|A0A146SKV9|A0A146SKV9_FUNHE;
# the trailing _n is small BFD's. UniProt knowledge base, "entry name".
_ENTRY: Final = re.compile(
    r"(?:tr|sp)\|[A-Za-z0-9]{6,10}(?:_\d)?\|[A-Za-z0-9]+_(?P<species>[A-Za-z0-9]{1,5})(?:_\d+)?$"
)


# UniRef: `Tax=Homo sapiens TaxID=9606 RepID=...`; UniProt: `OS=Homo sapiens OX=9606 GN=...`.
_TAXON: Final = re.compile(r"\b(?:TaxID|OX)=(?P<taxid>[0-9]+)\b")


def organism_of(header: str) -> str:
    """Taxon id of a header, else its species mnemonic; '' where it has neither.

    `UniRef90_P61626 Lysozyme n=1 Tax=Homo sapiens TaxID=9606` gives `9606`.
    """
    match = _TAXON.search(header)
    return match["taxid"] if match else species_of(header)


# Protenix: `UniRef100_UPI00186459A6_118141/`, the taxon id after the accession; in ColabFold's
# paired rows, `UniRef100_A0A009_12/1-90`, it is the number of the row.
_PROTENIX: Final = re.compile(r"UniRef(?:100|90|50)_[A-Za-z0-9-]+_(?P<taxid>[0-9]+)(?:/\S*)?$")


def pairing_species(header: str) -> str:
    """Species of a row to pair: its mnemonic, else its taxon id, '' where it has neither.

    Besides UniProt's names and `TaxID=`, `OX=`, taxon ids after accessions are read, as Protenix
    writes them: `UniRef100_UPI00186459A6_118141/`.
    """
    if organism := species_of(header) or organism_of(header):
        return organism
    words = header.split(maxsplit=1)
    match = _PROTENIX.match(words[0]) if words else None
    return match["taxid"] if match else ""


def species_of(header: str) -> str:
    """Mnemonic of a header's first word, '' where there is none.

    `sp|P61626|LYSC_HUMAN/1-148 Lysozyme` gives `HUMAN`.
    """
    words = header.split(maxsplit=1)
    match = _ENTRY.match(words[0].partition("/")[0]) if words else None
    return match["species"] if match else ""
