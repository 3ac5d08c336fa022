# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Launches that do several things at once: what does not wait for each other shares a grid."""

import triton
import triton.language as tl

from evofeed.loader.fused.clusters import mask_centres
from evofeed.loader.fused.coordinates import unpack_positions
from evofeed.loader.fused.emit import emit_extra
from evofeed.loader.fused.loads import of_sample, word
from evofeed.loader.fused.rows import place_rows, shuffle_rows
from evofeed.loader.fused.structure import residue_features, template_features, true_structure

_ROWS, _MAX_ROWS, _RECYCLES = of_sample("rows max_rows recycles")
_OUT_RESIDUES, _OUT_CENTRES = of_sample("out_residues out_centres")


@triton.jit
def unpack_and_shuffle(
    words, data, stored, place, deletion_row, order, rank, xyz, known,
    PLACED: tl.constexpr, SHUFFLED: tl.constexpr, UNPACKED: tl.constexpr,
):  # fmt: skip
    """Places of rows, random orders, coordinates. Grid: blocks of the three, one after another."""
    number = tl.program_id(0)
    placing = tl.cdiv(word(words, _ROWS), PLACED)
    shuffling = tl.cdiv(word(words, _MAX_ROWS), SHUFFLED)
    orders = 3 * word(words, _RECYCLES)
    if number < placing:
        place_rows(words, data, stored, place, deletion_row, number, placing, PLACED, 1024)
    elif number < placing + shuffling * orders:
        number -= placing
        which = number // shuffling
        shuffle_rows(words, order, rank, number % shuffling, which % 3, which // 3, SHUFFLED, 128)
    else:
        number -= placing + shuffling * orders
        blocks = tl.cdiv(word(words, _OUT_RESIDUES) + 1, UNPACKED)
        unpack_positions(
            words, data, xyz, known, number % blocks, number // blocks, UNPACKED, 64, 1024
        )


@triton.jit
def mask_and_emit_extra(
    words, data, codes, masked, masked_at, order,
    extra_msa, mask, row_mask, has_deletion, value,
    MASKED: tl.constexpr, EMITTED: tl.constexpr,
):  # fmt: skip
    """Masked centres; extra rows. Grid: centres, then blocks of extra rows; columns; R."""
    number = tl.program_id(0)
    out_centres = word(words, _OUT_CENTRES)
    columns, r = tl.program_id(1), tl.program_id(2)
    if number < out_centres:
        mask_centres(words, data, codes, masked, masked_at, number, columns, r, MASKED)
    else:
        emit_extra(
            words, codes, order, extra_msa, mask, row_mask, has_deletion, value,
            number - out_centres, columns, r, EMITTED, MASKED,
        )  # fmt: skip


@triton.jit
def constant_features(
    words, data, integers, floats, xyz, known,
    aatype, residue_index, seq_mask, target_feat, mask14, mask37, to_atom37, to_atom14,
    seq_length, resolution, is_distillation, use_clamped_fape,
    template_aatype, template_positions, template_known, sum_probs, template_mask,
    template_beta, template_beta_mask, torsion_sin_cos, alt_torsion_sin_cos, torsion_mask,
    positions, mask, exists14, xyz14, alt_xyz14, alt_exists14, ambiguous14,
    frames, frames_known, group_exists, group_ambiguous, alt_frames,
    beta, beta_mask, backbone, backbone_known, chi, chi_mask,
    SUPERVISED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Features of stage `batch`. Grid: blocks of residues; sequence, true structure, templates."""
    block = tl.program_id(0)
    which = tl.program_id(1)
    if which == 0:
        residue_features(
            words, data, integers, floats,
            aatype, residue_index, seq_mask, target_feat, mask14, mask37, to_atom37, to_atom14,
            seq_length, resolution, is_distillation, use_clamped_fape, block, BLOCK,
        )  # fmt: skip
    elif which == 1:
        if SUPERVISED:
            true_structure(
                words, data, integers, floats, xyz, known,
                positions, mask, exists14, xyz14, alt_xyz14, alt_exists14, ambiguous14,
                frames, frames_known, group_exists, group_ambiguous, alt_frames,
                beta, beta_mask, backbone, backbone_known, chi, chi_mask, block, BLOCK,
            )  # fmt: skip
    else:
        template_features(
            words, data, integers, floats, xyz, known,
            template_aatype, template_positions, template_known, sum_probs, template_mask,
            template_beta, template_beta_mask,
            torsion_sin_cos, alt_torsion_sin_cos, torsion_mask, block, which - 2, BLOCK,
        )  # fmt: skip
