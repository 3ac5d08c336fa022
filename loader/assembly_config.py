"""What the loader does with complexes where AlphaFold-Multimer and OpenFold leave a choice.

The defaults are AlphaFold-Multimer's rules. Where OpenFold's code departs from what it means to
do, a field here says how, and `openfold()` sets them all; what cannot be reproduced (its unstable
sorts of paired rows, its arbitrary choice among residues without coordinates) is not a field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from evofeed.base.configs import Config, check_numbers
from evofeed.protein.features import MODEL_TEMPLATES


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyConfig(Config):
    """Pairing, merging and cropping of the chains of a complex."""

    msa_rows: int = 2048
    """MSA rows a chain brings, paired and unpaired together."""
    paired_rows: int = 1024
    """Of these, rows that are paired across chains, at most."""
    min_rows: int = 512
    """The merged MSA is padded to so many rows, so that there is always an extra MSA."""
    max_species_rows: int = 600
    """A species with more rows than this in any chain is not paired."""
    max_templates: int = MODEL_TEMPLATES
    """Templates of each chain, the best ones first."""
    spatial_crop_prob: float = 0.5
    """Of crops around a residue of an interface; the others are runs of residues of each chain."""
    interface_threshold: float = 10.0
    """A residue with an atom nearer than this to another chain's is of an interface; ångström."""

    shared_coordinates: bool = False
    """OpenFold gives every copy of a sequence the coordinates of the first (its issue 525).
    Ours: each its own."""
    lose_templates: bool = False
    """OpenFold's training crop finds no `template_mask`, counts no templates and cuts them all
    away. Ours: they are drawn as in the monomer."""
    mask_block_gaps: bool = False
    """OpenFold drops `bert_mask`, so that masked-MSA also asks for the gaps beside each chain's
    unpaired rows. Ours: it does not."""
    same_atom_interface: bool = False
    """OpenFold measures distances between chains only from N to N, CA to CA and so on.
    Ours: between all atoms."""
    skip_first_interface: bool = False
    """OpenFold takes a complex whose only interface residue is the first for one without any,
    and crops runs. Ours: it is cropped around."""
    biased_distances: bool = False
    """OpenFold adds 1e-3 ångström a residue index to the distances of a spatial crop, which also
    reorders near-equal ones. Ours: exact distances, and the index only among equal ones."""
    missing_ca_at_origin: bool = False
    """OpenFold measures a spatial crop around a residue without CA from the origin. Ours: from
    the middle of its atoms."""
    wrapped_products: bool = False
    """OpenFold orders paired rows by a product of row numbers in 64 bits, which wraps round from
    seven chains on. Ours: by the exact product."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, with the value in the message."""
        check_numbers(self, "msa_rows", "min_rows", least=1)
        check_numbers(self, "paired_rows", "max_species_rows", "max_templates", least=0)
        check_numbers(self, "spatial_crop_prob", least=0, most=1)
        check_numbers(self, "interface_threshold", above=0, below=math.inf)

    @classmethod
    def openfold(cls, **changes: Any) -> AssemblyConfig:
        """OpenFold's behaviour (commit ce0029e), as far as it can be reproduced."""
        preset: dict[str, Any] = {
            "shared_coordinates": True,
            "lose_templates": True,
            "mask_block_gaps": True,
            "same_atom_interface": True,
            "skip_first_interface": True,
            "biased_distances": True,
            "missing_ca_at_origin": True,
            "wrapped_products": True,
        }
        return cls(**{**preset, **changes})
