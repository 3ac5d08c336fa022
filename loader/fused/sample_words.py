"""Description of one sample for the kernels: a block of 64-bit words behind its bytes.

Sizes, places of columns and keys of random draws change with every sample. As
arguments they would make Triton compile again and again, and a launch costs the
host more with each of them; so they are in the sample's slot and cross to the
device in the sample's own copy. `filling` says how they come about.
"""

from __future__ import annotations

from typing import Final, NamedTuple

INT32, UINT8, UINT16, RANGE = range(4)
"""How a column of integers is stored."""

INTEGERS: Final = {
    **{name: name for name in ("aatype", "residue_index", "deletion_row")},
    **{name: name for name in ("deletion_column", "deletion_count")},
    "profile": "hhblits_profile_counts",
    "order": "msa_order",
}
"""Columns of integers, by the names of their words: `*_at` and, behind it, `*_kind`."""
COORDINATES: Final = "residues mask_at mask_packed at fixed anchors atoms exceptions".split()
"""Words of the true structure and of templates; `residues` are those with coordinates."""

Sample = dict[str, int]
"""Words of a sample by name. `*_at` is a byte of the slot's copy."""
WORDS: Final = (
    *"residues rows deletions pitch crop_start crop_length".split(),
    *"out_residues out_centres out_extra out_templates sample batch recycles max_rows".split(),
    *"is_distillation masked_below uniform_below profile_below same_below".split(),
    *("recycles_at", "recycle_words"),
    *(f"{name}_{word}" for name in INTEGERS for word in ("at", "kind")),
    *("deletion_by_row", "msa_at", "msa_pitch"),
    *(f"{name}_{word}" for name in ("truth", "template") for word in COORDINATES),
    *"template_center_at template_aatype_at template_aatype_pitch sum_probs_at chosen".split(),
    *"seq_length resolution use_clamped_fape".split(),
)
"""Names of a sample's words in their order; the numbers of its `chosen` templates stand behind.

`pitch` are bytes of a row of codes in scratch memory, `max_rows` its rows: the most that any
recycle keeps. The words of the first recycle begin at `recycles_at`, `recycle_words` each. A
`*_pitch` is of a packed row, 0 for one byte a code; the last two are bits of floats.
"""


class Recycle(NamedTuple):
    """Words of one recycle, those of its spans last."""

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
    firsts: tuple[int, ...]
    """Spans of rows that block deletion left: `starts[i]` is the row of kept number `firsts[i]`."""
    starts: tuple[int, ...]

    @property
    def left(self) -> int:
        """Rows that block deletion left; the last span only marks the end."""
        return self.firsts[-1]


SPANS: Final = Recycle._fields.index("firsts")
"""Word of a recycle where its spans begin."""
