"""The compiled loop that unpacks MSA5: some rows, a window of residues.

Callers check sizes first. `store/msa_codec.py` does the same in numpy, and tests compare the two.

Functions opt out of type checking: the shape checks of the tests would wrap what numba must read.
"""

# N stored rows, R rows taken, W residues of the window

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
