"""Sizes of the model and weights of the losses; defaults are AF2's initial training.

Field names are OpenFold's. Source: AF2 SI 1.6 to 1.9 and table 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from evofeed.base.configs import check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RecyclingConfig:
    """Distance bins of the recycled structure."""

    min_bin: float = 3.25
    """First lower edge, ångström."""
    max_bin: float = 20.75
    """Last lower edge, ångström."""
    no_bins: int = 15
    inf: float = 1e8
    """Upper edge of the last bin, squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateConfig:
    """The template embedder."""

    c_t: int = 64
    """Channels of a template's pair representation."""
    c_hidden_tri_att: int = 16
    c_hidden_tri_mul: int = 64
    no_blocks: int = 2
    no_heads: int = 4
    pair_transition_n: int = 2
    dropout_rate: float = 0.25
    tri_mul_first: bool = False
    fuse_projection_weights: bool = False
    c_hidden_pointwise: int = 16
    no_heads_pointwise: int = 4
    min_bin: float = 3.25
    max_bin: float = 50.75
    no_bins: int = 39
    inf: float = 1e5
    """Mask value of the pointwise attention and last squared distance edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """Stacks of blocks on an MSA and pairs."""

    no_blocks: int
    c_hidden_msa_att: int
    no_heads_msa: int = 8
    c_hidden_opm: int = 32
    c_hidden_mul: int = 128
    c_hidden_pair_att: int = 32
    no_heads_pair: int = 4
    transition_n: int = 4
    msa_dropout: float = 0.15
    """Rate of the rowwise dropout after the row attention."""
    pair_dropout: float = 0.25
    """Rate of the dropouts in the pair stack."""
    opm_first: bool = False
    """Compute the outer product mean before the MSA updates."""
    fuse_projection_weights: bool = False
    inf: float = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraMSAConfig(StackConfig):
    """The extra-MSA stack."""

    c_e: int = 64
    """Channels of the extra MSA."""
    no_blocks: int = 4
    c_hidden_msa_att: int = 8
    eps: float = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class EvoformerConfig(StackConfig):
    """The Evoformer trunk."""

    no_blocks: int = 48
    c_hidden_msa_att: int = 32
    no_column_attention: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureModuleConfig:
    """The structure module."""

    c_ipa: int = 16
    c_resnet: int = 128
    no_heads_ipa: int = 12
    no_qk_points: int = 4
    no_v_points: int = 8
    dropout_rate: float = 0.1
    no_blocks: int = 8
    no_transition_layers: int = 1
    no_resnet_blocks: int = 2
    no_angles: int = 7
    trans_scale_factor: float = 10.0
    epsilon: float = 1e-8
    inf: float = 1e5


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimerConfig:
    """Settings of the model of complexes. Source: AlphaFold-Multimer, Evans et al. 2021."""

    use_chain_relative: bool = True
    """Embed also if two residues are of one chain and of one entity, and their copies' numbers."""
    max_relative_chain: int = 2
    """Relative numbers of copies are clipped here."""
    ptm_weight: float = 0.2
    """Weight of pTM in the score that ranks predictions."""
    iptm_weight: float = 0.8
    """Weight of ipTM in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Settings that determine the parameters of the model and its computation."""

    c_m: int = 256
    """Channels of the MSA representation."""
    c_z: int = 128
    """Channels of the pair representation."""
    c_s: int = 384
    """Channels of the single representation."""
    tf_dim: int = 22
    """Channels of target_feat."""
    msa_dim: int = 49
    """Channels of msa_feat."""
    relpos_k: int = 32
    """Relative positions are clipped here."""
    recycling: RecyclingConfig = field(default_factory=RecyclingConfig)
    template: TemplateConfig | None = field(default_factory=TemplateConfig)
    """None omits the template embedder (AF2 models 3 to 5)."""
    extra_msa: ExtraMSAConfig = field(default_factory=ExtraMSAConfig)
    evoformer: EvoformerConfig = field(default_factory=EvoformerConfig)
    structure_module: StructureModuleConfig = field(default_factory=StructureModuleConfig)
    multimer: MultimerConfig | None = None
    """None: the model of single chains, not of complexes."""
    c_hidden_plddt: int = 128
    plddt_bins: int = 50
    distogram_bins: int = 64
    tm_bins: int | None = None
    """Bins of the aligned-error head; None omits the head (all but the pTM models)."""
    mask_trans: bool = False
    """Mask the transitions too; AF2 does not."""
    activation_checkpointing: bool = False
    """Recompute each block's activations in the backward pass (less memory, more time)."""

    def __post_init__(self) -> None:
        _check_sizes(self)


def _check_sizes(config: Any, prefix: str = "") -> None:
    """Raises ValueError for an integer below 1 or a dropout rate outside [0, 1)."""
    for item in fields(config):
        name, value = prefix + item.name, getattr(config, item.name)
        if is_dataclass(value):
            _check_sizes(value, f"{name}.")
        elif type(value) is int and value < 1:
            raise ValueError(f"{name} must be at least 1, is {value}")
        elif "dropout" in name and not 0 <= value < 1:
            raise ValueError(f"{name} must be in [0, 1), is {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Weight of each term and the constants inside. Source: AF2 SI 1.9, equation 7."""

    fape: float = 1.0
    fape_backbone: float = 0.5
    fape_sidechain: float = 0.5
    fape_clamp_distance: float = 10.0
    """Ångström."""
    fape_length_scale: float = 10.0
    """Ångström."""
    fape_interface: float = 0.5
    """Of frames and atoms of different chains; `fape_backbone` is then that within chains."""
    fape_interface_clamp_distance: float = 30.0
    """Ångström."""
    fape_interface_length_scale: float = 20.0
    """Ångström."""
    chain_center_of_mass: float = 1.0
    """Only complexes. OpenFold has 0.05 here too, and so applies its scale twice."""
    chain_center_of_mass_scale: float = 0.05
    """Per ångström that two chains are too close."""
    chain_center_of_mass_clamp_distance: float = -4.0
    """Ångström that two chains may be closer than in the truth without a loss, negative."""
    supervised_chi: float = 1.0
    chi_weight: float = 0.5
    angle_norm_weight: float = 0.01
    distogram: float = 0.3
    distogram_min_bin: float = 2.3125
    distogram_max_bin: float = 21.6875
    masked_msa: float = 2.0
    plddt_loss: float = 0.01
    plddt_cutoff: float = 15.0
    experimentally_resolved: float = 0.0
    violation: float = 0.0
    violation_tolerance_factor: float = 12.0
    """Standard deviations that a bond length or angle may deviate."""
    clash_overlap_tolerance: float = 1.5
    """Ångström two atoms may overlap."""
    average_clashes: bool = False
    """Divide an atom's clash loss by its number of clashes; AF2-multimer does."""
    bonds_across_chains: bool = False
    """As OpenFold: expect a peptide bond between consecutive residue numbers of two chains too."""
    same_number_never_clashes: bool = False
    """As OpenFold and AF2: ignore clashes of residues with one number in different chains."""
    ca_c_n_angle_stddev: float = 0.014
    """Of cos(CA-C-N). 0.014 as in OpenFold and in AF2 before 2025-09; AF2 now has 0.0311."""
    tm: float = 0.0
    tm_max_bin: float = 31.0
    min_resolution: float = 0.1
    """Ångström; confidence losses count only between this and `max_resolution`."""
    max_resolution: float = 3.0
    eps: float = 1e-8

    def __post_init__(self) -> None:
        names = [item.name for item in fields(self)]
        names.remove("chain_center_of_mass_clamp_distance")
        check_numbers(self, *names, least=0)
