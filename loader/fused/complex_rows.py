# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""A complex's records to its merged MSA, and the rows of it that each recycle keeps.

Scratch memory: `stored`, `place` and `deletion_row` of every member one behind the other (`rows`
describes them; `place` is the row of the merged MSA), `msa u8[rows, pitch]`, and, zeroed
beforehand, `deletions i32[rows, own_width]` and `counts i32[L, 22]`; `kept_row i32[R, n]` and
`codes u8[R, n, pitch]` are the rows of each recycle, centres first.
"""

import triton
import triton.language as tl

from evofeed.loader.fused.complex_loads import entity_of, of_complex, of_entity, of_member, value
from evofeed.loader.fused.complex_words import MemberWords
from evofeed.loader.fused.coordinates import add_exceptions
from evofeed.loader.fused.loads import integer, of_recycle, of_sample, packed_code, recycle, word
from evofeed.loader.fused.stages import unpack_and_shuffle
from evofeed.residues import GAP

_BLOCKS, _STORED_AT, _DELETION_ROW_AT, _XYZ_AT, _OWN_FIRST = of_member(
    "blocks stored_at deletion_row_at xyz_at own_first"
)
_MEMBER = tl.constexpr(len(MemberWords._fields))
_NUM_RES, _PAIRED, _PAIRED_AT, _ENTITIES = of_complex("num_res paired paired_at entities")
_ALL_ROWS, _OWN_WIDTH, _WHOLE_PITCH, _COUNT_PITCH = of_complex("rows own_width pitch count_pitch")
_LENGTH, _ENTITY_OWN, _FIRST_ROW = of_entity("length own_first first_row")
_UNPAIRED, _UNPAIRED_AT = of_entity("unpaired unpaired_at")
_CHAIN_STORED, _CHAIN_AT, _CHAIN_PITCH = of_entity("chain_stored chain_msa_at chain_pitch")
_PAIR_STORED, _PAIR_AT, _PAIR_PITCH = of_entity("pair_stored pair_msa_at pair_pitch")
_DELETIONS, _MAX_ROWS = of_sample("deletions max_rows")
_DELETION_COLUMN, _DELETION_COUNT = of_sample("deletion_column_at deletion_count_at")
(_KEPT_ROWS,) = of_recycle("rows")
_GAP = tl.constexpr(GAP)


@triton.jit
def unpack_members(
    members, data, stored, place, deletion_row, order, rank, xyz, known, STRIDE: tl.constexpr
):  # fmt: skip
    """`unpack_and_shuffle` of every member. Grid: the most blocks of any, members."""
    member = members + tl.program_id(1) * STRIDE
    if tl.program_id(0) < word(member, _BLOCKS):
        at = word(member, _STORED_AT)
        atom = word(member, _XYZ_AT)
        unpack_and_shuffle(
            member + _MEMBER, data, stored + at, place + at,
            deletion_row + word(member, _DELETION_ROW_AT), order, rank, xyz + atom * 3,
            known + atom, 64, 32, 16,
        )  # fmt: skip


@triton.jit
def add_member_exceptions(members, data, xyz, STRIDE: tl.constexpr):
    """`add_exceptions` of every member. Grid: blocks of them, structures, members."""
    member = members + tl.program_id(2) * STRIDE
    add_exceptions(member + _MEMBER, data, xyz + word(member, _XYZ_AT) * 3, 256)


@triton.jit
def merge_rows(
    whole, data, decided, stored, place, msa, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The merged MSA, and the row of it that each record's row is. Grid: rows, columns.

    A query whose species is known is a paired row twice: `place` names either. It has no deletions.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    num_res = word(whole, _NUM_RES)
    inside = column < num_res
    entity = entity_of(whole, decided, column, inside)
    own = tl.load(decided + 3 * num_res + column, mask=inside, other=0)
    local = own - value(entity, _ENTITY_OWN, inside).to(tl.int32)
    all_rows = word(whole, _ALL_ROWS)
    live = (row < all_rows)[:, None] & inside[None, :]
    is_paired = (row < word(whole, _PAIRED))[:, None] & live
    number = tl.load(decided + num_res + column, mask=inside, other=1) - 1
    pair = row[:, None] * word(whole, _ENTITIES) + number[None, :]
    source = tl.load(decided + word(whole, _PAIRED_AT) + pair, mask=is_paired, other=-1)
    count = value(entity, _UNPAIRED, inside).to(tl.int32)
    below = row[:, None] - value(entity, _FIRST_ROW, inside).to(tl.int32)[None, :]
    is_own = live & (below >= 0) & (below < count[None, :])
    unpaired = value(entity, _UNPAIRED_AT, inside)
    source_own = tl.load(decided + unpaired[None, :] + below, mask=is_own, other=-1)
    source = tl.where(is_paired, source, source_own)
    there = source >= 0
    first = tl.where(
        is_paired,
        value(entity, _PAIR_STORED, inside)[None, :],
        value(entity, _CHAIN_STORED, inside)[None, :],
    )
    at = tl.load(stored + first + source, mask=there, other=0).to(tl.int64)
    packed = tl.where(
        is_paired,
        value(entity, _PAIR_PITCH, inside)[None, :],
        value(entity, _CHAIN_PITCH, inside)[None, :],
    ).to(tl.int32)
    begin = tl.where(
        is_paired,
        value(entity, _PAIR_AT, inside)[None, :],
        value(entity, _CHAIN_AT, inside)[None, :],
    )
    length = value(entity, _LENGTH, inside).to(tl.int32)[None, :]
    line = data + begin + at * tl.where(packed > 0, packed, length)
    code = packed_code(line, local[None, :] + row[:, None] * 0, packed, there)
    code = tl.where(there, tl.minimum(code, _GAP), _GAP)
    pitch = word(whole, _WHOLE_PITCH)
    out = row.to(tl.int64)[:, None] * pitch + column[None, :]
    keep = (row < all_rows)[:, None] & (column < pitch)[None, :]
    tl.store(msa + out, code.to(tl.uint8), mask=keep)
    named = there & (local == 0)[None, :]
    tl.store(place + first + source, row[:, None] + column[None, :] * 0, mask=named)


@triton.jit
def place_deletions(
    members, whole, data, deletion_row, place, deletions,
    STRIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Deletions to the merged MSA's rows. Grid: blocks of deletions, members."""
    member = members + tl.program_id(1) * STRIDE
    words = member + _MEMBER
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = index < word(words, _DELETIONS)
    row = tl.load(deletion_row + word(member, _DELETION_ROW_AT) + index, mask=live, other=0)
    merged = tl.load(place + word(member, _STORED_AT) + row, mask=live, other=-1)
    live &= merged >= 0
    column = integer(data, words, _DELETION_COLUMN, index, live) + word(member, _OWN_FIRST)
    count = integer(data, words, _DELETION_COUNT, index, live)
    cell = merged.to(tl.int64) * word(whole, _OWN_WIDTH) + column
    tl.store(deletions + cell, count, mask=live)


@triton.jit
def count_codes(whole, msa, counts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """How many rows have each code in each column. Grid: rows, columns."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(0) * ROWS
    inside = column < word(whole, _NUM_RES)
    pitch = word(whole, _WHOLE_PITCH)
    code_of = tl.arange(0, 32)[None, :]
    found = tl.zeros([COLUMNS, 32], tl.int32)
    first = msa + tl.program_id(0).to(tl.int64) * ROWS * pitch
    for row in range(0, tl.minimum(ROWS, word(whole, _ALL_ROWS) - begin)):
        code = tl.load(first + row * pitch + column, mask=inside, other=255)
        found += (code.to(tl.int32)[:, None] == code_of).to(tl.int32)
    cell = column[:, None] * 22 + code_of
    tl.atomic_add(
        counts + cell, found, mask=inside[:, None] & (code_of < 22) & (found > 0), sem="relaxed"
    )


@triton.jit
def gather_kept(
    words, whole, msa, order, kept_row, codes, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Codes of the rows that each recycle keeps. Grid: rows, columns, R."""
    r = tl.program_id(2)
    number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = number < word(recycle(words, r), _KEPT_ROWS)
    after_query = live & (number > 0)
    at = (r * 3 + 1) * word(whole, _COUNT_PITCH) + number - 1
    row = tl.where(after_query, tl.load(order + at, mask=after_query, other=0) + 1, 0)
    line = r.to(tl.int64) * word(words, _MAX_ROWS) + number
    tl.store(kept_row + line, row, mask=live)
    pitch = word(whole, _WHOLE_PITCH)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = live[:, None] & (column < pitch)[None, :]
    code = tl.load(msa + (row.to(tl.int64) * pitch)[:, None] + column[None, :], mask=here, other=0)
    tl.store(codes + (line * pitch)[:, None] + column[None, :], code, mask=here)
