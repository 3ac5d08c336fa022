"""Residues that are one token in AlphaFold 3, and what else its cleaning names (SI 2.5.4)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from evofeed.protein.datapoints import RESTYPES

PROTEIN, LIGAND = 0, 3
"""Kinds of chains and residues that every project numbers alike."""
STANDARD_PROTEIN: Final = RESTYPES[:21]
STANDARD_NUCLEIC: Final = RESTYPES[21:]
AIDS: Final = "SO4 GOL EDO PO4 ACT PEG DMS TRS PGE PG4 FMT EPE MPD MES CD IOD".split()
"""Crystallisation aids, table 9."""
EXCLUDED_LIGANDS: Final = (
    "15P 1PE 2F2 2JC 3HR 3SY 7N5 7PE 9JE AAE ABA ACE ACN ACT ACY AZI BAM BCN BCT BDN BEN BME BO3 "
    "BTB BTC BU1 C8E CAD CAQ CBM CCN CIT CL CLR CM CMO CO3 CPT CXS D10 DEP DIO DMS DN DOD DOX EDO "
    "EEE EGL EOH EOX EPE ETF FCY FJO FLC FMT FW5 GOL GSH GTT GYF HED IHP IHS IMD IOD IPA IPH LDA "
    "MB3 MEG MES MLA MLI MOH MPD MRD MSE MYR N NA NH2 NH4 NHE NO3 O4B OHE OLA OLC OMB OME OXA P6G "
    "PE3 PE4 PEG PEO PEP PG0 PG4 PGE PGR PLM PO4 POL POP PVO SAR SCN SEO SEP SIN SO4 SPD SPM SR "
    "STE STO STU TAR TBU TME TPO TRS UNK UNL UNX UPL URE"
).split()
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
