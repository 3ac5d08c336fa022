"""A parsed structure file, mmCIF or PDB: protein chains with sequence and atoms."""

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
        sequence: letters; of the full construct where the file has it, else of the observed
            residues.
        positions: ångström, zeros where an atom is not observed.
        mask: 1 where an atom is observed.
        observed: residues with any record in the file.
        confidence: of a prediction, by residue; -1 where there is none. Empty for experiments.
        residue_index: numbers of the residues from 0, with steps over unknown residues between
            them; None if they are consecutive.
        notes: a line on each oddity and omission.
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
    """Residues of one component in one author's chain that are not part of a protein.

    Attributes:
        kind: `ligand`, `glycan`, `DNA`, `RNA`, `amino acid` or `water`.
    """

    kind: str
    component: str
    chain: str
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """The protein chains of one entry; a chain's atoms are placed at its first access.

    Attributes:
        file_id: name of the entry, usually its PDB id.
        method: experimental methods, lower case, comma between them.
        release_date: oldest revision, ISO; '' if the file does not say.
        is_deposition: `release_date` is the date of deposition: the file has no other.
        resolution: ångström, 0.0 if unknown or without one (NMR).
        sequences: by author's chain id, in the order of the file.
        build_chain: makes the chain of an author's id; `chain` caches it.
        left_out: a line on each polymer that is not among the protein chains.
        others: its ligands, glycans, nucleic acids and waters, by component and chain.
    """

    file_id: str
    method: str
    release_date: str
    resolution: float
    sequences: dict[str, str]
    build_chain: Callable[[str], Chain]
    kind: Literal["mmcif", "pdb"] = "mmcif"
    is_deposition: bool = False
    left_out: tuple[str, ...] = ()
    others: tuple[OtherMolecule, ...] = ()
    _chains: dict[str, Chain] = field(default_factory=dict)

    @property
    def lacks_date(self) -> bool:
        """True for an mmCIF file without revision history. PDB files of predictions have none."""
        return self.kind == "mmcif" and not self.release_date

    def description(self, chain_id: str) -> str:
        """OpenFold's name of a chain: entry and chain; of a PDB file its name alone."""
        return f"{self.file_id}_{chain_id}" if self.kind == "mmcif" else self.file_id.upper()

    def chain(self, chain_id: str) -> Chain:
        """The chain of an author's id.

        Raises:
            KeyError: the entry has no such protein chain.
        """
        if chain_id not in self._chains:
            self._chains[chain_id] = self.build_chain(chain_id)
        return self._chains[chain_id]
