"""The feature table: the arrays of a chain record and of a batch.

Features are data: the rows of `FEATURES.md`. Parsers fill those of `RECORD`, the store derives its
columns from them, the loader sizes its batches by `BATCH`, tests walk over both. Names are those
of AlphaFold2 and OpenFold.

Dimensions: `L` residues, `N` MSA rows, `K` non-zero deletions, `T` templates of
the chain; `S` clustered MSA rows, `E` extra MSA rows, `Tm` templates in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SIZES: Final = {
    "atom37": 37,
    "atom14": 14,
    "xyz": 3,
    "restype22": 22,
    "group8": 8,
    "torsion7": 7,
    "chi4": 4,
    "sincos": 2,
    "four": 4,
    "one": 1,
    "msa49": 49,
    "target22": 22,
    "target21": 21,
}
"""Dimensions whose size is fixed by the field, by name."""
MODEL_TEMPLATES: Final = 4
"""Templates that AF2's and its successors' models see at a time (AF2 SI 1.2.3)."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the table.

    Attributes:
        name: as in AF2 and OpenFold, if they have the feature.
        dims: axis names, outermost first; `()` is a scalar.
        dtype: numpy dtype name, or `str` for text.
        unit: of the values, or their meaning.
        stage: `chain` (stored, full length), `structure` or `template` (stored
            where known), `batch` (made by the loader, same in all recycles) or
            `recycle` (made for each recycle).
        source: parser or transform that makes it.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    unit: str
    stage: str
    source: str

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Concrete shape for given sizes of the ragged dimensions."""
        return tuple(sizes[d] if d in sizes else _SIZES[d] for d in self.dims)


def _read_tables() -> list[tuple[Feature, ...]]:
    """The tables of `FEATURES.md`, one under each heading of the second level."""
    tables: list[list[Feature]] = []
    for line in Path(__file__).with_name("FEATURES.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            tables.append([])
        elif line.startswith("| `"):
            name, shape, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            dims = tuple(shape.strip("[]").replace(",", " ").split())
            tables[-1].append(Feature(name.strip("`"), dims, *rest))
    return [tuple(table) for table in tables]


RECORD, BATCH, ASSEMBLY_BATCH = _read_tables()
"""`RECORD`: arrays of a chain record, as stored: full length, nothing padded.

`BATCH`: tensors of one sample as the model gets them, without batch and recycling axes; padding
is 0. `ASSEMBLY_BATCH`: as `BATCH`, for a complex (AlphaFold-Multimer); a batch of complexes also
has `gt_features`, the uncropped truth, from which a permutation of equal chains is chosen."""

SUPERVISED: Final = tuple(
    """all_atom_positions all_atom_mask atom14_gt_exists atom14_gt_positions
    atom14_alt_gt_positions atom14_alt_gt_exists atom14_atom_is_ambiguous rigidgroups_gt_frames
    rigidgroups_gt_exists rigidgroups_group_exists rigidgroups_group_is_ambiguous
    rigidgroups_alt_gt_frames pseudo_beta pseudo_beta_mask backbone_rigid_tensor
    backbone_rigid_mask chi_angles_sin_cos chi_mask""".split()
)
"""Features of `BATCH` that need a true structure, in the table's order."""
