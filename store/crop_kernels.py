"""Compiled loops of `store/crop.py`: a window of residues and some rows, out of packed bytes.

The callers check every size before; what can only be seen cell by cell is checked here, and
the answer is False. `store/decode.py` does the same in numpy, and tests compare the two.

The annotations are strings on purpose, and the functions opt out of type checking: that keeps
the shape checks of the tests from wrapping what numba must read.
"""

# N stored rows, R rows taken, L residues, W of them in the window, K deletions, T structures

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

_BLOCK = 64
"""Codes in five words of 64 bits."""


@njit(cache=True, nogil=True)
@no_type_check
def _spread(bits):
    """Eight codes of five bits, from the low 40 bits of a word to a byte each."""
    bits = (bits & np.uint64(0xFFFFF)) | ((bits & np.uint64(0xFFFFF00000)) << np.uint64(12))
    bits = (bits & np.uint64(0x000003FF000003FF)) | (
        (bits & np.uint64(0x000FFC00000FFC00)) << np.uint64(6)
    )
    return (bits & np.uint64(0x001F001F001F001F)) | (
        (bits & np.uint64(0x03E003E003E003E0)) << np.uint64(3)
    )


@njit(cache=True, nogil=True)
@no_type_check
def crop_codes(packed, rows, start, out):
    """Rows of MSA5, u64[N, words], from residue `start` on into u8[R, W]."""
    width, words = out.shape[1], packed.shape[1]
    first, last = start // _BLOCK, (start + width + _BLOCK - 1) // _BLOCK
    row = np.zeros(5 * last, np.uint64)  # the last block may reach beyond the packed row
    codes = np.empty(8 * (last - first), np.uint64)
    letters = codes.view(np.uint8)
    offset = start - _BLOCK * first
    for r in range(len(rows)):
        for w in range(5 * first, min(words, 5 * last)):
            row[w] = packed[rows[r], w]
        for block in range(first, last):
            a, b, c = row[5 * block], row[5 * block + 1], row[5 * block + 2]
            d, e = row[5 * block + 3], row[5 * block + 4]
            at = 8 * (block - first)
            codes[at] = _spread(a)
            codes[at + 1] = _spread((a >> np.uint64(40)) | (b << np.uint64(24)))
            codes[at + 2] = _spread(b >> np.uint64(16))
            codes[at + 3] = _spread((b >> np.uint64(56)) | (c << np.uint64(8)))
            codes[at + 4] = _spread((c >> np.uint64(32)) | (d << np.uint64(32)))
            codes[at + 5] = _spread(d >> np.uint64(8))
            codes[at + 6] = _spread((d >> np.uint64(48)) | (e << np.uint64(16)))
            codes[at + 7] = _spread(e >> np.uint64(24))
        for j in range(width):
            out[r, j] = letters[offset + j]


@njit(cache=True, nogil=True)
@no_type_check
def crop_deletions(starts, columns, counts, rows, length, start, out):
    """Deletions left of each cell, i32[R, W]; False if one is outside the alignment.

    Row r of those that are stored has the deletions `starts[r] .. starts[r + 1]`.
    """
    width = out.shape[1]
    for k in range(len(columns)):
        if columns[k] < 0 or columns[k] >= length:
            return False
    for r in range(len(rows)):
        for j in range(width):
            out[r, j] = 0
        for k in range(starts[rows[r]], starts[rows[r] + 1]):
            j = columns[k] - start
            if 0 <= j < width:
                out[r, j] = counts[k]
    return True


@njit(cache=True, nogil=True)
@no_type_check
def crop_mask(low, high, start, out):
    """MASK37, u32[T, L] and u8[T, L], into u8[T, W, 37]."""
    for t in range(out.shape[0]):
        for w in range(out.shape[1]):
            bits = np.uint64(low[t, start + w]) | (np.uint64(high[t, start + w]) << np.uint64(32))
            for atom in range(37):
                out[t, w, atom] = (bits >> np.uint64(atom)) & np.uint64(1)


@njit(cache=True, nogil=True)
@no_type_check
def crop_positions(low, high, anchors, relative, centers, start, out):
    """FIXED, without its exceptions, into f32[T, W, 37, 3], which is 0; False if sizes differ.

    The masks say which atoms there are; `centers`, f32[T, 3], are subtracted.
    """
    anchor = atom = 0  # before the residue
    for t in range(low.shape[0]):
        for j in range(low.shape[1]):
            bits = np.uint64(low[t, j]) | (np.uint64(high[t, j]) << np.uint64(32))
            if not bits:
                continue
            inside = start <= j < start + out.shape[1]
            if anchor >= len(anchors):
                return False
            number, is_first = 0, True
            while bits:
                if bits & np.uint64(1):
                    if not is_first and atom >= len(relative):
                        return False
                    if inside:
                        for axis in range(3):
                            fixed = anchors[anchor, axis]
                            if not is_first:
                                fixed = np.int32(fixed + relative[atom, axis])
                            value = np.float32(fixed) / np.float32(1000)
                            out[t, j - start, number, axis] = value - centers[t, axis]
                    atom += not is_first
                    is_first = False
                bits >>= np.uint64(1)
                number += 1
            anchor += 1
    return anchor == len(anchors) and atom == len(relative)
