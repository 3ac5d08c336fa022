"""How Protenix cuts an entry, takes rows and moves conformers; its faults, each a field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evofeed.base.configs import Config, check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtenixConfig(Config):
    """One sample as Protenix 2.0 makes it; its faults are fields, faithful by default."""

    crop_size: int = 384
    """Tokens of a crop, at most."""
    crop_weights: tuple[float, float, float] = (0.2, 0.4, 0.4)
    """Contiguous, spatial, spatial around an interface; need not sum to 1."""
    interface_distance: float = 15.0
    """Ångström between token centres at an interface."""
    whole_residues: bool = True
    """A residue split into atoms is in a crop as a whole or not at all."""
    drop_last: bool = True
    """The last residue of a contiguous crop goes if it does not fit, else it is cut."""
    remove_metal: bool = True
    """Chains of one atom are not in contiguous crops."""
    min_resolved: int = 5
    """Atoms that were seen in a contiguous crop, at least."""
    pair_sources: tuple[str, ...] = ("pairing",)
    """Files whose rows pair by species, in order."""
    main_sources: tuple[str, ...] = ("pairing", "non_pairing")
    """Files of a protein's other rows, in order."""
    rna_sources: tuple[str, ...] = ("rna",)
    """Files of an RNA's rows, in order."""
    max_rna_rows: int = 30000
    """Rows of an RNA's file that are read."""
    max_rows: int = 16384
    """Rows in all; paired rows are at most half of them."""
    max_rows_of_species: int = 600
    """Rows of one species that may pair."""
    min_columns: int = 5
    """Chains of shorter sequences have the query alone."""
    max_shift: float = 1.0
    """Conformers are moved by up to so many ångström along every axis."""
    shuffle_molecules: bool = False
    """Molecules stand in random order."""
    shuffle_copies: bool = False
    """Copies of an entity are numbered in random order."""
    rename_ligand_atoms: bool = False
    """Atoms of ligands are named by element and number."""
    max_templates: int = 4
    """Slots of templates, all empty."""

    draw_when_it_fits: bool = True
    """A crop is drawn although every token fits."""
    biased_distances: bool = True
    """A thousandth of an ångström for each token before it is added to a token's distance."""
    unresolved_fill: bool = True
    """A spatial crop takes tokens that nobody saw where those seen are too few."""
    unstable_order: bool = True
    """Rows of a species, and pairs of equal rank, stand as an unstable sort leaves them."""
    missing_ranks_first: bool = True
    """A chain without the species counts as the best row when pairs are ranked."""
    query_twice: bool = True
    """Where nothing pairs, the query stands in the paired and in the other rows."""
    fill_with_query: bool = True
    """Rows of gaps in chains that are no protein are the query again."""
    clip_127: bool = True
    """Deletions of more than 127 letters count as 127, in all but their mean."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, with the value in the message."""
        check_numbers(self, "crop_size", "max_rows_of_species", least=1)
        check_numbers(self, "max_rows", least=2)
        check_numbers(self, "interface_distance", "max_shift", "max_templates", least=0)
        if len(self.crop_weights) != 3 or min(self.crop_weights) < 0 or not sum(self.crop_weights):
            raise ValueError(f"crop_weights must be 0 or more, one above 0: {self.crop_weights}")

    def right(self) -> ProtenixConfig:
        """The same without Protenix's faults."""
        return self.replace(**dict.fromkeys(FAULTS, False))


FAULTS: Final = (
    "draw_when_it_fits",
    "biased_distances",
    "unresolved_fill",
    "unstable_order",
    "missing_ranks_first",
    "query_twice",
    "fill_with_query",
    "clip_127",
)
"""Fields of `ProtenixConfig` that say which of Protenix's faults are reproduced."""
