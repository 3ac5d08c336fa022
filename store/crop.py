"""Fast decoders: a residue window and a set of rows, straight into the caller's buffers.

Compiled, without the GIL, and without trust: every size in the bytes is checked
against the bytes that are there before it is used, so wrong bytes give an error
number, never a crash. What they do not know (compressed columns, rare codecs)
they decline; `evofeed.store.decode` then does it the plain way.
"""

# L residues, N stored MSA rows, R rows taken, a..b the window, W = b - a

from __future__ import annotations

from typing import Final, no_type_check

import numpy as np

from evofeed.store.layout import COLUMN_NUMBER, HEADER_NBYTES, Codec
from evofeed.store.words import BLOCK, compiled, load, spread, store, store_zeros, unpack_block

OK: Final = 0
DECLINED: Final = 1
CORRUPT: Final = 2
TOO_NARROW: Final = 3
"""A deletion count does not fit the caller's dtype."""
NO_SUCH: Final = 4
"""A wanted row or template is not in the chain, or a template is wanted twice."""

_MSA5, _RAW = int(Codec.MSA5), int(Codec.RAW)
_U8, _U16 = int(Codec.UINT8), int(Codec.UINT16)
_COUNTS8, _COUNTS16 = int(Codec.ROW_COUNTS8), int(Codec.ROW_COUNTS16)
_COUNTS32 = int(Codec.ROW_COUNTS32)
_ORDER, _D_ROW = COLUMN_NUMBER["msa_order"], COLUMN_NUMBER["deletion_row"]
_D_COLUMN, _D_COUNT = COLUMN_NUMBER["deletion_column"], COLUMN_NUMBER["deletion_count"]


@compiled
@no_type_check
def column_at(span, starts, number):
    """Payload start, size and codec of a column; a negative codec if it is not usable."""
    head = np.int64(starts[number])
    stop = np.int64(starts[number + 1])
    if head < 0 or stop > len(span) or head + HEADER_NBYTES > stop:
        return 0, 0, -CORRUPT
    nbytes = np.int64(load(span, head + 4) & np.uint64(0xFFFFFFFF))
    if head + HEADER_NBYTES + nbytes > stop:
        return 0, 0, -CORRUPT
    if span[head + 1]:  # compressed
        return 0, 0, -DECLINED
    return head + HEADER_NBYTES, nbytes, np.int64(span[head])


@compiled
@no_type_check
def integer(span, at, width, index):
    """Element `index` of a payload of u8, u16 or i32 integers: one load, no branch."""
    word = load(span, at + width * index) & (np.uint64(0xFFFFFFFF) >> np.uint64(32 - 8 * width))
    return np.int64(np.int32(word))


@compiled
@no_type_check
def width_of(codec):
    """Bytes of one integer; 0 for a codec that holds none."""
    return 1 if codec == _U8 else 2 if codec == _U16 else 4 if codec == _RAW else 0


@compiled
@no_type_check
def stored_rows(span, starts, N, rows, found):
    """Stored row of each wanted original row, into `found`."""
    at, nbytes, codec = column_at(span, starts, _ORDER)
    if codec < 0:
        return -codec
    width = width_of(codec)
    if not width or nbytes != N * width or at + nbytes + 8 > len(span):
        return CORRUPT
    inverse = np.full(N, -1, np.int64)
    for i in range(N):
        original = integer(span, at, width, i)
        if original < 0 or original >= N or inverse[original] >= 0:
            return CORRUPT
        inverse[original] = i
    for i in range(len(rows)):
        if rows[i] < 0 or rows[i] >= N:
            return NO_SUCH
        found[i] = inverse[rows[i]]
    return OK


@compiled
@no_type_check
def unpack_row(span, bit, out, base, W):
    """W five-bit codes from bit `bit` of `span` into `out` (flat) from `base`.

    Blocks as large as fit; the last one begins so that it ends with the row, and writes some
    codes again. `BLOCK` bytes behind the row must be readable.
    """
    if W >= BLOCK:
        for block in range((W - 1) // BLOCK):
            unpack_block(span, bit + 5 * BLOCK * block, out, base + BLOCK * block)
        unpack_block(span, bit + 5 * (W - BLOCK), out, base + W - BLOCK)
    elif W >= 8:
        for group in range((W + 7) // 8):
            j = min(8 * group, W - 8)
            place = bit + 5 * j
            store(out, base + j, spread(load(span, place >> 3) >> np.uint64(place & 7)))
    else:
        for j in range(W):
            place = bit + 5 * j
            out[base + j] = (load(span, place >> 3) >> np.uint64(place & 7)) & np.uint64(31)


@compiled
@no_type_check
def msa_crop(span, starts, number, total, L, a, wanted, out):
    """Rows `wanted` of a MSA5 column of `total` rows, window from `a`, into out u8[R, W]."""
    at, nbytes, codec = column_at(span, starts, number)
    if codec < 0:
        return -codec
    if codec != _MSA5:
        return DECLINED
    row_nbytes = (5 * L + 63) // 64 * 8
    R, W = out.shape
    for i in range(R):
        if wanted[i] < 0 or wanted[i] >= total:
            return NO_SUCH
    # Headers of later columns lie behind either alignment: a block may be read past its end.
    if nbytes != total * row_nbytes or at + nbytes + BLOCK > len(span):
        return CORRUPT
    flat = out.reshape(-1)
    for i in range(R):
        unpack_row(span, 8 * (at + wanted[i] * row_nbytes) + 5 * a, flat, i * W, W)
    return OK


@compiled
@no_type_check
def row_starts(span, starts, N, K, first):
    """First deletion of each stored row, into `first[N + 1]`."""
    at, nbytes, codec = column_at(span, starts, _D_ROW)
    if codec < 0:
        return -codec
    width = 1 if codec == _COUNTS8 else 2 if codec == _COUNTS16 else 4 if codec == _COUNTS32 else 0
    if not width:
        return DECLINED
    if nbytes != N * width or at + nbytes + 8 > len(span):
        return CORRUPT
    total = 0
    for i in range(N):
        first[i] = total
        count = integer(span, at, width, i)
        total += count
        if count < 0 or total > K:
            return CORRUPT
    first[N] = total
    return OK if total == K else CORRUPT


@compiled
@no_type_check
def deletions_crop(span, starts, N, K, a, wanted, limit, out):
    """Deletions left of each cell of the crop, dense, into out[R, W]."""
    first = np.empty(N + 1, np.int64)
    status = row_starts(span, starts, N, K, first)
    if status:
        return status
    column, column_nbytes, column_codec = column_at(span, starts, _D_COLUMN)
    count, count_nbytes, count_codec = column_at(span, starts, _D_COUNT)
    if column_codec < 0 or count_codec < 0:
        return max(-column_codec, -count_codec)
    cw, vw = width_of(column_codec), width_of(count_codec)
    if not cw or not vw or column_nbytes != K * cw or count_nbytes != K * vw:
        return CORRUPT
    if count + count_nbytes + 8 > len(span):
        return CORRUPT
    R, W = out.shape
    flat = out.reshape(-1)
    largest = 0
    for i in range(R):
        row, base = wanted[i], i * W
        store_zeros(flat, base, W)
        for k in range(first[row], first[row + 1] if W else first[row]):
            # Half of them lie outside the window and no processor can guess which: no branch,
            # but the first cell put back as it is.
            j = integer(span, column, cw, k) - a
            inside = (j >= 0) & (j < W)
            value = integer(span, count, vw, k)
            place = base + (j if inside else 0)
            flat[place] = value if inside else flat[place]
            largest = max(largest, value if inside else 0)
    return TOO_NARROW if largest > limit else OK
