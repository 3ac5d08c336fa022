"""Settings of OpenFold3's, Boltz's and Protenix's crops, rows and features; faults as fields."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from evofeed.base.configs import Config, check_numbers
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


_V = TypeVar("_V", bound="ViewConfig")


def _fault() -> Any:
    """A field that says that a fault of the project is reproduced: faithful by default."""
    return field(default=True, metadata={"fault": True})


class ViewConfig(Config):
    """One sample as a project makes it; its faults are fields."""

    __slots__ = ()

    @classmethod
    def faults(cls) -> list[str]:
        """Fields that say which of the project's faults are reproduced."""
        return [one.name for one in fields(cls) if "fault" in one.metadata]  # type: ignore[arg-type]

    def right(self: _V) -> _V:
        """The same without the project's faults."""
        return self.replace(**dict.fromkeys(self.faults(), False))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFold3Config(ViewConfig):
    """One sample as OpenFold3 0.5 makes it."""

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
    """Slots of templates: of each chain up to so many are drawn."""
    min_template_tokens: int = 5
    """Tokens of a chain in the crop, without which it has no templates."""
    templates_before_days: int = 60
    """Days between the releases of a template and of the entry, at least."""
    loss_weights: tuple[tuple[str, float], ...] = tuple(LOSS_WEIGHTS.items())
    """Weight of every loss."""
    resolutions: tuple[float, float] = (0.1, 4.0)
    """Ångström: confidence losses count within."""

    ligands_cut_anywhere: bool = _fault()
    """A contiguous crop may cut a ligand; else what is not whole is left out."""
    first_of_species: bool = _fault()
    """Of a species with too many rows the first in the file pair; else the species does not."""
    wrapped_products: bool = _fault()
    """Too many paired rows are sorted by products of 64 bits that overflow; else by logarithms."""
    sorted_then_cut: bool = _fault()
    """Drawn main rows are sorted before what does not fit is cut off; else cut as drawn."""
    query_twice: bool = _fault()
    """The query stands in the main rows too; else in the first row alone."""
    unmasked_padding: bool = _fault()
    """Cells below a chain's last row, and columns without alignment, are gaps with mask 1; else
    their mask is 0, and the first row holds the residue."""
    text_order: bool = _fault()
    """Chains are numbered by their names as text, 10 before 2; else as they stand."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, with the value in the message."""
        check_numbers(self, "token_budget", "max_rows", "min_paired_chains", least=1)
        check_numbers(self, "max_rows_of_species", "used_rows", least=1)
        templates = ("max_templates", "min_template_tokens", "templates_before_days")
        check_numbers(self, *templates, least=0)
        _check_weights(self.crop_weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltzConfig(ViewConfig):
    """One sample as Boltz 1 makes it in training."""

    max_tokens: int = 512
    """Tokens of a crop; features are padded to it."""
    max_atoms: int = 4608
    """Atoms of a crop, a multiple of 32; features are padded to it."""
    max_seqs: int = 2048
    """Rows of `msa`; a sample has 1 to that many, drawn."""
    max_pairs: int = 8192
    """Paired rows, the queries included."""
    max_rows: int = 16384
    """Rows, paired and unpaired, before the draw."""
    max_neighborhood: int = 40
    """Largest neighbourhood of a token in a crop; 0, 2, ... up to it are drawn."""
    pocket_prob: float = 0.3
    """Probability of a sample whose pocket is given."""
    pocket_cutoff: float = 6.0
    """Distance of a pocket's tokens from the binder, ångström."""
    pocket_geometric: float = 0.3
    """Of the number of pocket tokens that are given; 0 gives all."""
    min_dist: float = 2.0
    """First boundary of the distogram, ångström."""
    max_dist: float = 22.0
    """Last boundary of the distogram, ångström."""
    num_bins: int = 64
    """Bins of the distogram."""
    symmetries: bool = False
    """Add the inputs of label permutation, `return_train_symmetries` of Boltz."""

    narrowed_deletions: bool = _fault()
    """Only the query's deletions are counted."""
    reused_rows: bool = _fault()
    """Rows that are paired come again among the unpaired ones."""
    pi_half: bool = _fault()
    """`deletion_value` is pi/2 atan(d/3); AF3 has 2/pi."""
    profile_of_kept: bool = _fault()
    """`profile` and `deletion_mean` are of the drawn rows, not of all."""
    padding_of_ones: bool = _fault()
    """Padded cells of `msa` are ones in every class."""
    one_move: bool = _fault()
    """All conformers of a sample are turned and moved together."""
    stop_at_first_overflow: bool = _fault()
    """A crop ends at the first neighbourhood that does not fit."""
    first_combinations: bool = _fault()
    """Only the first 1,000 combinations of equal chains are looked at."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, with the value in the message."""
        check_numbers(self, "max_tokens", "max_seqs", "max_pairs", "max_rows", least=1)
        check_numbers(self, "max_atoms", least=32)
        check_numbers(self, "num_bins", least=2)
        check_numbers(self, "max_neighborhood", "pocket_cutoff", "min_dist", "max_dist", least=0)
        check_numbers(self, "pocket_prob", "pocket_geometric", least=0, most=1)
        if self.max_atoms % 32:
            raise ValueError(f"max_atoms must be a multiple of 32, not {self.max_atoms}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtenixConfig(ViewConfig):
    """One sample as Protenix 2.0 makes it."""

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
    templates: bool = False
    """Features of templates, as Protenix trains models with a template embedder; else the empty
    ones of a data set without, which no model reads."""
    max_templates: int = 4
    """Slots of templates."""
    templates_before_days: int = 60
    """Days between the releases of a template and of the entry, at least."""

    draw_when_it_fits: bool = _fault()
    """A crop is drawn although every token fits."""
    biased_distances: bool = _fault()
    """A thousandth of an ångström for each token before it is added to a token's distance."""
    unresolved_fill: bool = _fault()
    """A spatial crop takes tokens that nobody saw where those seen are too few."""
    unstable_order: bool = _fault()
    """Rows of a species, and pairs of equal rank, stand as an unstable sort leaves them."""
    missing_ranks_first: bool = _fault()
    """A chain without the species counts as the best row when pairs are ranked."""
    query_twice: bool = _fault()
    """Where nothing pairs, the query stands in the paired and in the other rows."""
    fill_with_query: bool = _fault()
    """Rows of gaps in chains that are no protein are the query again."""
    clip_127: bool = _fault()
    """Deletions of more than 127 letters count as 127, in all but their mean."""
    filled_templates: bool = _fault()
    """Atoms that a template's residue cannot have, and all of an unknown one, are its N; slots
    behind a chain's templates, and behind the first of a chain without, are alanine."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, with the value in the message."""
        check_numbers(self, "crop_size", "max_rows_of_species", least=1)
        check_numbers(self, "max_rows", least=2)
        whole = ("max_templates", "templates_before_days")
        check_numbers(self, "interface_distance", "max_shift", *whole, least=0)
        _check_weights(self.crop_weights)


def _check_weights(weights: tuple[float, ...]) -> None:
    if len(weights) != 3 or min(weights) < 0 or not sum(weights) > 0:
        raise ValueError(f"crop_weights must be three, 0 or more, one above 0: {weights}")
