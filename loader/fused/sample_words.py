"""What the kernels must know about one sample: a block of 64-bit words behind its bytes.

Sizes, places of columns and keys of random draws change with every sample. As
arguments they would make Triton compile again and again, and a launch costs the
host more with each of them; so they are in the sample's slot and cross to the
device in the sample's own copy. `filling` says how they come about.
"""

from __future__ import annotations

from typing import NamedTuple

INT32, UINT8, UINT16, RANGE = range(4)
"""How a column of integers is stored."""


class Sample(NamedTuple):
    """Words of a sample. `*_at` is a byte of the slot's copy, `*_kind` how it is stored."""

    residues: int
    rows: int
    deletions: int
    pitch: int
    """Bytes of a row of codes in scratch memory."""
    crop_start: int
    crop_length: int
    out_residues: int
    out_centres: int
    out_extra: int
    out_templates: int
    sample: int
    """Its number in the batch of `batch` samples."""
    batch: int
    recycles: int
    max_rows: int
    """Most rows that any recycle keeps: the length of rows in scratch memory."""
    is_distillation: int
    masked_below: int
    uniform_below: int
    profile_below: int
    same_below: int
    recycles_at: int
    """Word where the first recycle's words begin, `recycle_words` each."""
    recycle_words: int
    aatype_at: int
    aatype_kind: int
    residue_index_at: int
    residue_index_kind: int
    profile_at: int
    profile_kind: int
    order_at: int
    order_kind: int
    deletion_row_at: int
    deletion_row_kind: int
    deletion_by_row: int
    deletion_column_at: int
    deletion_column_kind: int
    deletion_count_at: int
    deletion_count_kind: int
    msa_at: int
    msa_pitch: int
    """Bytes of a packed row; 0: one byte a code."""
    truth_residues: int
    """Residues with coordinates: the chain's, or none if the sample has no structure."""
    truth_mask_at: int
    truth_mask_packed: int
    truth_at: int
    truth_fixed: int
    truth_anchors: int
    truth_atoms: int
    truth_exceptions: int
    template_residues: int
    template_mask_at: int
    template_mask_packed: int
    template_at: int
    template_fixed: int
    template_anchors: int
    template_atoms: int
    template_exceptions: int
    template_center_at: int
    template_aatype_at: int
    template_aatype_pitch: int
    sum_probs_at: int
    chosen: int
    """Templates used; their numbers stand behind these words."""
    seq_length: int
    """Bits of a float, as the two below."""
    resolution: int
    use_clamped_fape: int


class Recycle(NamedTuple):
    """Words of one recycle; the spans of kept rows follow."""

    distillation_key: int
    distillation_count: int
    row_key: int
    row_count: int
    extra_key: int
    extra_count: int
    mask_key: int
    replacement_key: int
    rows: int
    """Rows it keeps: `centres`, then `extra_count`."""
    centres: int
    kept_extra: int


class RowSpans(NamedTuple):
    """Rows that block deletion left: `starts[i]` is the row of kept number `firsts[i]`."""

    firsts: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def kept(self) -> int:
        """Rows left; the last pair only marks the end."""
        return self.firsts[-1]
