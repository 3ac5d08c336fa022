"""The feature table: what a protein chain is made of, here and on the GPU.

Features are data. Parsers fill the rows of `RECORD`, the store derives its
columns from them, the loader sizes its batches by `BATCH`, tests walk over both, and the
docs are printed from them. Names are AlphaFold2's and OpenFold's own.

Dimensions: `L` residues, `N` MSA rows, `K` non-zero deletions, `T` templates of
the chain; `S` clustered MSA rows, `E` extra MSA rows, `Tm` templates in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def table_markdown(features: tuple[Feature, ...]) -> str:
    """The table as Markdown, as it is in docs/features.md."""
    lines = ["| name | shape | dtype | unit | from |", "| --- | --- | --- | --- | --- |"]
    for f in features:
        shape = ", ".join(f.dims)
        lines.append(f"| `{f.name}` | [{shape}] | {f.dtype} | {f.unit} | {f.source} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("# The features\n")
    print(
        "Printed from `evofeed.protein.features` by `python -m evofeed.protein.features > docs/features.md`.\n"
    )
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
