"""How OpenFold3 cuts an entry, takes rows and weighs its losses; its faults, each a field."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from evofeed.protein.features import MODEL_TEMPLATES

MAIN_SOURCES: Final = (
    "uniref90_hits",
    "bfd_uniclust_hits",
    "bfd_uniref_hits",
    "cfdb_uniref30",
    "cfdb_hits",
    "mgnify_hits",
    "rfam_hits",
    "rnacentral_hits",
    "nt_hits",
    "nucleotide_collection_hits",
    "concat_cfdb_uniref100_filtered",
    "mmseqs_colabfold",
    "colabfold_main",
    "dummy",
)
"""Files whose rows make the main MSA, in this order."""

LOSS_WEIGHTS: Final = {
    "bond": 0.0,
    "smooth_lddt": 4.0,
    "mse": 4.0,
    "distogram": 0.03,
    "experimentally_resolved": 1e-4,
    "plddt": 1e-4,
    "pae": 1e-4,
    "pde": 1e-4,
}
"""Weights of the losses in the first stage of training."""
CONFIDENCE_LOSSES: Final = ("experimentally_resolved", "plddt", "pae", "pde")
"""Losses that count only for structures of a usual resolution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFold3Config:
    """One sample as OpenFold3 0.5 makes it. `right()` mends its faults, all fields of the end."""

    token_budget: int = 384
    """Tokens of a crop, and of the padded features."""
    crop_weights: tuple[float, float, float] = (0.2, 0.4, 0.4)
    """Contiguous, spatial, spatial around an interface; need not sum to 1."""
    max_chains: int | None = 20
    """Polymer chains left by the chain crop; None for no such crop."""
    interface_distance: float = 15.0
    """Ångström between token centres at an interface."""
    ligand_distance: float = 5.0
    """Ångström from a retained chain at which the chain crop takes a ligand in."""
    main_sources: tuple[str, ...] = MAIN_SOURCES
    """Files of the main MSA, in order."""
    pair_sources: tuple[str, ...] = ("uniprot_hits", "uniprot")
    """Files with species, in order."""
    max_rows: int = 16384
    """Rows in all, the query among them."""
    max_paired_rows: int = 8191
    """Paired rows, without the query."""
    min_paired_chains: int = 2
    """Sequences a species must have to pair."""
    max_rows_of_species: int = 600
    """Rows of one species that may pair."""
    subsample_main: bool = True
    """Draw how many rows, and which, of every chain's main MSA."""
    used_rows: int | None = None
    """Rows sent to the model, query and paired rows first counted in, drawn evenly from all; None
    sends every row. The model draws 1,024 anew at each pass from what it was sent."""
    max_templates: int = MODEL_TEMPLATES
    """Slots of templates, all empty."""
    loss_weights: tuple[tuple[str, float], ...] = tuple(LOSS_WEIGHTS.items())
    """Weight of every loss."""
    resolutions: tuple[float, float] = (0.1, 4.0)
    """Ångström: confidence losses count within."""

    ligands_cut_anywhere: bool = True
    """A contiguous crop may cut a ligand; else what is not whole is left out."""
    first_of_species: bool = True
    """Of a species with too many rows the first in the file pair; else the species does not."""
    wrapped_products: bool = True
    """Too many paired rows are sorted by products of 64 bits that overflow; else by logarithms."""
    sorted_then_cut: bool = True
    """Drawn main rows are sorted before what does not fit is cut off; else cut as drawn."""
    query_twice: bool = True
    """The query stands in the main rows too; else in the first row alone."""
    unmasked_padding: bool = True
    """Cells below a chain's last row, and columns without alignment, are gaps with mask 1; else
    their mask is 0, and the first row holds the residue."""
    text_order: bool = True
    """Chains are numbered by their names as text, 10 before 2; else as they stand."""

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_rows", "min_paired_chains", "max_rows_of_species"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if min(self.crop_weights) < 0 or not sum(self.crop_weights) > 0:
            raise ValueError(f"crop_weights must be 0 or more, one above 0: {self.crop_weights}")
        if self.used_rows is not None and self.used_rows < 1:
            raise ValueError(f"used_rows must be 1 or more or None, not {self.used_rows}")

    def replace(self, **changes: object) -> OpenFold3Config:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def right(self) -> OpenFold3Config:
        """The same without OpenFold3's faults."""
        return self.replace(**dict.fromkeys(FAULTS, False))


FAULTS: Final = (
    "ligands_cut_anywhere",
    "first_of_species",
    "wrapped_products",
    "sorted_then_cut",
    "query_twice",
    "unmasked_padding",
    "text_order",
)
"""Fields of `OpenFold3Config` that say which of OpenFold3's faults are reproduced."""
