"""Sizes and faults of Boltz 1's features: `BoltzConfig`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from evofeed.base.configs import Config, check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltzConfig(Config):
    """Boltz 1's training configuration; its faults are fields, faithful by default."""

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
    """Add the inputs of label permutation, as Boltz's validation has them."""

    narrowed_deletions: bool = True
    """Only the query's deletions are counted."""
    reused_rows: bool = True
    """Rows that are paired come again among the unpaired ones."""
    pi_half: bool = True
    """`deletion_value` is pi/2 atan(d/3); AF3 has 2/pi."""
    profile_of_kept: bool = True
    """`profile` and `deletion_mean` are of the drawn rows, not of all."""
    padding_of_ones: bool = True
    """Padded cells of `msa` are ones in every class."""
    one_move: bool = True
    """All conformers of a sample are turned and moved together."""
    stop_at_first_overflow: bool = True
    """A crop ends at the first neighbourhood that does not fit."""
    first_combinations: bool = True
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

    def right(self) -> BoltzConfig:
        """The same without Boltz's faults."""
        faults = [f.name for f in dataclasses.fields(self) if f.default is True]
        return dataclasses.replace(self, **dict.fromkeys(faults, False))
