"""A structure file as the rest of the room sees it: chains with sequence and atoms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from evofeed.base.shapes import Bool, Float, Int, UInt8


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """One protein chain of a structure.

    Attributes:
        sequence: letters; of the whole construct where the file has it, else of what is seen.
        positions: ångström, zeros where an atom is not observed.
        mask: 1 where it is.
        observed: residues with any record in the file.
        confidence: of a prediction, by residue; -1 where there is none. Empty of all others.
        residue_index: numbers of the residues from 0, with steps over what is unknown between
            them; None for one after the other.
        notes: what was odd or left out, in words.
    """

    chain_id: str
    sequence: str
    positions: Float[np.ndarray, "L 37 3"]
    mask: UInt8[np.ndarray, "L 37"]
    observed: Bool[np.ndarray, " L"]
    notes: tuple[str, ...] = ()
    confidence: tuple[float, ...] = ()
    residue_index: Int[np.ndarray, " L"] | None = None


@dataclass(frozen=True, slots=True)
class OtherMolecule:
    """Residues of one component in one author's chain that are none of a protein.

    Attributes:
        kind: `ligand`, `glycan`, `DNA`, `RNA`, `amino acid` or `water`.
    """

    kind: str
    component: str
    chain: str
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """The protein chains of one entry; atoms are placed when a chain is asked for.

    Attributes:
        file_id: name of the entry, usually its PDB id.
        method: experimental methods, lower case, comma between them.
        release_date: oldest revision, ISO; '' if the file does not say.
        is_deposition: `release_date` is when the entry was deposited, for its file says no more.
        resolution: ångström, 0.0 if unknown or without one (NMR).
        sequences: by author's chain id, in the order of the file.
        place: makes the chain of an author's id; `chain` keeps what it made.
        left_out: its polymers that are no protein chain here, in words.
        others: its ligands, glycans, nucleic acids and waters, by component and chain.
    """

    file_id: str
    method: str
    release_date: str
    resolution: float
    sequences: dict[str, str]
    place: Callable[[str], Chain]
    kind: Literal["mmcif", "pdb"] = "mmcif"
    is_deposition: bool = False
    left_out: tuple[str, ...] = ()
    others: tuple[OtherMolecule, ...] = ()
    _placed: dict[str, Chain] = field(default_factory=dict)

    @property
    def lacks_date(self) -> bool:
        """An mmCIF file without revision history; of PDB files predictions have no date."""
        return self.kind == "mmcif" and not self.release_date

    def description(self, chain_id: str) -> str:
        """OpenFold's name of a chain: entry and chain, or the name of a PDB file alone."""
        return f"{self.file_id}_{chain_id}" if self.kind == "mmcif" else self.file_id.upper()

    def chain(self, chain_id: str) -> Chain:
        """The chain of that author id.

        Raises:
            KeyError: the entry has no such protein chain.
        """
        if chain_id not in self._placed:
            self._placed[chain_id] = self.place(chain_id)
        return self._placed[chain_id]
