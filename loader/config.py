"""Settings of features and sampling of chains, complexes and entries: `LoaderConfig`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

from evofeed.base.configs import Config, check_dates, check_numbers
from evofeed.loader.views.config import BoltzConfig, OpenFold3Config, ProtenixConfig
from evofeed.loader.views.weights import WeightConfig
from evofeed.protein.features import MODEL_TEMPLATES

PRESETS = "initial_training finetuning prediction multimer openfold3 boltz protenix".split()
"""Class methods of `LoaderConfig` that return a model's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyConfig(Config):
    """Pairing, merging and cropping of the chains of a complex.

    The defaults are AlphaFold-Multimer's rules. Each bug of OpenFold's code is a field, and
    `openfold()` sets them all, except what cannot be reproduced: its unstable sorts of paired
    rows, and its arbitrary choice among residues without coordinates.
    """

    msa_rows: int = 2048
    """Maximum MSA rows of a chain, paired and unpaired together."""
    paired_rows: int = 1024
    """Maximum of these that are paired across chains."""
    min_rows: int = 512
    """The merged MSA is padded to this many rows, so that there is always an extra MSA."""
    max_species_rows: int = 600
    """Species with more rows than this in any chain are not paired."""
    max_templates: int = MODEL_TEMPLATES
    """Templates of each chain, the best ones first."""
    spatial_crop_prob: float = 0.5
    """Probability of a spatial crop around an interface residue; else it is contiguous."""
    interface_threshold: float = 10.0
    """Residues with an atom closer than this to another chain are interface residues; ångström."""

    shared_coordinates: bool = False
    """OpenFold gives every copy of a sequence the coordinates of the first (its issue 525).
    Default: each copy has its own."""
    lose_templates: bool = False
    """OpenFold's training crop misses `template_mask`, counts no templates and removes them all.
    Default: they are drawn as in the monomer."""
    mask_block_gaps: bool = False
    """OpenFold drops `bert_mask`, so that masked-MSA also selects the gaps of unpaired rows in the
    columns of other chains. Default: it does not."""
    same_atom_interface: bool = False
    """OpenFold measures distances between chains only from N to N, CA to CA and so on.
    Default: between all atoms."""
    skip_first_interface: bool = False
    """OpenFold treats a complex with residue 0 as its only interface residue as one without an
    interface. Default: the crop is around it."""
    biased_distances: bool = False
    """OpenFold adds 1e-3 ångström per residue index to the distances of a spatial crop, which also
    reorders near-equal ones. Default: exact distances; only ties are ordered by index."""
    missing_ca_at_origin: bool = False
    """OpenFold measures a spatial crop around a residue without CA from the origin. Default: from
    the mean of its atoms."""
    wrapped_products: bool = False
    """OpenFold orders paired rows by a product of row numbers in 64 bits, which overflows from
    seven chains on. Default: by the exact product."""

    def __post_init__(self) -> None:
        """Raises ValueError for invalid values."""
        check_numbers(self, "msa_rows", "min_rows", least=1)
        check_numbers(self, "paired_rows", "max_species_rows", "max_templates", least=0)
        check_numbers(self, "spatial_crop_prob", least=0, most=1)
        check_numbers(self, "interface_threshold", above=0, below=math.inf)

    @classmethod
    def openfold(cls, **changes: Any) -> AssemblyConfig:
        """OpenFold's behaviour (commit ce0029e), as far as it can be reproduced."""
        bugs = (field.name for field in dataclasses.fields(cls) if field.default is False)
        return cls(**{**dict.fromkeys(bugs, True), **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryConfig(Config):
    """A project, the configuration of its view, and filters of entries."""

    project: str = "openfold3"
    """`openfold3`, `boltz` or `protenix`: the section of an entry to read."""
    view: Any = field(default_factory=OpenFold3Config)
    """The project's configuration."""
    weights: WeightConfig = field(default_factory=WeightConfig)
    """Sampling weights of chains and interfaces."""
    max_chains: int = 300
    """Exclude entries with more valid chains."""
    max_tokens: int | None = None
    """Exclude entries with more tokens; None: no limit."""
    resolution_required: bool = False
    """Exclude entries without a resolution that are not by NMR, as OpenFold3 does."""
    slot_nbytes: int = 4 << 20
    """Shared memory of a prefetched sample; a larger sample is sent by the pipe, with a copy."""

    def __post_init__(self) -> None:
        """Raises ValueError for invalid values."""
        check_numbers(self, "max_chains", "max_tokens", "slot_nbytes", least=1)
        if self.project not in ("openfold3", "boltz", "protenix"):
            raise ValueError(f"no project {self.project!r}: openfold3, boltz or protenix")

    @classmethod
    def openfold3(cls, **view: Any) -> EntryConfig:
        """OpenFold3's first stage of training; 1,024 alignment rows, as its model uses."""
        config = OpenFold3Config(**{"used_rows": 1024, **view})
        return cls(project="openfold3", view=config, resolution_required=True)

    @classmethod
    def protenix(cls, **view: Any) -> EntryConfig:
        """Protenix's training."""
        return cls(project="protenix", view=ProtenixConfig(**view))

    @classmethod
    def boltz(cls, **view: Any) -> EntryConfig:
        """Boltz 1's training."""
        return cls(project="boltz", view=BoltzConfig(**view))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig(Config):
    """Sizes, probabilities and sampling rules of AlphaFold2 training (AF2 SI 1.2, 1.11)."""

    crop_size: int | None = 256
    """Residues in a batch; None: full chains (batch_size 1)."""
    max_msa_clusters: int = 128
    """Rows of `msa_feat`."""
    max_extra_msa: int = 1024
    """Rows of `extra_msa`."""
    max_templates: int = MODEL_TEMPLATES
    """Templates in a batch."""
    subsample_templates: bool = True
    """Draw the number and choice of templates, as in training; else the first ones."""
    num_blocks: int = 5
    """Blocks of MSA rows deleted; 0 deletes none."""
    block_fraction: float = 0.3
    """Size of one deleted block, as a fraction of the rows."""
    max_distillation_msa_clusters: int = 1000
    """Rows sampled from a distillation chain's MSA before clustering."""
    masked_fraction: float = 0.15
    """Fraction of the cells of the clustered MSA that masked-MSA selects."""
    uniform_prob: float = 0.1
    """Of the selected cells: replaced by a uniform amino acid."""
    profile_prob: float = 0.1
    """Of the selected cells: replaced by a draw from the column's profile."""
    same_prob: float = 0.1
    """Of the selected cells: unchanged. The rest becomes [MASK]."""
    max_recycling_iters: int = 3
    """The largest number of recycling iterations."""
    uniform_recycling: bool = True
    """Draw the iterations from 0 to the largest; else always the largest."""
    clamp_prob: float = 0.9
    """Probability of the clamped FAPE loss."""
    supervised: bool = True
    """Make the ground-truth structure features."""

    assemblies: AssemblyConfig | None = None
    """Make AlphaFold-Multimer's features, of complexes and of single chains; None: AlphaFold2's."""
    entries: EntryConfig | None = None
    """Make samples of full entries as in OpenFold3, Boltz or Protenix, which set the sizes."""

    batch_size: int = 1
    """Samples in one batch of one rank."""
    global_batch_size: int | None = None
    """Samples of one optimiser step over all ranks, which share the number of
    recycling iterations. None: batch_size times the world size. Set it to keep
    batches the same when the world size changes."""
    epoch_len: int | None = None
    """Samples in an epoch; None: every eligible chain once."""
    drop_last: bool = False
    """Drop the samples of an incomplete last optimiser step; else the next pass fills it."""
    shuffle_window: int | None = None
    """Number of neighbours in their shards that are shuffled together; about a shard's chains lets
    remote shards be read one by one. None: all chains; 0: no shuffling, in the index's order."""
    weighted: bool = False
    """Accept chains with AF2's length and cluster-size probabilities."""
    max_resolution: float = 9.0
    """Exclude structures of coarser resolution; ångström."""
    max_aa_fraction: float = 0.8
    """Exclude chains with a larger fraction of one amino acid."""
    allow_unknown: bool = True
    """Include chains with residues outside the twenty; OpenFold excludes them."""
    released_from: str = ""
    """Only chains released on this ISO date or later; empty: no limit."""
    released_until: str = ""
    """Only chains released on this ISO date or before, such as 2018-04-30; empty: no limit."""
    chains: tuple[str, ...] | None = None
    """Only these chains; None: all."""
    balance: bool = False
    """Run samples of similar cost at the same time on all ranks: for full chains."""
    balance_steps: int = 1
    """Optimiser steps whose samples are sorted by cost together."""
    max_bad_chains: int = 100
    """Maximum number of unreadable chains that are replaced; more of them raise an error."""
    outage_seconds: float = 900.0
    """Time without any answer of a storage that ends the run; until then reads are retried, first
    after a 1,800th of it."""

    def __post_init__(self) -> None:
        """Raises ValueError for invalid values."""
        check_numbers(self, "max_msa_clusters", "max_distillation_msa_clusters", least=1)
        check_numbers(self, "batch_size", "balance_steps", "global_batch_size", least=1)
        check_numbers(self, "epoch_len", "crop_size", least=1)
        check_numbers(self, "max_extra_msa", "max_templates", "num_blocks", least=0)
        check_numbers(self, "max_recycling_iters", "shuffle_window", "max_bad_chains", least=0)
        check_numbers(self, "outage_seconds", above=0)
        fractions = ("block_fraction", "masked_fraction", "clamp_prob")
        check_numbers(
            self, *fractions, "uniform_prob", "profile_prob", "same_prob", least=0, most=1
        )
        check_dates(self, "released_from", "released_until")
        if self.uniform_prob + self.profile_prob + self.same_prob > 1:
            raise ValueError("uniform_prob + profile_prob + same_prob is more than 1")
        if self.entries is not None and self.assemblies is not None:
            raise ValueError("entries and assemblies are features of two models: give one")
        if self.crop_size is None and self.batch_size > 1:
            raise ValueError("whole chains (crop_size=None) need batch_size=1")

    @classmethod
    def initial_training(cls, **changes: Any) -> LoaderConfig:
        """AF2's initial training: crop 256, 128 clusters, 1024 extra rows (SI table 4)."""
        return cls(**{"weighted": True, "allow_unknown": False, **changes})

    @classmethod
    def finetuning(cls, **changes: Any) -> LoaderConfig:
        """AF2's fine-tuning: crop 384, 512 clusters, 5120 extra rows (SI table 4)."""
        sizes = {"crop_size": 384, "max_msa_clusters": 512, "max_extra_msa": 5120}
        return cls.initial_training(**{**sizes, **changes})

    @classmethod
    def prediction(cls, **changes: Any) -> LoaderConfig:
        """Full chains as in OpenFold's `model_1`: no block deletion and no template sampling."""
        sizes: dict[str, Any] = {
            "crop_size": None,
            "max_msa_clusters": 512,
            "max_extra_msa": 5120,
            "num_blocks": 0,
            "max_distillation_msa_clusters": 1 << 30,
            "subsample_templates": False,
            "uniform_recycling": False,
            "clamp_prob": 0.0,
            "supervised": False,
            "max_resolution": float("inf"),
            "max_aa_fraction": 1.0,
        }
        return cls(**{**sizes, **changes})

    @classmethod
    def multimer(cls, **changes: Any) -> LoaderConfig:
        """AlphaFold-Multimer v3's training: crop 640, 508 clusters, 2,048 extra rows."""
        sizes: dict[str, Any] = {
            "crop_size": 640,
            "max_msa_clusters": 508,
            "max_extra_msa": 2048,
            "clamp_prob": 1.0,
            "assemblies": AssemblyConfig(),
        }
        return cls.initial_training(**{**sizes, **changes})

    @classmethod
    def multimer_prediction(cls, **changes: Any) -> LoaderConfig:
        """Full complexes, as in AlphaFold-Multimer v3's prediction."""
        sizes: dict[str, Any] = {
            "max_msa_clusters": 508,
            "max_extra_msa": 2048,
            "assemblies": AssemblyConfig(),
        }
        return cls.prediction(**{**sizes, **changes})

    @classmethod
    def openfold3(cls, **changes: Any) -> LoaderConfig:
        """OpenFold3's training on full entries: a crop of 384, entries before October 2021."""
        return cls._of_entries(EntryConfig.openfold3(), changes)

    @classmethod
    def boltz(cls, **changes: Any) -> LoaderConfig:
        """Boltz 1's training on full entries: a crop of 512, entries before October 2021."""
        return cls._of_entries(EntryConfig.boltz(), changes)

    @classmethod
    def protenix(cls, **changes: Any) -> LoaderConfig:
        """Protenix's training on full entries, those before October 2021."""
        return cls._of_entries(EntryConfig.protenix(), changes)

    @classmethod
    def _of_entries(cls, entries: EntryConfig, changes: dict[str, Any]) -> LoaderConfig:
        return cls(**{"entries": entries, "released_until": "2021-09-30", **changes})

    @classmethod
    def preset(cls, name: str, **changes: Any) -> LoaderConfig:
        """The preset of that name; `initial-training` means `initial_training`.

        Raises:
            ValueError: the name is unknown.
        """
        if (method := name.replace("-", "_")) not in PRESETS:
            raise ValueError(f"preset {name!r} is none of {', '.join(PRESETS)}")
        config: LoaderConfig = getattr(cls, method)(**changes)
        return config

    @property
    def of_chains(self) -> bool:
        """True if samples are AlphaFold2's, of single chains."""
        return self.assemblies is None and self.entries is None

    @property
    def digest(self) -> str:
        """sha256 of every field that determines the sample at a position.

        Batch sizes do not; the samples of an optimiser step are compared separately.
        """
        fields = dataclasses.asdict(self) | {"crop_first": False}  # so that older states resume
        for name in ("batch_size", "global_batch_size", "max_bad_chains", "outage_seconds"):
            del fields[name]
        if self.assemblies is None:  # of chains alone: the digest has no such field
            del fields["assemblies"]
        if self.entries is None:
            del fields["entries"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
