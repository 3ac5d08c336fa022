"""What Protenix knows of an entry beside the columns that all projects have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.views.entry_view import ChainType, EntryView

OTHER_POLYMER: Final = len(ChainType)
"""`chain_polymer` of hybrids, D-peptides and other polymers without an alignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtenixView(EntryView):
    """A whole entry in Protenix's eyes.

    `residue_type` and `token_type` are those of the canonical sequence, unknown for ligands; every
    polymer has an alignment, of its sequence alone where there is no other.
    """

    chain_asym: Integer[np.ndarray, " C"]
    """Number of the chain, ascending; chains left out leave holes."""
    chain_polymer: Integer[np.ndarray, " C"]
    """`ChainType` that the entity's polymer type names, LIGAND for no polymer, else
    `OTHER_POLYMER`."""
    residue_kind: Integer[np.ndarray, " R"]
    """`ChainType` of the residue's own component, LIGAND for all of what is no polymer."""
