# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Masked centres, shared clusters, and the features of a recycle of a complex.

An extra row is shared equally by all centres that it agrees with most. Scratch memory:
`agreement i32[R, M, E]`, `best i32[R, E]` and `weight f32[R, E]` (one centre's share), `member
i32[R, M, E]`, `number i32[R, M]` and `size f32[R, M]`. Sums run in the order of the rows, so they
are the same every time.
"""

import triton
import triton.language as tl

from evofeed.loader.fused.clusters import agreement_of, mask_centres
from evofeed.loader.fused.complex_loads import entity_of, is_of_chain, of_complex, own_cells
from evofeed.loader.fused.emit import deletion_value
from evofeed.loader.fused.loads import of_recycle, of_sample, recycle, word
from evofeed.residues import MASK

_MAX_ROWS, _PITCH = of_sample("max_rows pitch")
_CENTRES, _EXTRA = of_recycle("centres extra_count")
_NUM_RES, _KEPT, _KEPT_AT = of_complex("num_res kept kept_at")
_OUT_RESIDUES, _OUT_CENTRES, _OUT_EXTRA = of_complex("out_residues out_centres out_extra")
_SAMPLE, _BATCH, _PADDED, _OWN_WIDTH = of_complex("sample batch padded_centres own_width")
_CODES = tl.constexpr(MASK + 1)
_HAS, _VALUE, _PROFILE, _MEAN, _WIDTH = (tl.constexpr(n) for n in (23, 24, 25, 48, 49))
_AT_ONCE = tl.constexpr(4)


@triton.jit
def mask_and_emit_extra(
    words, whole, decided, counts, codes, masked, masked_at, kept_row, deletions,
    extra_msa, extra_deletions, mask, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Masked centres; extra rows. Grid: centres, then blocks of extra rows; columns; R."""
    number = tl.program_id(0)
    out_centres = word(whole, _OUT_CENTRES)
    columns, r = tl.program_id(1), tl.program_id(2)
    if number < out_centres:
        mask_centres(words, counts, codes, masked, masked_at, number, columns, r, COLUMNS)
    else:
        _emit_extra(
            words, whole, decided, codes, kept_row, deletions, extra_msa, extra_deletions, mask,
            number - out_centres, columns, r, ROWS, COLUMNS,
        )  # fmt: skip


@triton.jit
def _emit_extra(
    words, whole, decided, codes, kept_row, deletions, extra_msa, extra_deletions, mask,
    rows, columns, r, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    mine = recycle(words, r)
    number = rows * ROWS + tl.arange(0, ROWS)
    place = columns * COLUMNS + tl.arange(0, COLUMNS)
    is_kept = place < word(whole, _KEPT)
    column = tl.load(decided + word(whole, _KEPT_AT) + place, mask=is_kept, other=0)
    is_row = number < word(mine, _EXTRA)
    line = r.to(tl.int64) * word(words, _MAX_ROWS) + word(mine, _CENTRES) + number
    live = is_row[:, None] & is_kept[None, :]
    at = (line * word(words, _PITCH))[:, None] + column[None, :]
    code = tl.load(codes + at, mask=live, other=0).to(tl.int64)
    row = tl.load(kept_row + line, mask=is_row, other=0)
    cell = own_cells(whole, decided, row, column, is_kept)
    deletion = tl.load(deletions + cell, mask=live, other=0).to(tl.float32)
    out_extra, out_residues = word(whole, _OUT_EXTRA), word(whole, _OUT_RESIDUES)
    lead = r.to(tl.int64) * word(whole, _BATCH) + word(whole, _SAMPLE)
    out = ((lead * out_extra + number) * out_residues)[:, None] + place[None, :]
    inside = (number < out_extra)[:, None] & (place < out_residues)[None, :]
    tl.store(extra_msa + out, code, mask=inside)
    tl.store(extra_deletions + out, deletion, mask=inside)
    tl.store(mask + out, live.to(tl.float32), mask=inside)


@triton.jit
def agree(
    words, whole, codes, masked, agreement, best, weight,
    BLOCK: tl.constexpr, CENTRES: tl.constexpr,
):  # fmt: skip
    """Each extra row's agreement with every centre, the best, and a share. Grid: rows, R."""
    r = tl.program_id(1)
    mine = recycle(words, r)
    extra = word(mine, _EXTRA)
    begin = tl.program_id(0) * BLOCK
    if begin < extra:
        centres = word(mine, _CENTRES)
        number = begin + tl.arange(0, BLOCK)
        live = number < extra
        pitch = word(words, _PITCH)
        line = r.to(tl.int64) * word(words, _MAX_ROWS) + centres + number
        four_rows = (codes + line * pitch).to(tl.pointer_type(tl.uint32))
        out_centres, out_extra = word(whole, _OUT_CENTRES), word(whole, _OUT_EXTRA)
        most = tl.full([BLOCK], -1, tl.int32)
        ties = tl.zeros([BLOCK], tl.int32)
        for first in range(0, centres, CENTRES):
            centre = first + tl.arange(0, CENTRES)
            is_centre = centre < centres
            of_centre = r.to(tl.int64) * out_centres + centre
            four_centres = (masked + of_centre * pitch).to(tl.pointer_type(tl.uint32))
            found = agreement_of(four_rows, four_centres, live, is_centre, pitch // 4)
            out = (of_centre * out_extra)[None, :] + number[:, None]
            tl.store(agreement + out, found, mask=live[:, None] & is_centre[None, :])
            found = tl.where(is_centre[None, :], found, -1)
            here = tl.max(found, 1)
            count = tl.sum((found == here[:, None]).to(tl.int32), 1)
            ties = tl.where(here > most, count, ties + tl.where(here == most, count, 0))
            most = tl.maximum(most, here)
        ties += tl.where(most == 0, word(whole, _PADDED) - centres, 0)
        at = r * out_extra + number
        tl.store(best + at, most, mask=live)
        one = tl.full([BLOCK], 1.0, tl.float32)
        tl.store(weight + at, tl.div_rn(one, tl.maximum(ties, 1).to(tl.float32)), mask=live)


@triton.jit
def list_members(
    words, whole, agreement, best, weight, member, number, size, BLOCK: tl.constexpr
):  # fmt: skip
    """The extra rows that share in a centre, in order. Grid: centres, R."""
    r = tl.program_id(1)
    mine = recycle(words, r)
    centre = tl.program_id(0)
    if centre < word(mine, _CENTRES):
        extra, out_extra = word(mine, _EXTRA), word(whole, _OUT_EXTRA)
        line = r.to(tl.int64) * word(whole, _OUT_CENTRES) + centre
        count = 0
        total = 0.0
        for begin in range(0, extra, BLOCK):
            row = begin + tl.arange(0, BLOCK)
            live = row < extra
            found = tl.load(agreement + line * out_extra + row, mask=live, other=-1)
            is_member = live & (found == tl.load(best + r * out_extra + row, mask=live, other=-2))
            ones = is_member.to(tl.int32)
            at = count + tl.cumsum(ones, 0) - ones
            tl.store(member + line * out_extra + at, row, mask=is_member)
            share = tl.load(weight + r * out_extra + row, mask=is_member, other=0.0)
            total += tl.sum(share)
            count += tl.sum(ones)
        tl.store(number + line, count)
        tl.store(size + line, total)


@triton.jit
def emit_clusters(
    words, whole, decided, codes, masked, masked_at, kept_row, deletions, weight, member, number,
    size, msa, msa_feat, msa_mask, bert_mask, true_msa, deletion_mean, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The clustered rows' features. Grid: centres, blocks of columns, R."""
    r = tl.program_id(2)
    mine = recycle(words, r)
    row = tl.program_id(0)
    centres = word(mine, _CENTRES)
    out_residues, out_centres = word(whole, _OUT_RESIDUES), word(whole, _OUT_CENTRES)
    out_extra, pitch = word(whole, _OUT_EXTRA), word(words, _PITCH)
    place = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = place < out_residues
    is_kept = place < word(whole, _KEPT)
    live = is_kept & (row < centres)
    column = tl.load(decided + word(whole, _KEPT_AT) + place, mask=is_kept, other=0)
    line = r.to(tl.int64) * word(words, _MAX_ROWS) + row
    centre = r.to(tl.int64) * out_centres + row
    lead = r.to(tl.int64) * word(whole, _BATCH) + word(whole, _SAMPLE)
    out = (lead * out_centres + row) * out_residues + place

    code = tl.load(masked + centre * pitch + column, mask=live, other=0).to(tl.int32)
    true = tl.load(codes + line * pitch + column, mask=live, other=0)
    asked = tl.load(masked_at + centre * pitch + column, mask=live, other=0).to(tl.float32)
    is_centre = row < centres
    merged = tl.load(kept_row + line, mask=is_centre, other=0)
    entity = entity_of(whole, decided, column, is_kept)
    asked = tl.where(is_of_chain(whole, entity, merged, live), asked, 0.0)
    own = tl.load(decided + 3 * word(whole, _NUM_RES) + column, mask=is_kept, other=0)
    width = word(whole, _OWN_WIDTH)
    deletion = tl.load(deletions + merged.to(tl.int64) * width + own, mask=live, other=0)
    tl.store(msa + out, code.to(tl.int64), mask=inside)
    tl.store(true_msa + out, true.to(tl.int64), mask=inside)
    tl.store(msa_mask + out, live.to(tl.float32), mask=inside)
    tl.store(bert_mask + out, asked, mask=inside)

    code_of = tl.arange(0, 32)[None, :]
    shares = tl.zeros([COLUMNS, 32], tl.float32)
    deleted = tl.zeros([COLUMNS], tl.float32)
    members = tl.load(number + centre, mask=is_centre, other=0)
    for first in range(0, members, _AT_ONCE):
        for more in tl.static_range(_AT_ONCE):
            at = first + more
            is_there = at < members
            of = tl.load(member + centre * out_extra + at, mask=is_there, other=0)
            share = tl.load(weight + r * out_extra + of, mask=is_there, other=0.0)
            of_line = r.to(tl.int64) * word(words, _MAX_ROWS) + centres + of
            here = live & is_there
            its = tl.load(codes + of_line * pitch + column, mask=here, other=255).to(tl.int32)
            shares += tl.where(its[:, None] == code_of, share, 0.0)
            its_row = tl.load(kept_row + of_line, mask=is_there, other=0).to(tl.int64)
            deleted += share * tl.load(deletions + its_row * width + own, mask=here, other=0)
    num_res = word(whole, _NUM_RES).to(tl.float32)
    total = tl.load(size + centre, mask=is_centre, other=0.0) * num_res + 1.0
    mean = tl.div_rn(
        deleted * num_res + deletion.to(tl.float32), tl.zeros([COLUMNS], tl.float32) + total
    )
    tl.store(deletion_mean + out, mean, mask=inside)
    feature = msa_feat + out * _WIDTH
    tl.store(feature + _HAS, tl.minimum(deletion, 1).to(tl.float32), mask=inside)
    tl.store(feature + _VALUE, deletion_value(deletion.to(tl.float32)), mask=inside)
    tl.store(feature + _MEAN, deletion_value(mean), mask=inside)
    # Rows that only pad the MSA to its least number are of code 0, and in no profile.
    is_code = (code[:, None] == code_of) & (is_kept & (row < word(whole, _PADDED)))[:, None]
    is_own = (is_code & live[:, None]).to(tl.float32)
    profile = tl.div_rn(shares * num_res + is_own, tl.zeros([COLUMNS, 32], tl.float32) + total)
    is_out = inside[:, None] & (code_of < _CODES)
    channel = feature[:, None] + code_of
    tl.store(channel, is_code.to(tl.float32), mask=is_out)
    tl.store(channel + _PROFILE, profile, mask=is_out)
