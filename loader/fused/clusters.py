# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Masked centres, the nearest centre of every extra row, and sums over clusters.

Scratch memory: `masked` (codes) and `is_masked u8[R, M, pitch]`, `cluster i32[R, n]`, and,
zeroed beforehand, `cluster_size i32[R, M]`, `code_counts i32[R, M, L, 23]`,
`cluster_deletions` and `centre_deletions i32[R, M, L]`, `L` the residues of the batch.
All are integers, so the result does not depend on the order of atomic adds.
"""

import triton
import triton.language as tl

from evofeed.loader.fused.emit import deletion_value
from evofeed.loader.fused.loads import (
    bits,
    load_int,
    recycle,
    recycle_offsets,
    sample_offsets,
    word,
)
from evofeed.protein.residues import GAP, MASK, RESTYPE_NUM

_RESIDUES, _ROWS, _DELETIONS, _MAX_ROWS = sample_offsets("residues rows deletions max_rows")
_PITCH, _CROP_START, _CROP_LENGTH = sample_offsets("pitch crop_start crop_length")
_OUT_RESIDUES, _OUT_CENTRES, _OUT_EXTRA = sample_offsets("out_residues out_centres out_extra")
_SAMPLE, _BATCH, _PROFILE, _MASKED = sample_offsets("sample batch profile_at masked_below")
_UNIFORM, _COLUMN, _SAME = sample_offsets("uniform_below profile_below same_below")
_DELETION_COLUMN, _DELETION_COUNT = sample_offsets("deletion_column_at deletion_count_at")
_CENTRES, _EXTRA, _KEPT_EXTRA = recycle_offsets("centres extra_count kept_extra")
_MASK_KEY, _REPLACEMENT_KEY = recycle_offsets("mask_key replacement_key")
_GAP = tl.constexpr(GAP)
_MASK = tl.constexpr(MASK)
_CODES = tl.constexpr(MASK + 1)
_UNIFORM_CODES = tl.constexpr(RESTYPE_NUM)
_FLUSH = tl.constexpr(252)  # adds that a byte can count


@triton.jit
def mask_centres(words, data, codes, masked, is_masked, row, block, r, BLOCK: tl.constexpr):
    """Masked-MSA of one block of columns of a row of a recycle."""
    recycle_words = recycle(words, r)
    if row < word(recycle_words, _CENTRES):
        column = block * BLOCK + tl.arange(0, BLOCK)
        residues = word(words, _RESIDUES)
        pitch = word(words, _PITCH)
        live = column < residues
        row_codes = codes + (r.to(tl.int64) * word(words, _MAX_ROWS) + row) * pitch
        code = tl.load(row_codes + column, mask=column < pitch, other=_GAP).to(tl.int32)
        index = row * residues + column
        mask_key = tl.load(recycle_words + _MASK_KEY).to(tl.uint64, bitcast=True)
        key = tl.load(recycle_words + _REPLACEMENT_KEY).to(tl.uint64, bitcast=True)
        # Draws reach 2**32 - 1 and thresholds 2**32: compared as i64, not i32.
        chosen = (bits(mask_key, index) >> 32).to(tl.int64) < tl.load(words + _MASKED)
        drawn = bits(key, index)
        kind = (drawn >> 32).to(tl.int64)
        choice = (drawn & 0xFFFFFFFF).to(tl.int64)
        profile_start = column * 22
        total = tl.zeros([BLOCK], tl.int32)
        for c in range(0, 22):
            total += load_int(data, words, _PROFILE, profile_start + c, live)
        target = (choice * total) >> 32
        cumulative = tl.zeros([BLOCK], tl.int32)
        in_column = tl.zeros([BLOCK], tl.int32)
        for c in range(0, 22):
            cumulative += load_int(data, words, _PROFILE, profile_start + c, live)
            in_column += (cumulative <= target).to(tl.int32)
        replaced = tl.where(kind < tl.load(words + _SAME), code, _MASK)
        replaced = tl.where(kind < tl.load(words + _COLUMN), in_column, replaced)
        uniform = ((choice * _UNIFORM_CODES) >> 32).to(tl.int32)
        replaced = tl.where(kind < tl.load(words + _UNIFORM), uniform, replaced)
        replaced = tl.where(chosen & live, replaced, code)
        out = (r.to(tl.int64) * word(words, _OUT_CENTRES) + row) * pitch + column
        tl.store(masked + out, replaced.to(tl.uint8), mask=column < pitch)
        tl.store(is_masked + out, (chosen & live).to(tl.uint8), mask=column < pitch)


@triton.jit
def _mark_gaps(codes4, shift: tl.constexpr):
    """Four codes in a word; gap and [MASK] get a bit that differs between rows and centres."""
    marks = (codes4 + 0x6B6B6B6B) & 0x80808080  # 0x6B is 128 - 21
    return codes4 | (marks >> shift)


@triton.jit
def count_agreements(rows4, centres4, live, is_centre, num_words):
    """Columns, packed four to a word, where rows and centres have the same residue: i32 tile.

    A byte of `x ^ y` is zero where codes are equal, and adding 127 to any other sets
    its high bit.
    """
    agreement = tl.zeros([rows4.shape[0], centres4.shape[0]], tl.int32)
    for group in range(0, num_words, _FLUSH):
        equal = tl.zeros([rows4.shape[0], centres4.shape[0]], tl.uint32)
        for quad in range(group, tl.minimum(group + _FLUSH, num_words)):
            x = _mark_gaps(tl.load(rows4 + quad, mask=live, other=0), 2)
            y = _mark_gaps(tl.load(centres4 + quad, mask=is_centre, other=0), 1)
            same = ((x[:, None] ^ y[None, :]) + 0x7F7F7F7F) & 0x80808080
            equal += (same ^ 0x80808080) >> 7
        equal = (equal & 0x00FF00FF) + ((equal >> 8) & 0x00FF00FF)
        agreement += ((equal & 0xFFFF) + (equal >> 16)).to(tl.int32)
    return agreement


@triton.jit
def cluster_rows(
    words, codes, masked, cluster, cluster_size, code_counts,
    BLOCK: tl.constexpr, CENTRES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Nearest centre (most equal residues, then first) of extra rows. Grid: blocks of rows, R."""
    r = tl.program_id(1)
    recycle_words = recycle(words, r)
    extra = word(recycle_words, _EXTRA)
    begin = tl.program_id(0) * BLOCK
    if begin < extra:
        centres = word(recycle_words, _CENTRES)
        extra_row = begin + tl.arange(0, BLOCK)
        live = extra_row < extra
        pitch = word(words, _PITCH)
        row = r.to(tl.int64) * word(words, _MAX_ROWS) + centres + extra_row
        rows4 = (codes + row * pitch).to(tl.pointer_type(tl.uint32))
        out_centres = word(words, _OUT_CENTRES)
        best_key = tl.full([BLOCK], -1, tl.int64)
        num_words = pitch // 4
        for first in range(0, centres, CENTRES):
            centre = first + tl.arange(0, CENTRES)
            is_centre = centre < centres
            line = r.to(tl.int64) * out_centres + centre
            centres4 = (masked + line * pitch).to(tl.pointer_type(tl.uint32))
            agreement = count_agreements(rows4, centres4, live, is_centre, num_words)
            # The centre's number, counted from the end, breaks ties.
            sort_key = agreement.to(tl.int64) * 0x100000 + (0xFFFFF - centre)[None, :]
            sort_key = tl.where(is_centre[None, :], sort_key, -1)
            best_key = tl.maximum(best_key, tl.max(sort_key, 1))
        nearest = 0xFFFFF - (best_key & 0xFFFFF).to(tl.int32)
        tl.store(cluster + r.to(tl.int64) * word(words, _MAX_ROWS) + extra_row, nearest, mask=live)
        tl.atomic_add(cluster_size + r * out_centres + nearest, 1, mask=live, sem="relaxed")
        out_residues = word(words, _OUT_RESIDUES)
        length = word(words, _CROP_LENGTH)
        line = codes + row * pitch + word(words, _CROP_START)
        first_cell = (r.to(tl.int64) * out_centres + nearest) * out_residues
        for chunk in range(0, length, COLUMNS):
            column = chunk + tl.arange(0, COLUMNS)
            live_cell = live[:, None] & (column < length)[None, :]
            code = tl.load(line[:, None] + column[None, :], mask=live_cell, other=0).to(tl.int32)
            cell = (first_cell[:, None] + column[None, :]) * _CODES + code
            tl.atomic_add(code_counts + cell, 1, mask=live_cell, sem="relaxed")


@triton.jit
def add_deletions(
    words, data, deletion_row, recycle_row, rank, cluster,
    cluster_deletions, centre_deletions, has_deletion, value, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds deletions to clusters, centres and extra rows. Grid: blocks of deletions, R."""
    r = tl.program_id(1)
    recycle_words = recycle(words, r)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = index < word(words, _DELETIONS)
    row = tl.load(deletion_row + index, mask=live, other=0)
    number = tl.load(recycle_row + r * word(words, _ROWS) + row, mask=live, other=-1)
    column = load_int(data, words, _DELETION_COLUMN, index, live) - word(words, _CROP_START)
    live &= (number >= 0) & (column >= 0) & (column < word(words, _CROP_LENGTH))
    count = load_int(data, words, _DELETION_COUNT, index, live)
    centres = word(recycle_words, _CENTRES)
    max_rows = word(words, _MAX_ROWS)
    is_extra = live & (number >= centres)
    extra = number - centres
    centre = tl.load(cluster + r.to(tl.int64) * max_rows + extra, mask=is_extra, other=0)
    centre_row = tl.where(is_extra, centre, number)
    out_residues = word(words, _OUT_RESIDUES)
    cell = (r.to(tl.int64) * word(words, _OUT_CENTRES) + centre_row) * out_residues + column
    tl.atomic_add(cluster_deletions + cell, count, mask=live, sem="relaxed")
    tl.store(centre_deletions + cell, count, mask=live & (number < centres))
    extra_row = tl.load(rank + (r * 3 + 2) * max_rows + extra, mask=is_extra, other=0)
    selected = is_extra & (extra_row < word(recycle_words, _KEPT_EXTRA))
    lead = r.to(tl.int64) * word(words, _BATCH) + word(words, _SAMPLE)
    cell = (lead * word(words, _OUT_EXTRA) + extra_row) * out_residues + column
    tl.store(has_deletion + cell, tl.minimum(count, 1).to(tl.float32), mask=selected)
    tl.store(value + cell, deletion_value(count.to(tl.float32)), mask=selected)
