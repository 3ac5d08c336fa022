"""Residues that are one token in AlphaFold 3, and the ligands its cleaning lists (SI 2.5.4)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from evofeed.protein.datapoints import RESTYPES

STANDARD_PROTEIN: Final = RESTYPES[:21]
STANDARD_NUCLEIC: Final = RESTYPES[21:]
AIDS: Final = "SO4 GOL EDO PO4 ACT PEG DMS TRS PGE PG4 FMT EPE MPD MES CD IOD".split()
"""Crystallisation aids, table 9."""
EXCLUDED_LIGANDS: Final = Path(__file__).with_name("excluded_ligands.txt").read_text().split()
"""Ligands excluded from evaluation, tables 9 to 12; Boltz excludes them from training."""
