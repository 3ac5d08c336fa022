"""The record of one chain, which `featurize` makes, `store` stores and the loader reads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evofeed.base.errors import FeatureError
from evofeed.protein.features import RECORD, Feature
from evofeed.protein.residues import GAP, UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainRecord:
    """One protein chain with its alignment, templates and structure.

    Array fields are the rows of `RECORD` (shapes and dtypes there). A chain
    without a structure has `None` in the two structure arrays. `release_date`
    is ISO or empty, `resolution` in ångström, 0.0 if unknown. `dropped` lists parts left
    out, with reasons; `confidence` is the pLDDT of each residue of a prediction, to one
    decimal, -1 where it has none, and empty for other structures; `inputs` maps each input
    file to its sha256.
    """

    chain_id: str
    sequence: str
    description: str = ""
    aatype: np.ndarray
    residue_index: np.ndarray
    msa: np.ndarray
    deletion_row: np.ndarray
    deletion_column: np.ndarray
    deletion_count: np.ndarray
    msa_source: np.ndarray
    msa_sources: tuple[str, ...] = ()
    msa_species: tuple[str, ...] = ()
    hhblits_profile_counts: np.ndarray
    all_atom_positions: np.ndarray | None = None
    all_atom_mask: np.ndarray | None = None
    template_aatype: np.ndarray
    template_all_atom_positions: np.ndarray
    template_all_atom_mask: np.ndarray
    template_center: np.ndarray
    template_sum_probs: np.ndarray
    template_domain_names: tuple[str, ...] = ()
    template_sequence: tuple[str, ...] = ()
    template_release_date: tuple[str, ...] = ()
    resolution: float = 0.0
    release_date: str = ""
    method: str = ""
    is_distillation: bool = False
    confidence: tuple[float, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    config_digest: str = ""
    dropped: tuple[str, ...] = ()

    @classmethod
    def of_query(
        cls,
        chain_id: str,
        sequence: str,
        aatype: np.ndarray,
        residue_index: np.ndarray,
        **more: Any,
    ) -> ChainRecord:
        """A chain whose alignment is the query alone, without templates; `more` sets fields."""
        length, empty = len(sequence), np.zeros(0, np.int32)
        return cls(
            chain_id=chain_id,
            sequence=sequence,
            aatype=aatype,
            residue_index=residue_index,
            msa=aatype[None],
            deletion_row=empty,
            deletion_column=empty,
            deletion_count=empty,
            msa_source=np.zeros(1, np.uint8),
            msa_sources=("query",),
            msa_species=("",),
            hhblits_profile_counts=np.eye(GAP + 1, dtype=np.int32)[aatype],
            template_aatype=np.zeros([0, length], np.uint8),
            template_all_atom_positions=np.zeros([0, length, 37, 3], np.float32),
            template_all_atom_mask=np.zeros([0, length, 37], np.uint8),
            template_center=np.zeros([0, 3], np.float32),
            template_sum_probs=np.zeros(0, np.float32),
        ).replace(**more)

    @property
    def num_res(self) -> int:
        """Residues (L)."""
        return len(self.sequence)

    @property
    def num_alignments(self) -> int:
        """MSA rows (N), the query included."""
        return int(self.msa.shape[0])

    @property
    def num_templates(self) -> int:
        """Featurized templates (T)."""
        return int(self.template_aatype.shape[0])

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the ragged dimensions `L N K T`."""
        return {
            "L": self.num_res,
            "N": self.num_alignments,
            "K": int(self.deletion_count.shape[0]),
            "T": self.num_templates,
        }

    def deletion_matrix(self) -> np.ndarray:
        """Deletions left of each cell, dense `i32[N, L]`."""
        dense = np.zeros([self.num_alignments, self.num_res], np.int32)
        dense[self.deletion_row, self.deletion_column] = self.deletion_count
        return dense

    def validate(self) -> ChainRecord:
        """Check every array against the table and return self.

        Raises:
            FeatureError: a shape, dtype or value range is wrong; names the field.
        """
        sizes = self.sizes
        for feature in RECORD:
            value: Any = getattr(self, feature.name)
            if value is None and feature.stage == "structure":
                continue
            if feature.dtype == "str":
                _check(self, feature, len(value) == feature.shape(sizes)[0], len(value))
                continue
            _check(self, feature, isinstance(value, np.ndarray), type(value).__name__)
            _check(self, feature, value.dtype.name == feature.dtype, value.dtype.name)
            _check(self, feature, value.shape == feature.shape(sizes), value.shape)
        if (self.all_atom_positions is None) != (self.all_atom_mask is None):
            raise FeatureError("positions and mask must come together", item=self.chain_id)
        if len(self.confidence) not in (0, self.num_res):
            raise FeatureError(
                f"{len(self.confidence)} confidences of {self.num_res} residues", item=self.chain_id
            )
        if not self.num_alignments or self.msa.max(initial=0) > GAP or self.aatype.max() > UNKNOWN:
            raise FeatureError("codes out of range, or no MSA row", item=self.chain_id)
        return self

    def replace(self, **changes: Any) -> ChainRecord:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def _check(record: ChainRecord, feature: Feature, valid: bool, actual: object) -> None:
    if not valid:
        raise FeatureError(
            f"{feature.name} is {actual}, but the feature table says "
            f"{feature.dtype}{list(feature.shape(record.sizes))}",
            item=record.chain_id,
        )
