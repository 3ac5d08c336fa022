# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Masked centres, the nearest centre of every extra row, and what the clusters add up to.

Scratch memory: `masked` and `asked u8[R, M, pitch]`, `cluster i32[R, n]`, and, zeroed
beforehand, `size i32[R, M]`, `counts i32[R, M, L, 23]`, `deleted i32[R, M, L]` (sums over
a cluster) and `own i32[R, M, L]` (the centre's deletions), `L` the residues of the batch.
All of them are whole numbers, so the order of atomic adds changes nothing.
"""

import triton
import triton.language as tl

from evofeed.loader.fused.emit import deletion_value
from evofeed.loader.fused.loads import bits, integer, of_recycle, of_sample, recycle, word
from evofeed.protein.residues import GAP, MASK, RESTYPE_NUM

_RESIDUES, _ROWS, _DELETIONS, _MAX_ROWS = of_sample("residues rows deletions max_rows")
_PITCH, _CROP_START, _CROP_LENGTH = of_sample("pitch crop_start crop_length")
_OUT_RESIDUES, _OUT_CENTRES, _OUT_EXTRA = of_sample("out_residues out_centres out_extra")
_SAMPLE, _BATCH, _PROFILE = of_sample("sample batch profile_at")
_MASKED, _UNIFORM, _COLUMN, _SAME = of_sample("masked_below uniform_below profile_below same_below")
_DELETION_COLUMN, _DELETION_COUNT = of_sample("deletion_column_at deletion_count_at")
_CENTRES, _EXTRA, _KEPT_EXTRA = of_recycle("centres extra_count kept_extra")
_MASK_KEY, _REPLACEMENT_KEY = of_recycle("mask_key replacement_key")
_GAP = tl.constexpr(GAP)
_MASK = tl.constexpr(MASK)
_CODES = tl.constexpr(MASK + 1)
_UNIFORM_CODES = tl.constexpr(RESTYPE_NUM)
_FLUSH = tl.constexpr(252)  # adds that a byte can count


@triton.jit
def mask_centres(words, data, codes, masked, masked_at, row, block, r, BLOCK: tl.constexpr):
    """Masked-MSA's draws; one block of columns of a row of a recycle."""
    mine = recycle(words, r)
    if row < word(mine, _CENTRES):
        column = block * BLOCK + tl.arange(0, BLOCK)
        residues = word(words, _RESIDUES)
        pitch = word(words, _PITCH)
        live = column < residues
        from_row = codes + (r.to(tl.int64) * word(words, _MAX_ROWS) + row) * pitch
        code = tl.load(from_row + column, mask=column < pitch, other=_GAP).to(tl.int32)
        index = row * residues + column
        mask_key = tl.load(mine + _MASK_KEY).to(tl.uint64, bitcast=True)
        key = tl.load(mine + _REPLACEMENT_KEY).to(tl.uint64, bitcast=True)
        # 2**32 - 1 is the most a threshold can be compared with: they are i64, not i32.
        is_asked = (bits(mask_key, index) >> 32).to(tl.int64) < tl.load(words + _MASKED)
        drawn = bits(key, index)
        kind = (drawn >> 32).to(tl.int64)
        which = (drawn & 0xFFFFFFFF).to(tl.int64)
        at = column * 22
        total = tl.zeros([BLOCK], tl.int32)
        for c in range(0, 22):
            total += integer(data, words, _PROFILE, at + c, live)
        target = (which * total) >> 32
        below = tl.zeros([BLOCK], tl.int32)
        in_column = tl.zeros([BLOCK], tl.int32)
        for c in range(0, 22):
            below += integer(data, words, _PROFILE, at + c, live)
            in_column += (below <= target).to(tl.int32)
        new = tl.where(kind < tl.load(words + _SAME), code, _MASK)
        new = tl.where(kind < tl.load(words + _COLUMN), in_column, new)
        uniform = ((which * _UNIFORM_CODES) >> 32).to(tl.int32)
        new = tl.where(kind < tl.load(words + _UNIFORM), uniform, new)
        new = tl.where(is_asked & live, new, code)
        out = (r.to(tl.int64) * word(words, _OUT_CENTRES) + row) * pitch + column
        tl.store(masked + out, new.to(tl.uint8), mask=column < pitch)
        tl.store(masked_at + out, (is_asked & live).to(tl.uint8), mask=column < pitch)


@triton.jit
def _no_gaps(four, shift: tl.constexpr):
    """Four codes in a word, gap and [MASK] marked by a bit that the other side has not."""
    no_residue = (four + 0x6B6B6B6B) & 0x80808080  # 0x6B is 128 - 21
    return four | (no_residue >> shift)


@triton.jit
def agreement_of(four_rows, four_centres, live, is_centre, quarter):
    """Columns in which rows and centres, four columns a word, have the same residue: i32 tile.

    Four columns are compared at a time: a byte of `x ^ y` is zero where codes are
    equal, and adding 127 to any other sets its high bit.
    """
    agreement = tl.zeros([four_rows.shape[0], four_centres.shape[0]], tl.int32)
    for group in range(0, quarter, _FLUSH):
        equal = tl.zeros([four_rows.shape[0], four_centres.shape[0]], tl.uint32)
        for at in range(group, tl.minimum(group + _FLUSH, quarter)):
            x = _no_gaps(tl.load(four_rows + at, mask=live, other=0), 2)
            y = _no_gaps(tl.load(four_centres + at, mask=is_centre, other=0), 1)
            same = ((x[:, None] ^ y[None, :]) + 0x7F7F7F7F) & 0x80808080
            equal += (same ^ 0x80808080) >> 7
        equal = (equal & 0x00FF00FF) + ((equal >> 8) & 0x00FF00FF)
        agreement += ((equal & 0xFFFF) + (equal >> 16)).to(tl.int32)
    return agreement


@triton.jit
def cluster_rows(
    words, codes, masked, cluster, size, counts,
    BLOCK: tl.constexpr, CENTRES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Each extra row to the first centre with most equal residues. Grid: blocks of rows, R."""
    r = tl.program_id(1)
    mine = recycle(words, r)
    extra = word(mine, _EXTRA)
    begin = tl.program_id(0) * BLOCK
    if begin < extra:
        centres = word(mine, _CENTRES)
        number = begin + tl.arange(0, BLOCK)
        live = number < extra
        pitch = word(words, _PITCH)
        row = r.to(tl.int64) * word(words, _MAX_ROWS) + centres + number
        four_rows = (codes + row * pitch).to(tl.pointer_type(tl.uint32))
        out_centres = word(words, _OUT_CENTRES)
        best = tl.full([BLOCK], -1, tl.int64)
        quarter = pitch // 4
        for first in range(0, centres, CENTRES):
            centre = first + tl.arange(0, CENTRES)
            is_centre = centre < centres
            line = r.to(tl.int64) * out_centres + centre
            four_centres = (masked + line * pitch).to(tl.pointer_type(tl.uint32))
            agreement = agreement_of(four_rows, four_centres, live, is_centre, quarter)
            # The centre's number, counted from the end, breaks ties.
            order = agreement.to(tl.int64) * 0x100000 + (0xFFFFF - centre)[None, :]
            order = tl.where(is_centre[None, :], order, -1)
            best = tl.maximum(best, tl.max(order, 1))
        mine_of = 0xFFFFF - (best & 0xFFFFF).to(tl.int32)
        tl.store(cluster + r.to(tl.int64) * word(words, _MAX_ROWS) + number, mine_of, mask=live)
        tl.atomic_add(size + r * out_centres + mine_of, 1, mask=live, sem="relaxed")
        out_residues = word(words, _OUT_RESIDUES)
        length = word(words, _CROP_LENGTH)
        line = codes + row * pitch + word(words, _CROP_START)
        to = (r.to(tl.int64) * out_centres + mine_of) * out_residues
        for chunk in range(0, length, COLUMNS):
            column = chunk + tl.arange(0, COLUMNS)
            here = live[:, None] & (column < length)[None, :]
            code = tl.load(line[:, None] + column[None, :], mask=here, other=0).to(tl.int32)
            cell = (to[:, None] + column[None, :]) * _CODES + code
            tl.atomic_add(counts + cell, 1, mask=here, sem="relaxed")


@triton.jit
def add_deletions(
    words, data, deletion_row, place, rank, cluster, deleted, own, has_deletion, value,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Deletions to their clusters and their cells. Grid: blocks of deletions, R."""
    r = tl.program_id(1)
    mine = recycle(words, r)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = index < word(words, _DELETIONS)
    row = tl.load(deletion_row + index, mask=live, other=0)
    number = tl.load(place + r * word(words, _ROWS) + row, mask=live, other=-1)
    column = integer(data, words, _DELETION_COLUMN, index, live) - word(words, _CROP_START)
    live &= (number >= 0) & (column >= 0) & (column < word(words, _CROP_LENGTH))
    count = integer(data, words, _DELETION_COUNT, index, live)
    centres = word(mine, _CENTRES)
    most = word(words, _MAX_ROWS)
    is_extra = live & (number >= centres)
    extra = number - centres
    of_cluster = tl.load(cluster + r.to(tl.int64) * most + extra, mask=is_extra, other=0)
    to = tl.where(is_extra, of_cluster, number)
    out_residues = word(words, _OUT_RESIDUES)
    cell = (r.to(tl.int64) * word(words, _OUT_CENTRES) + to) * out_residues + column
    tl.atomic_add(deleted + cell, count, mask=live, sem="relaxed")
    tl.store(own + cell, count, mask=live & (number < centres))
    picked = tl.load(rank + (r * 3 + 2) * most + extra, mask=is_extra, other=0)
    is_picked = is_extra & (picked < word(mine, _KEPT_EXTRA))
    lead = r.to(tl.int64) * word(words, _BATCH) + word(words, _SAMPLE)
    cell = (lead * word(words, _OUT_EXTRA) + picked) * out_residues + column
    tl.store(has_deletion + cell, tl.minimum(count, 1).to(tl.float32), mask=is_picked)
    tl.store(value + cell, deletion_value(count.to(tl.float32)), mask=is_picked)
