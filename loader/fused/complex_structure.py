# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""A complex's features that are the same in every recycle, and its whole, uncropped truth."""

import triton
import triton.language as tl

from evofeed.loader.fused.complex_loads import entity_of, of_complex, of_entity, value
from evofeed.loader.fused.complex_words import EntityWords
from evofeed.loader.fused.loads import integer, of_sample, packed_code, word
from evofeed.loader.fused.sample_words import Sample
from evofeed.loader.fused.structure import (
    copy_rows,
    emit_atom_masks,
    emit_torsions,
    true_structure,
)
from evofeed.residues import GAP, UNKNOWN

_AATYPE, _RESIDUE_INDEX = of_sample("aatype_at residue_index_at")
_RESOLUTION, _IS_DISTILLATION, _CLAMPED = of_sample("resolution is_distillation use_clamped_fape")
_TEMPLATES = tl.constexpr(len(Sample._fields))
_NUM_RES, _KEPT, _KEPT_AT, _ROWS = of_complex("num_res kept kept_at rows")
_OUT_RESIDUES, _OUT_TEMPLATES, _SAMPLE = of_complex("out_residues out_templates sample")
_TRUTH_AT, _NUM_CHAINS, _CHOSEN = of_complex("truth_at num_chains chosen")
_LENGTH, _OWN_FIRST, _XYZ_AT = of_entity("length own_first xyz_at")
_TEMPLATE_AT, _TEMPLATE_PITCH = of_entity("template_aatype_at template_aatype_pitch")
_SLOTS = tl.constexpr(len(EntityWords._fields))
_UNKNOWN, _GAP = tl.constexpr(UNKNOWN), tl.constexpr(GAP)
_PROFILE_EPS = tl.constexpr(1e-4)


@triton.jit
def _ids(whole, decided, column, live, row, inside, asym, entity, sym):
    num_res = word(whole, _NUM_RES)
    at = decided + column
    tl.store(asym + row, tl.load(at, mask=live, other=0).to(tl.int64), mask=inside)
    number = tl.load(at + num_res, mask=live, other=0)
    tl.store(entity + row, number.to(tl.int64), mask=inside)
    number = tl.load(at + 2 * num_res, mask=live, other=0)
    tl.store(sym + row, number.to(tl.int64), mask=inside)


@triton.jit
def constant_features(
    words, whole, data, decided, counts, integers, floats, xyz, known,
    aatype, residue_index, asym, entity, sym, seq_mask, target_feat, msa_profile,
    mask14, mask37, to_atom37, to_atom14, positions, mask,
    seq_length, num_alignments, num_chains, resolution, is_distillation, clamped,
    template_aatype, template_positions, template_known, template_mask,
    SUPERVISED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Features of stage `batch`. Grid: blocks of kept residues; sequence, templates."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    out_residues = word(whole, _OUT_RESIDUES)
    inside = place < out_residues
    live = place < word(whole, _KEPT)
    column = tl.load(decided + word(whole, _KEPT_AT) + place, mask=live, other=0)
    sample = word(whole, _SAMPLE)
    if tl.program_id(1) == 0:
        row = sample.to(tl.int64) * out_residues + place
        code = integer(data, words, _AATYPE, column, live)
        code = tl.where(live, code, 0)
        tl.store(aatype + row, code.to(tl.int64), mask=inside)
        number = tl.where(live, integer(data, words, _RESIDUE_INDEX, column, live), 0)
        tl.store(residue_index + row, number.to(tl.int64), mask=inside)
        _ids(whole, decided, column, live, row, inside, asym, entity, sym)
        tl.store(seq_mask + row, live.to(tl.float32), mask=inside)
        channel = tl.arange(0, 32)[None, :]
        one_hot = ((code[:, None] == channel) & live[:, None]).to(tl.float32)
        wide = inside[:, None] & (channel < 21)
        tl.store(target_feat + row[:, None] * 21 + channel, one_hot, mask=wide)
        there = live[:, None] & (channel < 22)
        count = tl.load(counts + column[:, None] * 22 + channel, mask=there, other=0)
        rows = word(whole, _ROWS).to(tl.float32) + _PROFILE_EPS
        share = tl.div_rn(count.to(tl.float32), tl.zeros([BLOCK, 32], tl.float32) + rows)
        wide = inside[:, None] & (channel < 22)
        tl.store(msa_profile + row[:, None] * 22 + channel, share, mask=wide)
        emit_atom_masks(
            integers, floats, code, row, inside, live, mask14, mask37, to_atom37, to_atom14
        )
        if SUPERVISED:
            atom = word(whole, _TRUTH_AT) + (column + 1) * 37
            copy_rows(xyz, positions, row, inside, live, atom * 3, 111, 128)
            copy_rows(known, mask, row, inside, live, atom, 37, 64)
        if tl.program_id(0) == 0:
            tl.store(seq_length + sample, word(whole, _KEPT).to(tl.int64))
            tl.store(num_alignments + sample, word(whole, _ROWS).to(tl.int64))
            tl.store(num_chains + sample, word(whole, _NUM_CHAINS).to(tl.int64))
            tl.store(is_distillation + sample, word(words, _IS_DISTILLATION).to(tl.float32))
            one = word(words, _RESOLUTION).to(tl.float32, bitcast=True)
            tl.store(resolution + sample, one)
            one = word(words, _CLAMPED).to(tl.float32, bitcast=True)
            tl.store(clamped + sample, one)
    else:
        slot = tl.program_id(1) - 1
        is_there = slot < word(whole, _CHOSEN)
        out_slot = sample.to(tl.int64) * word(whole, _OUT_TEMPLATES) + slot
        row = out_slot * out_residues + place
        of = entity_of(whole, decided, column, live)
        structure = tl.load(of + _SLOTS + slot, mask=live & is_there, other=0).to(tl.int32)
        here = live & (structure > 0)
        own = tl.load(decided + 3 * word(whole, _NUM_RES) + column, mask=live, other=0)
        local = own - value(of, _OWN_FIRST, live).to(tl.int32)
        length = value(of, _LENGTH, live).to(tl.int32)
        template = tl.load(words + _TEMPLATES + slot, mask=is_there, other=0)
        pitch = value(of, _TEMPLATE_PITCH, live).to(tl.int32)
        line = template * tl.where(pitch > 0, pitch, length)
        codes = data + value(of, _TEMPLATE_AT, live) + line
        code = tl.minimum(packed_code(codes, local, pitch, here), _GAP)
        tl.store(template_aatype + row, tl.where(here, code, 0).to(tl.int64), mask=inside)
        residue = structure * (length + 1) + local + 1
        atom = value(of, _XYZ_AT, live).to(tl.int32) + residue * 37
        copy_rows(xyz, template_positions, row, inside, here, atom * 3, 111, 128)
        copy_rows(known, template_known, row, inside, here, atom, 37, 64)
        if tl.program_id(0) == 0:
            tl.store(template_mask + out_slot, is_there.to(tl.float32))


@triton.jit
def whole_truth(
    words, whole, data, decided, integers, floats, xyz, known,
    aatype, residue_index, asym, entity, sym, mask14, mask37, to_atom37, to_atom14,
    positions, mask, exists14, xyz14, alt_xyz14, alt_exists14, ambiguous14,
    frames, frames_known, group_exists, group_ambiguous, alt_frames,
    beta, beta_mask, backbone, backbone_known, chi, chi_mask,
    sin_cos, alt_sin_cos, torsion_mask, BLOCK: tl.constexpr,
):  # fmt: skip
    """`gt_features` of one complex. Grid: blocks of residues."""
    block = tl.program_id(0)
    row = block * BLOCK + tl.arange(0, BLOCK)
    inside = row < word(whole, _NUM_RES)
    code = integer(data, words, _AATYPE, row, inside)
    tl.store(aatype + row, code.to(tl.int64), mask=inside)
    number = integer(data, words, _RESIDUE_INDEX, row, inside)
    tl.store(residue_index + row, number.to(tl.int64), mask=inside)
    _ids(whole, decided, row, inside, row, inside, asym, entity, sym)
    emit_atom_masks(
        integers, floats, code, row, inside, inside, mask14, mask37, to_atom37, to_atom14
    )
    at = word(whole, _TRUTH_AT)
    true_structure(
        words, data, integers, floats, xyz + at * 3, known + at,
        positions, mask, exists14, xyz14, alt_xyz14, alt_exists14, ambiguous14,
        frames, frames_known, group_exists, group_ambiguous, alt_frames,
        beta, beta_mask, backbone, backbone_known, chi, chi_mask, block, BLOCK,
    )  # fmt: skip
    known_code = tl.maximum(tl.minimum(code, _UNKNOWN), 0)
    emit_torsions(
        xyz + at * 3, known + at, integers, floats, known_code, row * 37, row, inside, inside,
        sin_cos, alt_sin_cos, torsion_mask,
    )  # fmt: skip
