"""Whose samples of whole entries a loader makes, and of which entries: `EntryConfig`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from evofeed.base.configs import Config, check_numbers
from evofeed.loader.views.boltz.config import BoltzConfig
from evofeed.loader.views.openfold3.config import OpenFold3Config
from evofeed.loader.views.protenix.config import ProtenixConfig
from evofeed.loader.views.weights import WeightConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryConfig(Config):
    """A project, its view's sizes and faults, and what of a dataset may be drawn."""

    project: str = "openfold3"
    """`openfold3`, `boltz` or `protenix`: whose section of an entry is read."""
    view: Any = field(default_factory=OpenFold3Config)
    """The project's own configuration."""
    weights: WeightConfig = field(default_factory=WeightConfig)
    """Factors of chains and interfaces."""
    max_chains: int = 300
    """Entries of more valid chains are left out."""
    max_tokens: int | None = None
    """Entries of more tokens are left out; None: no bound."""
    resolution_required: bool = False
    """Leave out entries without a resolution that are not by NMR, as OpenFold3 does."""
    slot_nbytes: int = 4 << 20
    """Shared memory of a sample under way; a larger one comes another way, and costs a copy."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, with the value in the message."""
        check_numbers(self, "max_chains", "max_tokens", "slot_nbytes", least=1)
        if self.project not in ("openfold3", "boltz", "protenix"):
            raise ValueError(f"no project {self.project!r}: openfold3, boltz or protenix")

    @classmethod
    def openfold3(cls, **view: Any) -> EntryConfig:
        """OpenFold3's first stage of training; 1,024 rows of an alignment, those its model uses."""
        made = OpenFold3Config(**{"used_rows": 1024, **view})
        return cls(project="openfold3", view=made, resolution_required=True)

    @classmethod
    def protenix(cls, **view: Any) -> EntryConfig:
        """Protenix's training."""
        return cls(project="protenix", view=ProtenixConfig(**view))

    @classmethod
    def boltz(cls, **view: Any) -> EntryConfig:
        """Boltz 1's training."""
        return cls(project="boltz", view=BoltzConfig(**view))
