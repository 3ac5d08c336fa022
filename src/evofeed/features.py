"""The feature table: what a protein chain is made of, here and on the GPU.

Features are data. Parsers fill the rows of `RECORD`, the store derives its
columns from them, the loader sizes its batches by `BATCH`, tests walk over both, and the
docs are printed from them. Names are AlphaFold2's and OpenFold's own.

Dimensions: `L` residues, `N` MSA rows, `K` non-zero deletions, `T` templates of
the chain; `S` clustered MSA rows, `E` extra MSA rows, `Tm` templates in a batch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from evofeed.errors import FeatureError
from evofeed.residues import GAP, UNKNOWN

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


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the table.

    Attributes:
        name: AF2/OpenFold's name, or ours where they have none.
        dims: axis names, outermost first; `()` is a scalar.
        dtype: numpy dtype name, or `str` for text.
        unit: what a number means.
        stage: `chain` (stored, full length), `structure` or `template` (stored
            where known), `batch` (made by the loader, same in all recycles) or
            `recycle` (made for each recycle).
        source: where it comes from.
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


def _rows(stage: str, text: str) -> tuple[Feature, ...]:
    features = []
    for line in text.strip().splitlines():
        name, dims, dtype, unit, source = (part.strip() for part in line.split("|"))
        axes = tuple(dims.split()) if dims != "-" else ()
        features.append(Feature(name, axes, dtype, unit, stage, source))
    return tuple(features)


RECORD: Final = (
    *_rows(
        "chain",
        """
        aatype                 | L             | uint8   | restype 0-20         | sequence
        residue_index          | L             | int32   | position from 0      | arange(L)
        msa                    | N L           | uint8   | restype 0-21         | alignments, query first, rows unique
        deletion_row           | K             | int32   | MSA row              | insertions, ordered by row then column
        deletion_column        | K             | int32   | residue              | insertions
        deletion_count         | K             | int32   | residues             | insertions left of the column
        msa_source             | N             | uint8   | index of msa_sources | the file a row came from
        msa_species            | N             | str     | UniProt mnemonic     | row header, empty if none
        hhblits_profile_counts | L restype22   | int32   | rows                 | occurrences of each code over all N rows
        """,
    ),
    *_rows(
        "structure",
        """
        all_atom_positions     | L atom37 xyz  | float32 | ångström             | mmCIF _atom_site, model 1
        all_atom_mask          | L atom37      | uint8   | 0 or 1               | mmCIF _atom_site, model 1
        """,
    ),
    *_rows(
        "template",
        """
        template_aatype              | T L            | uint8   | restype 0-21 | hit alignment
        template_all_atom_positions  | T L atom37 xyz | float32 | ångström     | hit's mmCIF, minus template_center
        template_all_atom_mask       | T L atom37     | uint8   | 0 or 1       | hit's mmCIF
        template_center              | T xyz          | float32 | ångström     | mean of the template chain's atoms
        template_sum_probs           | T              | float32 | 1            | hhr Sum_probs, 0 for hmmsearch
        template_domain_names        | T              | str     | PDB id_chain | hit name
        template_sequence            | T              | str     | letters      | hit alignment
        template_release_date        | T              | str     | ISO date     | hit's mmCIF
        """,
    ),
)
"""Arrays of a chain record, as stored: full length, nothing padded."""

BATCH: Final = (
    *_rows(
        "batch",
        """
        aatype                             | L                   | int64   | restype 0-20 | record
        residue_index                      | L                   | int64   | position     | record
        seq_length                         | -                   | int64   | residues     | residues, after the crop
        seq_mask                           | L                   | float32 | 0 or 1       | 1 for a real residue
        target_feat                        | L target22          | float32 | one-hot      | AF2 SI 1.2.9
        resolution                         | -                   | float32 | ångström     | record, 0 if unknown
        is_distillation                    | -                   | float32 | 0 or 1       | record
        use_clamped_fape                   | -                   | float32 | 0 or 1       | Bernoulli(0.9), AF2 SI 1.11.5
        all_atom_positions                 | L atom37 xyz        | float32 | ångström     | record
        all_atom_mask                      | L atom37            | float32 | 0 or 1       | record
        atom14_atom_exists                 | L atom14            | float32 | 0 or 1       | residue geometry
        residx_atom14_to_atom37            | L atom14            | int64   | atom37 index | residue geometry
        residx_atom37_to_atom14            | L atom37            | int64   | atom14 slot  | residue geometry
        atom37_atom_exists                 | L atom37            | float32 | 0 or 1       | residue geometry
        atom14_gt_exists                   | L atom14            | float32 | 0 or 1       | AF2 SI 1.8.1
        atom14_gt_positions                | L atom14 xyz        | float32 | ångström     | AF2 SI 1.8.1
        atom14_alt_gt_positions            | L atom14 xyz        | float32 | ångström     | AF2 SI 1.8.5
        atom14_alt_gt_exists               | L atom14            | float32 | 0 or 1       | AF2 SI 1.8.5
        atom14_atom_is_ambiguous           | L atom14            | float32 | 0 or 1       | AF2 SI table 3
        rigidgroups_gt_frames              | L group8 four four  | float32 | ångström     | AF2 SI 1.8.1
        rigidgroups_gt_exists              | L group8            | float32 | 0 or 1       | AF2 SI 1.8.1
        rigidgroups_group_exists           | L group8            | float32 | 0 or 1       | residue geometry
        rigidgroups_group_is_ambiguous     | L group8            | float32 | 0 or 1       | AF2 SI table 3
        rigidgroups_alt_gt_frames          | L group8 four four  | float32 | ångström     | AF2 SI 1.8.5
        pseudo_beta                        | L xyz               | float32 | ångström     | CB, CA for glycine
        pseudo_beta_mask                   | L                   | float32 | 0 or 1       | record
        backbone_rigid_tensor              | L four four         | float32 | ångström     | rigid group 0
        backbone_rigid_mask                | L                   | float32 | 0 or 1       | rigid group 0
        chi_angles_sin_cos                 | L chi4 sincos       | float32 | 1            | AF2 SI 1.9.1
        chi_mask                           | L chi4              | float32 | 0 or 1       | AF2 SI 1.9.1
        template_aatype                    | Tm L                | int64   | restype 0-21 | record
        template_all_atom_positions        | Tm L atom37 xyz     | float32 | ångström     | record
        template_all_atom_mask             | Tm L atom37         | float32 | 0 or 1       | record
        template_sum_probs                 | Tm one              | float32 | 1            | record
        template_mask                      | Tm                  | float32 | 0 or 1       | 1 for a real template
        template_pseudo_beta               | Tm L xyz            | float32 | ångström     | CB, CA for glycine
        template_pseudo_beta_mask          | Tm L                | float32 | 0 or 1       | record
        template_torsion_angles_sin_cos    | Tm L torsion7 sincos | float32 | 1           | AF2 SI 1.2.9
        template_alt_torsion_angles_sin_cos | Tm L torsion7 sincos | float32 | 1          | AF2 SI 1.2.9
        template_torsion_angles_mask       | Tm L torsion7       | float32 | 0 or 1       | AF2 SI 1.2.9
        """,
    ),
    *_rows(
        "recycle",
        """
        msa_feat             | S L msa49 | float32 | mixed        | AF2 SI 1.2.9, table 1
        msa_mask             | S L       | float32 | 0 or 1       | 1 for a real cell
        msa_row_mask         | S         | float32 | 0 or 1       | 1 for a real row
        bert_mask            | S L       | float32 | 0 or 1       | 1 where masked-MSA asks
        true_msa             | S L       | int64   | restype 0-21 | rows before masking
        extra_msa            | E L       | int64   | restype 0-21 | rows that are no cluster centre
        extra_msa_mask       | E L       | float32 | 0 or 1       | 1 for a real cell
        extra_msa_row_mask   | E         | float32 | 0 or 1       | 1 for a real row
        extra_has_deletion   | E L       | float32 | 0 or 1       | deletions, AF2 SI table 1
        extra_deletion_value | E L       | float32 | 2/pi atan(d/3) | deletions, AF2 SI table 1
        """,
    ),
)
"""Tensors of one sample as the model gets them, without batch and recycling axes; padding is 0."""

ASSEMBLY_BATCH: Final = (
    *_rows(
        "batch",
        """
        aatype                      | L              | int64   | restype 0-20 | record
        residue_index               | L              | int64   | position     | from 0 in every chain
        asym_id                     | L              | int64   | chain, from 1 | chains by entity, 0 is padding
        entity_id                   | L              | int64   | sequence, from 1 | in order of first sight
        sym_id                      | L              | int64   | copy, from 1 | number among equal chains
        seq_length                  | -              | int64   | residues     | residues, after the crop
        seq_mask                    | L              | float32 | 0 or 1       | 1 for a real residue
        target_feat                 | L target21     | float32 | one-hot      | aatype
        msa_profile                 | L restype22    | float32 | share        | over all rows of the merged MSA
        num_alignments              | -              | int64   | rows         | of the merged MSA
        assembly_num_chains         | -              | int64   | chains       | assembly
        resolution                  | -              | float32 | ångström     | record, 0 if unknown
        is_distillation             | -              | float32 | 0 or 1       | record
        use_clamped_fape            | -              | float32 | 0 or 1       | Bernoulli(clamp_prob)
        all_atom_positions          | L atom37 xyz   | float32 | ångström     | assembly, before any permutation
        all_atom_mask               | L atom37       | float32 | 0 or 1       | assembly
        atom14_atom_exists          | L atom14       | float32 | 0 or 1       | residue geometry
        residx_atom14_to_atom37     | L atom14       | int64   | atom37 index | residue geometry
        residx_atom37_to_atom14     | L atom37       | int64   | atom14 slot  | residue geometry
        atom37_atom_exists          | L atom37       | float32 | 0 or 1       | residue geometry
        template_aatype             | Tm L           | int64   | restype 0-21 | record, chain by chain
        template_all_atom_positions | Tm L atom37 xyz | float32 | ångström    | record, chain by chain
        template_all_atom_mask      | Tm L atom37    | float32 | 0 or 1       | record, chain by chain
        template_mask               | Tm             | float32 | 0 or 1       | 1 for a slot of templates
        """,
    ),
    *_rows(
        "recycle",
        """
        msa                   | S L       | int64   | restype 0-22 | cluster centres, masked
        msa_feat              | S L msa49 | float32 | mixed        | AF2 SI 1.2.9, table 1
        msa_mask              | S L       | float32 | 0 or 1       | 1 for a real cell
        bert_mask             | S L       | float32 | 0 or 1       | 1 where masked-MSA asks
        true_msa              | S L       | int64   | restype 0-21 | rows before masking
        cluster_deletion_mean | S L       | float32 | residues     | mean over a cluster
        extra_msa             | E L       | int64   | restype 0-21 | rows that are no cluster centre
        extra_deletion_matrix | E L       | float32 | residues     | insertions left of the column
        extra_msa_mask        | E L       | float32 | 0 or 1       | 1 for a real cell
        """,
    ),
)
"""As `BATCH`, for a complex (AlphaFold-Multimer); padding is 0. Beside it `gt_features` holds the
whole, uncropped truth, which a permutation of equal chains chooses from."""

SUPERVISED: Final = tuple(
    """all_atom_positions all_atom_mask atom14_gt_exists atom14_gt_positions
    atom14_alt_gt_positions atom14_alt_gt_exists atom14_atom_is_ambiguous rigidgroups_gt_frames
    rigidgroups_gt_exists rigidgroups_group_exists rigidgroups_group_is_ambiguous
    rigidgroups_alt_gt_frames pseudo_beta pseudo_beta_mask backbone_rigid_tensor
    backbone_rigid_mask chi_angles_sin_cos chi_mask""".split()
)
"""Features of `BATCH` that need a true structure, in the table's order."""

_BY_NAME: Final = {feature.name: feature for feature in (*BATCH, *ASSEMBLY_BATCH)}
GT_FEATURES: Final = (
    *(
        _BY_NAME[name]
        for name in (
            *"aatype residue_index asym_id entity_id sym_id".split(),
            *"atom14_atom_exists atom37_atom_exists".split(),
            *"residx_atom14_to_atom37 residx_atom37_to_atom14".split(),
            *SUPERVISED,
        )
    ),
    *_rows(
        "batch",
        """
        torsion_angles_sin_cos     | L torsion7 sincos | float32 | 1      | AF2 SI 1.2.9
        alt_torsion_angles_sin_cos | L torsion7 sincos | float32 | 1      | AF2 SI 1.2.9
        torsion_angles_mask        | L torsion7        | float32 | 0 or 1 | AF2 SI 1.2.9
        """,
    ),
)
"""What `gt_features` of a complex holds: its whole, uncropped truth."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainRecord:
    """One protein chain, all of it: what `featurize` makes and `store` keeps.

    Array fields are the rows of `RECORD` (shapes and dtypes there). A chain
    without a structure has `None` in the two structure arrays. `release_date`
    is ISO or empty, `resolution` in ångström, 0.0 if unknown. `dropped` says in
    words what was left out and why; `confidence` is a prediction's pLDDT of each residue,
    to one decimal, -1 where it has none, and empty of all others; `inputs` maps each file read to its sha256.
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
        """A sequence with no alignment but itself and no templates; `more` are further fields."""
        length, none = len(sequence), np.zeros(0, np.int32)
        return cls(
            chain_id=chain_id,
            sequence=sequence,
            aatype=aatype,
            residue_index=residue_index,
            msa=aatype[None],
            deletion_row=none,
            deletion_column=none,
            deletion_count=none,
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
            raise FeatureError("positions and mask must both be there", item=self.chain_id)
        if len(self.confidence) not in (0, self.num_res):
            raise FeatureError(
                f"{len(self.confidence)} confidences of {self.num_res} residues",
                item=self.chain_id,
            )
        if not self.num_alignments or self.msa.max(initial=0) > GAP or self.aatype.max() > UNKNOWN:
            raise FeatureError("codes out of range, or no MSA row at all", item=self.chain_id)
        return self

    def replace(self, **changes: Any) -> ChainRecord:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def _check(record: ChainRecord, feature: Feature, ok: bool, got: object) -> None:
    if not ok:
        raise FeatureError(
            f"{feature.name} is {got}, but the feature table says "
            f"{feature.dtype}{list(feature.shape(record.sizes))}",
            item=record.chain_id,
        )


def table_markdown(features: tuple[Feature, ...]) -> str:
    """The table as Markdown, as it is in docs/features.md."""
    lines = ["| name | shape | dtype | unit | from |", "| --- | --- | --- | --- | --- |"]
    for f in features:
        shape = ", ".join(f.dims)
        lines.append(f"| `{f.name}` | [{shape}] | {f.dtype} | {f.unit} | {f.source} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("# The features\n")
    print("Printed from `evofeed.features` by `python -m evofeed.features > docs/features.md`.\n")
    print("Dimensions: L residues, N MSA rows, K non-zero deletions, T templates of a chain;")
    print("S clustered MSA rows, E extra MSA rows, Tm templates of a batch. Fixed axes carry")
    print("their size in their name (atom37, torsion7, ...).\n")
    print("## A chain record, as stored\n\n" + table_markdown(RECORD) + "\n")
    print("## A batch, as the model gets it\n")
    print("Rows from `msa_feat` on are made for each recycle and lead with that axis.\n")
    print(table_markdown(BATCH) + "\n")
    print("## A batch of complexes\n")
    print(
        "Rows from `msa` on are made for each recycle. Beside them `gt_features` holds the whole,"
    )
    print("uncropped truth, which a permutation of equal chains chooses from.\n")
    print(table_markdown(ASSEMBLY_BATCH))
