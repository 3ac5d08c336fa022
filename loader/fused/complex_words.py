"""What the kernels of complexes must know besides a `Sample` of the whole: blocks of words.

In their order: a block for each *member* (chains, rows to pair, the whole with its coordinates,
and last one that has only rows to shuffle), the whole complex's `Sample` with its recycles, then
`Complex` and an `EntityWords` for each sequence. Places in scratch memory are counted in values.
"""

from __future__ import annotations

from typing import NamedTuple


class MemberWords(NamedTuple):
    """Before the `Sample` of one record of a complex."""

    blocks: int
    """Programs that unpack it."""
    stored_at: int
    """Its rows in `stored` and `place`."""
    deletion_row_at: int
    xyz_at: int
    """Its first atom in `xyz` and `known`."""
    own_first: int
    """The first of its columns in the MSA's deletions."""


class Complex(NamedTuple):
    """Words of a sample's complex; `*_at` is a number of the reader's decisions."""

    num_res: int
    kept: int
    kept_at: int
    paired: int
    paired_at: int
    entities: int
    entity_words: int
    rows: int
    own_width: int
    """Columns of distinct sequences: copies share their deletions."""
    pitch: int
    """Bytes of a row of the merged MSA."""
    count_pitch: int
    """Rows of an order of all rows."""
    out_residues: int
    """Of the batch, as the next ones."""
    out_centres: int
    out_extra: int
    out_templates: int
    sample: int
    batch: int
    padded_centres: int
    """Centres that there are when the MSA is padded to the least number of rows."""
    asks_gaps: int
    """Masked-MSA may ask for gaps beside unpaired rows."""
    truth_at: int
    """The whole's first atom."""
    num_chains: int
    chosen: int
    """Templates; their numbers are those of the whole's `Sample`."""


class EntityWords(NamedTuple):
    """Words of one distinct sequence; a structure number for each template slot follows."""

    length: int
    own_first: int
    first_row: int
    """Row of the merged MSA where its unpaired rows begin."""
    unpaired: int
    unpaired_at: int
    chain_stored: int
    chain_msa_at: int
    chain_pitch: int
    pair_stored: int
    pair_msa_at: int
    pair_pitch: int
    template_aatype_at: int
    template_aatype_pitch: int
    xyz_at: int
