# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Row selection of each recycle: stored rows are shuffled, gathered and unpacked.

Scratch memory for `R` recycles: `stored i32[N]` stored row of each row, `recycle_row
i32[R, N]` its row number in a recycle (-1: dropped), `deletion_row i32[K]`, `order` and
`rank i32[R, 3, n]` permutations and their inverses (distillation, rows, extra rows),
`codes u8[R, n, pitch]` with centres first.
"""

import triton
import triton.language as tl

from evofeed.loader.fused.loads import (
    bits,
    column_start,
    load_int,
    packed_code,
    recycle,
    recycle_offsets,
    sample_offsets,
    word,
)
from evofeed.loader.fused.sample_words import SPANS
from evofeed.protein.residues import GAP

_ROWS, _DELETIONS, _RECYCLES, _MAX_ROWS = sample_offsets("rows deletions recycles max_rows")
_ORDER, _DELETION_ROW, _BY_ROW = sample_offsets("order_at deletion_row_at deletion_by_row")
_IS_DISTILLATION, _MSA_AT, _MSA_PITCH = sample_offsets("is_distillation msa_at msa_pitch")
_RESIDUES, _PITCH = sample_offsets("residues pitch")
_RECYCLE_ROWS, _DISTILLATION_KEY = recycle_offsets("rows distillation_key")
_SPANS = tl.constexpr(SPANS)
_GAP = tl.constexpr(GAP)


@triton.jit
def index_rows(
    words, data, stored, recycle_row, deletion_row, block, blocks,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Inverts the stored order and finds the row of every deletion; one of `blocks` of rows."""
    rows = word(words, _ROWS)
    begin = block * BLOCK
    index = begin + tl.arange(0, BLOCK)
    live = index < rows
    # The host checked the columns; an index a faulty writer left wrong must not fault the GPU.
    row = tl.maximum(tl.minimum(load_int(data, words, _ORDER, index, live), rows - 1), 0)
    tl.store(stored + row, index, mask=live)
    for r in range(0, word(words, _RECYCLES)):
        tl.store(recycle_row + r * rows + index, tl.full([BLOCK], -1, tl.int32), mask=live)
    deletions = word(words, _DELETIONS)
    if word(words, _BY_ROW) != 0:  # a count for each stored row
        before = 0
        for chunk in range(0, begin, CHUNK):
            earlier = chunk + tl.arange(0, CHUNK)
            before += tl.sum(load_int(data, words, _DELETION_ROW, earlier, earlier < begin))
        count = load_int(data, words, _DELETION_ROW, index, live)
        first = before + tl.cumsum(count, 0) - count
        for number in range(0, tl.max(count)):
            store_mask = (number < count) & (first + number < deletions)
            tl.store(deletion_row + first + number, row, mask=store_mask)
    else:
        for chunk in range(begin, deletions, blocks * BLOCK):
            index = chunk + tl.arange(0, BLOCK)
            live = index < deletions
            row = load_int(data, words, _DELETION_ROW, index, live)
            row = tl.maximum(tl.minimum(row, rows - 1), 0)
            tl.store(deletion_row + index, row, mask=live)


@triton.jit
def shuffle_rows(
    words, order, rank, block, purpose, r, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Permutations as the order of random keys; one block of one of 3 purposes of a recycle.

    A key's rank is the number of keys below it. That is quadratic but takes a few
    microseconds, without a sort and without sending a size to the host.
    """
    key_and_count = recycle(words, r) + _DISTILLATION_KEY + 2 * purpose
    key = tl.load(key_and_count).to(tl.uint64, bitcast=True)
    count = tl.load(key_and_count + 1).to(tl.int32)
    begin = block * BLOCK
    if begin < count:
        index = begin + tl.arange(0, BLOCK)
        keys = bits(key, index) >> 1
        below = tl.zeros([BLOCK], tl.int32)
        for chunk in range(0, count, CHUNK):
            other = chunk + tl.arange(0, CHUNK)
            other_keys = bits(key, other) >> 1
            tie = (other_keys[None, :] == keys[:, None]) & (other[None, :] < index[:, None])
            less = ((other_keys[None, :] < keys[:, None]) | tie) & (other < count)[None, :]
            below += tl.sum(less.to(tl.int32), 1)
        start = (r * 3 + purpose) * word(words, _MAX_ROWS)
        tl.store(order + start + below, index, mask=index < count)
        tl.store(rank + start + index, below, mask=index < count)


@triton.jit
def gather_rows(
    words, data, stored, order, recycle_row, codes,
    NUM_SPANS: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Codes of the selected rows of a recycle, one byte each. Grid: blocks of rows, R."""
    r = tl.program_id(1)
    recycle_words = recycle(words, r)
    num_rows = word(recycle_words, _RECYCLE_ROWS)
    begin = tl.program_id(0) * BLOCK
    if begin < num_rows:
        number = begin + tl.arange(0, BLOCK)
        live = number < num_rows
        rows = word(words, _ROWS)
        max_rows = word(words, _MAX_ROWS)
        after_query = live & (number > 0)
        shuffled = tl.load(order + (r * 3 + 1) * max_rows + number - 1, mask=after_query, other=0)
        if word(words, _IS_DISTILLATION) != 0:
            shuffled = tl.load(order + r * 3 * max_rows + shuffled, mask=after_query, other=0)
        selected = tl.where(number > 0, shuffled + 1, 0)
        row = selected
        for span in tl.static_range(NUM_SPANS):
            first = word(recycle_words, _SPANS + span)
            start = word(recycle_words, _SPANS + NUM_SPANS + span)
            row = tl.where(selected >= first, selected - first + start, row)
        tl.store(recycle_row + r * rows + row, number, mask=live)
        packed_pitch = word(words, _MSA_PITCH)
        pitch_in = tl.where(packed_pitch > 0, packed_pitch, word(words, _RESIDUES))
        stored_row = tl.load(stored + row, mask=live, other=0).to(tl.int64)
        pitch = word(words, _PITCH)
        residues = word(words, _RESIDUES)
        line = data + column_start(words, _MSA_AT) + stored_row * pitch_in
        out = codes + (r.to(tl.int64) * max_rows + number) * pitch
        for chunk in range(0, pitch, COLUMNS):
            column = chunk + tl.arange(0, COLUMNS)
            load_mask = live[:, None] & (column < residues)[None, :]
            code = packed_code(line[:, None], column[None, :], packed_pitch, load_mask)
            code = tl.where((column < residues)[None, :], tl.minimum(code, _GAP), _GAP)
            store_mask = live[:, None] & (column < pitch)[None, :]
            tl.store(out[:, None] + column[None, :], code.to(tl.uint8), mask=store_mask)
