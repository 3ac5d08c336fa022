# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels that share a grid: independent work of one stage in one launch."""

import triton
import triton.language as tl

from evofeed.loader.fused.clusters import mask_centres
from evofeed.loader.fused.coordinates import unpack_positions
from evofeed.loader.fused.emit import emit_extra
from evofeed.loader.fused.loads import sample_offsets, word
from evofeed.loader.fused.rows import index_rows, shuffle_rows
from evofeed.loader.fused.structure import residue_features, template_features, true_structure

_ROWS, _MAX_ROWS, _RECYCLES = sample_offsets("rows max_rows recycles")
_OUT_RESIDUES, _OUT_CENTRES = sample_offsets("out_residues out_centres")


@triton.jit
def unpack_and_shuffle(
    words, data, stored, recycle_row, deletion_row, order, rank, xyz, atom_mask,
    INDEXED: tl.constexpr, SHUFFLED: tl.constexpr, UNPACKED: tl.constexpr,
):  # fmt: skip
    """Row numbers, random orders, coordinates. Grid: blocks of the three, one after another."""
    block = tl.program_id(0)
    index_blocks = tl.cdiv(word(words, _ROWS), INDEXED)
    shuffle_blocks = tl.cdiv(word(words, _MAX_ROWS), SHUFFLED)
    num_orders = 3 * word(words, _RECYCLES)
    if block < index_blocks:
        index_rows(
            words, data, stored, recycle_row, deletion_row, block, index_blocks, INDEXED, 1024
        )
    elif block < index_blocks + shuffle_blocks * num_orders:
        block -= index_blocks
        part = block // shuffle_blocks
        shuffle_rows(words, order, rank, block % shuffle_blocks, part % 3, part // 3, SHUFFLED, 128)
    else:
        block -= index_blocks + shuffle_blocks * num_orders
        blocks = tl.cdiv(word(words, _OUT_RESIDUES) + 1, UNPACKED)
        unpack_positions(
            words, data, xyz, atom_mask, block % blocks, block // blocks, UNPACKED, 64, 1024
        )


@triton.jit
def mask_and_emit_extra(
    words, data, codes, masked, is_masked, order,
    extra_msa, mask, row_mask, has_deletion, value,
    MASKED: tl.constexpr, EMITTED: tl.constexpr,
):  # fmt: skip
    """Masked centres; extra rows. Grid: centres, then blocks of extra rows; columns; R."""
    block = tl.program_id(0)
    out_centres = word(words, _OUT_CENTRES)
    columns, r = tl.program_id(1), tl.program_id(2)
    if block < out_centres:
        mask_centres(words, data, codes, masked, is_masked, block, columns, r, MASKED)
    else:
        emit_extra(
            words, codes, order, extra_msa, mask, row_mask, has_deletion, value,
            block - out_centres, columns, r, EMITTED, MASKED,
        )  # fmt: skip


@triton.jit
def constant_features(
    words, data, integers, floats, xyz, atom_mask,
    aatype, residue_index, seq_mask, target_feat, mask14, mask37, to_atom37, to_atom14,
    seq_length, resolution, is_distillation, use_clamped_fape,
    template_aatype, template_positions, template_atom_mask, sum_probs, template_mask,
    template_beta, template_beta_mask, torsion_sin_cos, alt_torsion_sin_cos, torsion_mask,
    positions, mask, exists14, xyz14, alt_xyz14, alt_exists14, ambiguous14,
    frames, frames_mask, group_exists, group_ambiguous, alt_frames,
    beta, beta_mask, backbone, backbone_mask, chi, chi_mask,
    SUPERVISED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Features of stage `batch`. Grid: blocks of residues; sequence, true structure, templates."""
    block = tl.program_id(0)
    part = tl.program_id(1)
    if part == 0:
        residue_features(
            words, data, integers, floats,
            aatype, residue_index, seq_mask, target_feat, mask14, mask37, to_atom37, to_atom14,
            seq_length, resolution, is_distillation, use_clamped_fape, block, BLOCK,
        )  # fmt: skip
    elif part == 1:
        if SUPERVISED:
            true_structure(
                words, data, integers, floats, xyz, atom_mask,
                positions, mask, exists14, xyz14, alt_xyz14, alt_exists14, ambiguous14,
                frames, frames_mask, group_exists, group_ambiguous, alt_frames,
                beta, beta_mask, backbone, backbone_mask, chi, chi_mask, block, BLOCK,
            )  # fmt: skip
    else:
        template_features(
            words, data, integers, floats, xyz, atom_mask,
            template_aatype, template_positions, template_atom_mask, sum_probs, template_mask,
            template_beta, template_beta_mask,
            torsion_sin_cos, alt_torsion_sin_cos, torsion_mask, block, part - 2, BLOCK,
        )  # fmt: skip
