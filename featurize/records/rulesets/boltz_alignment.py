"""Residues of a chain aligned to its sequence as in Boltz: by gemmi, not by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.ruleset_section import EntryRefused

_LINKING: Final = {"CA": "C", "C": "C", "N": "N", "P": "P", "O3'": "O"}
"""Atoms from which gemmi decides whether neighbours are linked, and their elements."""


def aligned_residues(
    record: EntryRecord,
    rows: Sequence[int],
    monomers: Sequence[str],
    polymer: str,
    atoms_of: Callable[[int], Mapping[str, int]],
) -> list[int]:
    """Residue of the record for every monomer; -1 where the alignment has a gap.

    Args:
        rows: residues of the chain, in the order of the file.
        polymer: gemmi's name of the kind of polymer: `PeptideL`, `Dna`, `Rna`.
        atoms_of: rows of a residue's atoms by name.

    Raises:
        EntryRefused: the alignment matches a residue to another monomer; Boltz fails there.
    """
    names = record.residue_name[list(rows)].tolist()
    if names == list(monomers):  # without a gap or mismatch there is no better alignment
        return list(rows)
    import gemmi

    chain: Any = gemmi.Chain("A")
    for number, row in enumerate(rows, 1):
        residue = gemmi.Residue()
        residue.name = str(record.residue_name[row])
        residue.seqid = gemmi.SeqId(str(number))
        for name, atom_row in atoms_of(row).items():
            if _LINKING.get(name) == record.atom_element[atom_row]:
                atom = gemmi.Atom()
                atom.name, atom.element = name, gemmi.Element(_LINKING[name])
                atom.pos = gemmi.Position(*record.atom_position[atom_row].tolist())
                residue.add_atom(atom)
        chain.add_residue(residue)
    kind = getattr(gemmi.PolymerType, polymer)
    scoring = gemmi.AlignmentScoring()
    result = gemmi.align_sequence_to_polymer(list(monomers), chain.whole(), kind, scoring)
    aligned = [-1] * len(monomers)
    used = 0
    # gemmi's line between sequence and chain: `|` equal, `.` other, blank a gap.
    for index, match in enumerate(str(result.match_string)):
        if index >= len(monomers):
            raise EntryRefused("a chain has more residues than its sequence", item=record.entry)
        if match == "|":
            if names[used] != monomers[index]:
                reason = f"residue {names[used]} is aligned to {monomers[index]} of the sequence"
                raise EntryRefused(reason, item=record.entry)
            aligned[index] = rows[used]
            used += 1
    return aligned
