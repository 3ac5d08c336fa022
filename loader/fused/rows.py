# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Stored rows to the rows each recycle keeps: shuffled, gathered, unpacked.

Scratch memory for `R` recycles: `stored i32[N]` stored row of each row, `place i32[R, N]`
where a recycle keeps a row (-1: nowhere), `deletion_row i32[K]`, `order` and `rank
i32[R, 3, n]` permutations and their inverses (distillation, rows, extra rows),
`codes u8[R, n, pitch]` with centres first.
"""

import triton
import triton.language as tl

from evofeed.loader.fused.loads import (
    begin_of,
    bits,
    integer,
    of_recycle,
    of_sample,
    packed_code,
    recycle,
    word,
)
from evofeed.loader.fused.sample_words import SPANS
from evofeed.protein.residues import GAP

_ROWS, _DELETIONS, _RECYCLES, _MAX_ROWS = of_sample("rows deletions recycles max_rows")
_ORDER, _DELETION_ROW, _BY_ROW = of_sample("order_at deletion_row_at deletion_by_row")
_IS_DISTILLATION, _MSA_AT, _MSA_PITCH = of_sample("is_distillation msa_at msa_pitch")
_RESIDUES, _PITCH = of_sample("residues pitch")
_KEPT_ROWS, _DISTILLATION_KEY = of_recycle("rows distillation_key")
_SPANS = tl.constexpr(SPANS)
_GAP = tl.constexpr(GAP)


@triton.jit
def place_rows(
    words, data, stored, place, deletion_row, block, blocks,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Invert the stored order, and name the row of every deletion; one of `blocks` of rows."""
    rows = word(words, _ROWS)
    begin = block * BLOCK
    index = begin + tl.arange(0, BLOCK)
    live = index < rows
    # Columns were checked on the host; a wrong writer's may still be wrong, but kills nothing.
    row = tl.maximum(tl.minimum(integer(data, words, _ORDER, index, live), rows - 1), 0)
    tl.store(stored + row, index, mask=live)
    for r in range(0, word(words, _RECYCLES)):
        tl.store(place + r * rows + index, tl.full([BLOCK], -1, tl.int32), mask=live)
    deletions = word(words, _DELETIONS)
    if word(words, _BY_ROW) != 0:  # a count for each stored row
        before = 0
        for chunk in range(0, begin, CHUNK):
            other = chunk + tl.arange(0, CHUNK)
            before += tl.sum(integer(data, words, _DELETION_ROW, other, other < begin))
        count = integer(data, words, _DELETION_ROW, index, live)
        first = before + tl.cumsum(count, 0) - count
        for number in range(0, tl.max(count)):
            here = (number < count) & (first + number < deletions)
            tl.store(deletion_row + first + number, row, mask=here)
    else:
        for chunk in range(begin, deletions, blocks * BLOCK):
            index = chunk + tl.arange(0, BLOCK)
            live = index < deletions
            row = integer(data, words, _DELETION_ROW, index, live)
            row = tl.maximum(tl.minimum(row, rows - 1), 0)
            tl.store(deletion_row + index, row, mask=live)


@triton.jit
def shuffle_rows(
    words, order, rank, block, purpose, r, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Permutations as the order of random keys; one block of one of 3 purposes of a recycle.

    A key's rank is the number of keys below it. That is quadratic, and still a few
    microseconds: it needs no sort, and nobody waits for a size.
    """
    mine = recycle(words, r) + _DISTILLATION_KEY + 2 * purpose
    key = tl.load(mine).to(tl.uint64, bitcast=True)
    count = tl.load(mine + 1).to(tl.int32)
    begin = block * BLOCK
    if begin < count:
        index = begin + tl.arange(0, BLOCK)
        own = bits(key, index) >> 1
        below = tl.zeros([BLOCK], tl.int32)
        for chunk in range(0, count, CHUNK):
            other = chunk + tl.arange(0, CHUNK)
            theirs = bits(key, other) >> 1
            tie = (theirs[None, :] == own[:, None]) & (other[None, :] < index[:, None])
            less = ((theirs[None, :] < own[:, None]) | tie) & (other < count)[None, :]
            below += tl.sum(less.to(tl.int32), 1)
        at = (r * 3 + purpose) * word(words, _MAX_ROWS)
        tl.store(order + at + below, index, mask=index < count)
        tl.store(rank + at + index, below, mask=index < count)


@triton.jit
def gather_rows(
    words, data, stored, order, place, codes,
    NUM_SPANS: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Codes of the rows a recycle keeps, one byte each. Grid: blocks of rows, R."""
    r = tl.program_id(1)
    mine = recycle(words, r)
    kept_rows = word(mine, _KEPT_ROWS)
    begin = tl.program_id(0) * BLOCK
    if begin < kept_rows:
        number = begin + tl.arange(0, BLOCK)
        live = number < kept_rows
        rows = word(words, _ROWS)
        most = word(words, _MAX_ROWS)
        after_query = live & (number > 0)
        shuffled = tl.load(order + (r * 3 + 1) * most + number - 1, mask=after_query, other=0)
        if word(words, _IS_DISTILLATION) != 0:
            shuffled = tl.load(order + r * 3 * most + shuffled, mask=after_query, other=0)
        kept = tl.where(number > 0, shuffled + 1, 0)
        row = kept
        for span in tl.static_range(NUM_SPANS):
            first = word(mine, _SPANS + span)
            start = word(mine, _SPANS + NUM_SPANS + span)
            row = tl.where(kept >= first, kept - first + start, row)
        tl.store(place + r * rows + row, number, mask=live)
        packed_pitch = word(words, _MSA_PITCH)
        pitch_in = tl.where(packed_pitch > 0, packed_pitch, word(words, _RESIDUES))
        at = tl.load(stored + row, mask=live, other=0).to(tl.int64) * pitch_in
        pitch = word(words, _PITCH)
        residues = word(words, _RESIDUES)
        line = data + begin_of(words, _MSA_AT) + at
        out = codes + (r.to(tl.int64) * most + number) * pitch
        for chunk in range(0, pitch, COLUMNS):
            column = chunk + tl.arange(0, COLUMNS)
            here = live[:, None] & (column < residues)[None, :]
            place_in = column[None, :]
            code = packed_code(line[:, None], place_in, packed_pitch, here)
            code = tl.where((column < residues)[None, :], tl.minimum(code, _GAP), _GAP)
            keep = live[:, None] & (column < pitch)[None, :]
            tl.store(out[:, None] + column[None, :], code.to(tl.uint8), mask=keep)
