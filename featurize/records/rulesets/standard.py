"""Residues that are one token in AlphaFold 3, and what else its cleaning names (SI 2.5.4)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from evofeed.protein.datapoints import RESTYPES

PROTEIN, LIGAND = 0, 3
"""Kinds of chains and residues that every project numbers alike."""
STANDARD_PROTEIN: Final = RESTYPES[:21]
STANDARD_NUCLEIC: Final = RESTYPES[21:]
AIDS: Final = "SO4 GOL EDO PO4 ACT PEG DMS TRS PGE PG4 FMT EPE MPD MES CD IOD".split()
"""Crystallisation aids, table 9."""
EXCLUDED_LIGANDS: Final = Path(__file__).with_name("excluded_ligands.txt").read_text().split()
"""Ligands left out of evaluation, tables 9 to 12; Boltz leaves them out of training."""


_Rules = TypeVar("_Rules", bound="Rules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits of a project's cleaning, and its faults by name: True does as the project does."""

    @classmethod
    def right(cls: type[_Rules]) -> _Rules:
        """Every fault mended."""
        faults: Any = {one.name: False for one in dataclasses.fields(cls) if one.type == "bool"}
        return dataclasses.replace(cls(), **faults)
