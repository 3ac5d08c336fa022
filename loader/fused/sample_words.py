"""Layout of the 64-bit words that describe one sample to the kernels, after its bytes.

Sizes, column offsets and random keys change with every sample. As kernel arguments
they would make Triton recompile, and each argument adds to the launch cost on the
host; so they are in the sample's slot and cross to the device in the sample's own
copy. `filling` computes them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

INT32, UINT8, UINT16, RANGE = range(4)
"""Storage kinds of a column of integers."""

INTEGERS: Final = {
    **{name: name for name in ("aatype", "residue_index", "deletion_row")},
    **{name: name for name in ("deletion_column", "deletion_count")},
    "profile": "hhblits_profile_counts",
    "order": "msa_order",
}
"""Stored columns of integers by word prefix: words `*_at` (offset), then `*_kind`."""
COORDINATES: Final = "residues mask_at mask_packed at fixed anchors atoms exceptions".split()
"""Words of the true structure and of templates; `residues` counts those with coordinates."""

Sample = dict[str, int]
"""Words of a sample by name. `*_at` is a byte offset in the slot's copy."""
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
"""Names of a sample's words in order; the numbers of its `chosen` templates follow.

`pitch` is the bytes of a row of codes in scratch memory, `max_rows` the rows there: the maximum
over the recycles. The words of the first recycle begin at `recycles_at`, `recycle_words` each. A
`*_pitch` is of a packed row, 0 for one byte a code; the last two are bits of floats.
"""


class Recycle(NamedTuple):
    """Words of one recycle; the spans of rows come last."""

    distillation_key: int
    distillation_count: int
    row_key: int
    row_count: int
    extra_key: int
    extra_count: int
    mask_key: int
    replacement_key: int
    rows: int
    """Rows of the recycle: `centres` cluster centres, then `extra_count` extra rows."""
    centres: int
    kept_extra: int
    firsts: tuple[int, ...]
    """Spans of rows after block deletion: `starts[i]` is the row of remaining row `firsts[i]`."""
    starts: tuple[int, ...]

    @property
    def remaining(self) -> int:
        """Rows after block deletion; the last span only marks the end."""
        return self.firsts[-1]


SPANS: Final = Recycle._fields.index("firsts")
"""Offset in a recycle's words where its spans begin."""
