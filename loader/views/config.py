"""Settings of samples of OpenFold3, Boltz and Protenix; their faults are fields."""

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
"""Files of the main MSA, in order."""

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
"""Losses that count only for resolutions within `OpenFold3Config.resolutions`."""

_V = TypeVar("_V", bound="ViewConfig")


def _fault() -> Any:
    """A field that reproduces a fault of the project; on by default, for parity."""
    return field(default=True, metadata={"fault": True})


class ViewConfig(Config):
    """Settings of one sample of a project, with a field for each of its faults."""

    __slots__ = ()

    @classmethod
    def faults(cls) -> list[str]:
        """Names of the fields that reproduce a fault of the project."""
        return [f.name for f in fields(cls) if "fault" in f.metadata]  # type: ignore[arg-type]

    def right(self: _V) -> _V:
        """The same settings without the project's faults."""
        return self.replace(**dict.fromkeys(self.faults(), False))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFold3Config(ViewConfig):
    """Settings of a sample as in OpenFold3 0.5."""

    token_budget: int = 384
    """Tokens of a crop, and of the padded features."""
    crop_weights: tuple[float, float, float] = (0.2, 0.4, 0.4)
    """Contiguous, spatial, spatial around an interface; need not sum to 1."""
    max_chains: int | None = 20
    """Polymer chains of the chain crop; None for no chain crop."""
    interface_distance: float = 15.0
    """Ångström between token centres at an interface."""
    ligand_distance: float = 5.0
    """Ångström from a retained chain within which the chain crop includes ligands."""
    main_sources: tuple[str, ...] = MAIN_SOURCES
    """Files of the main MSA, in order."""
    pair_sources: tuple[str, ...] = ("uniprot_hits", "uniprot")
    """Files with species, in order."""
    max_rows: int = 16384
    """Rows of the MSA, the query included."""
    max_paired_rows: int = 8191
    """Paired rows, without the query."""
    min_paired_chains: int = 2
    """Sequences of a sample in which a species must occur to pair."""
    max_rows_of_species: int = 600
    """Rows of one species that may pair."""
    subsample_main: bool = True
    """Draw the number of rows, and the rows, of every chain's main MSA."""
    used_rows: int | None = None
    """Rows sent to the model, the query and paired rows included, drawn uniformly from all; None
    sends every row. The model draws 1,024 of those it was sent again for each pass."""
    max_templates: int = MODEL_TEMPLATES
    """Template slots; up to this number are drawn for each chain."""
    min_template_tokens: int = 5
    """Tokens in the crop that a chain with templates has, at least."""
    templates_before_days: int = 60
    """Days between the releases of a template and of the entry, at least."""
    loss_weights: tuple[tuple[str, float], ...] = tuple(LOSS_WEIGHTS.items())
    """Weight of every loss."""
    resolutions: tuple[float, float] = (0.1, 4.0)
    """Range of resolutions, ångström, for which confidence losses count."""

    ligands_cut_anywhere: bool = _fault()
    """A contiguous crop may cut a ligand; otherwise incomplete ligands are left out."""
    first_of_species: bool = _fault()
    """The first rows of a species with too many pair; otherwise none of them."""
    wrapped_products: bool = _fault()
    """Too many paired rows are sorted by 64-bit products that overflow; otherwise by logarithms."""
    sorted_then_cut: bool = _fault()
    """Drawn main rows are sorted before those over the limit are cut off; otherwise after."""
    query_twice: bool = _fault()
    """The query is among the main rows too; otherwise only in the first row."""
    unmasked_padding: bool = _fault()
    """Cells below a chain's last row, and columns without an alignment, are gaps with mask 1;
    otherwise their mask is 0, and the first row has the residue."""
    text_order: bool = _fault()
    """Chains are numbered by their names as text, 10 before 2; otherwise in their order."""

    def __post_init__(self) -> None:
        """Raises ValueError, with the value in the message, for settings that cannot work."""
        check_numbers(self, "token_budget", "max_rows", "min_paired_chains", least=1)
        check_numbers(self, "max_rows_of_species", "used_rows", least=1)
        templates = ("max_templates", "min_template_tokens", "templates_before_days")
        check_numbers(self, *templates, least=0)
        _check_weights(self.crop_weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltzConfig(ViewConfig):
    """Settings of a training sample as in Boltz 1."""

    max_tokens: int = 512
    """Tokens of a crop; features are padded to it."""
    max_atoms: int = 4608
    """Atoms of a crop, a multiple of 32; features are padded to it."""
    max_seqs: int = 2048
    """Rows of `msa`, at most; the number is drawn."""
    max_pairs: int = 8192
    """Paired rows, the queries included."""
    max_rows: int = 16384
    """Rows, paired and unpaired, before the draw."""
    max_neighborhood: int = 40
    """Largest neighbourhood of a token in a crop; the size is drawn from 0, 2, ... up to it."""
    pocket_prob: float = 0.3
    """Probability of a sample with a pocket feature."""
    pocket_cutoff: float = 6.0
    """Distance of a pocket's tokens from the binder, ångström."""
    pocket_geometric: float = 0.3
    """Parameter of the geometric distribution of the number of pocket tokens; 0 for all."""
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
    """Paired rows occur again among the unpaired ones."""
    pi_half: bool = _fault()
    """`deletion_value` is pi/2 atan(d/3); AF3 has 2/pi."""
    profile_of_kept: bool = _fault()
    """`profile` and `deletion_mean` are of the drawn rows, not of all."""
    padding_of_ones: bool = _fault()
    """Padded cells of `msa` are ones in every class."""
    one_move: bool = _fault()
    """All conformers of a sample are rotated and translated together."""
    stop_at_first_overflow: bool = _fault()
    """A crop ends at the first neighbourhood that does not fit."""
    first_combinations: bool = _fault()
    """Only the first 1,000 combinations of equal chains are tried."""

    def __post_init__(self) -> None:
        """Raises ValueError, with the value in the message, for settings that cannot work."""
        check_numbers(self, "max_tokens", "max_seqs", "max_pairs", "max_rows", least=1)
        check_numbers(self, "max_atoms", least=32)
        check_numbers(self, "num_bins", least=2)
        check_numbers(self, "max_neighborhood", "pocket_cutoff", "min_dist", "max_dist", least=0)
        check_numbers(self, "pocket_prob", "pocket_geometric", least=0, most=1)
        if self.max_atoms % 32:
            raise ValueError(f"max_atoms must be a multiple of 32, not {self.max_atoms}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtenixConfig(ViewConfig):
    """Settings of a sample as in Protenix 2.0."""

    crop_size: int = 384
    """Tokens of a crop, at most."""
    crop_weights: tuple[float, float, float] = (0.2, 0.4, 0.4)
    """Contiguous, spatial, spatial around an interface; need not sum to 1."""
    interface_distance: float = 15.0
    """Ångström between token centres at an interface."""
    whole_residues: bool = True
    """A residue split into atoms is in a crop completely or not at all."""
    drop_last: bool = True
    """The last residue of a contiguous crop is dropped if it does not fit, otherwise it is cut."""
    remove_metal: bool = True
    """Chains of one atom are not in contiguous crops."""
    min_resolved: int = 5
    """Resolved atoms of a contiguous crop, at least."""
    pair_sources: tuple[str, ...] = ("pairing",)
    """Files whose rows pair by species, in order."""
    main_sources: tuple[str, ...] = ("pairing", "non_pairing")
    """Files of a protein's other rows, in order."""
    rna_sources: tuple[str, ...] = ("rna",)
    """Files of an RNA's rows, in order."""
    max_rna_rows: int = 30000
    """Rows of an RNA's file that are read, at most."""
    max_rows: int = 16384
    """Rows of the MSA; paired rows are at most half of them."""
    max_rows_of_species: int = 600
    """Rows of one species that may pair."""
    min_columns: int = 5
    """Chains of shorter sequences have only the query."""
    max_shift: float = 1.0
    """Largest translation of a conformer along each axis, ångström."""
    shuffle_molecules: bool = False
    """Molecules are in random order."""
    shuffle_copies: bool = False
    """Copies of an entity are numbered in random order."""
    rename_ligand_atoms: bool = False
    """Atoms of ligands are named by element and number."""
    templates: bool = False
    """Template features for models with a template embedder; otherwise the empty ones of a data
    set without templates, which no model reads."""
    max_templates: int = 4
    """Template slots."""
    templates_before_days: int = 60
    """Days between the releases of a template and of the entry, at least."""

    draw_when_it_fits: bool = _fault()
    """A crop is drawn although every token fits."""
    biased_distances: bool = _fault()
    """A token's distance is increased by 0.001 ångström for each token before it."""
    unresolved_fill: bool = _fault()
    """A spatial crop has unresolved tokens where there are too few resolved ones."""
    unstable_order: bool = _fault()
    """Rows of a species, and pairs of equal rank, are in the order of an unstable sort."""
    missing_ranks_first: bool = _fault()
    """A chain without the species counts as the best row when pairs are ranked."""
    query_twice: bool = _fault()
    """Where nothing pairs, the query is among the paired and the other rows."""
    fill_with_query: bool = _fault()
    """Rows of gaps in chains that are not proteins are replaced by the query."""
    clip_127: bool = _fault()
    """Deletions of more than 127 letters count as 127, except in their mean."""
    filled_templates: bool = _fault()
    """Atoms that a template's residue cannot have, and all of an unknown one, are its N; slots
    after a chain's templates, and after the first of a chain without, are alanine."""

    def __post_init__(self) -> None:
        """Raises ValueError, with the value in the message, for settings that cannot work."""
        check_numbers(self, "crop_size", "max_rows_of_species", least=1)
        check_numbers(self, "max_rows", least=2)
        templates = ("max_templates", "templates_before_days")
        check_numbers(self, "interface_distance", "max_shift", *templates, least=0)
        _check_weights(self.crop_weights)


def _check_weights(weights: tuple[float, ...]) -> None:
    if len(weights) != 3 or min(weights) < 0 or not sum(weights) > 0:
        raise ValueError(f"crop_weights must be three numbers >= 0, not all 0: {weights}")
