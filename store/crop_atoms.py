"""Atoms of a residue window, from fixed-point columns into the caller's buffers."""

from __future__ import annotations

from typing import Final, no_type_check

import numpy as np

from evofeed.store.crop import CORRUPT, DECLINED, NO_SUCH, OK, column_at
from evofeed.store.layout import Codec
from evofeed.store.words import (
    compiled,
    count_bits,
    load,
    lowest_bit,
    store_atom,
    store_mask,
    store_zeros,
)

_RAW, _FIXED, _MASK37 = int(Codec.RAW), int(Codec.FIXED), int(Codec.MASK37)
_LAST: Final = 36
"""The last atom of a residue: behind it there is no room for the zero that `store_atom` writes."""
NOWHERE: Final = (np.float32(0), np.float32(0), np.float32(0))


@compiled
@no_type_check
def _mask_word(span, at, M, residue):
    low = load(span, at + 4 * residue) & np.uint64(0xFFFFFFFF)
    return low | np.uint64(span[at + 4 * M + residue] & np.uint8(31)) << np.uint64(32)


@compiled
@no_type_check
def atoms_crop(span, starts, mask_number, center_number, M, L, a, chosen, mask_out, out):
    """Atom masks and coordinates of `chosen` templates, window from `a`.

    Args:
        span, starts: the chain's bytes and where its columns begin.
        mask_number: number of the mask column.
        center_number: of the column that was subtracted, f32[T, 3]; 0 for none.
        M: residues in the columns, all templates together.
        L: residues of the chain.
        a: first residue of the window.
        chosen: templates to take, each once; `[0]` for the chain's own structure.
        mask_out: [Tc, W, 37], any dtype.
        out: f32[Tc, W, 37, 3].
    """
    at, nbytes, codec = column_at(span, starts, mask_number)
    if codec < 0:
        return -codec
    if codec != _MASK37:
        return DECLINED
    if nbytes != 5 * M or at + nbytes + 8 > len(span):
        return CORRUPT
    place, size, codec = column_at(span, starts, _positions_of(mask_number))
    if codec < 0:
        return -codec
    if codec != _FIXED:
        return DECLINED
    if size < 16:
        return CORRUPT
    anchors = np.int64(load(span, place) & np.uint64(0xFFFFFFFF))
    atoms = np.int64(load(span, place) >> np.uint64(32))
    exceptions = np.int64(load(span, place + 8) & np.uint64(0xFFFFFFFF))
    relative = place + 16 + 12 * anchors
    behind = relative + 6 * (atoms - anchors)
    behind += -(behind - place) % 4
    if atoms < anchors or behind + 8 * exceptions != place + size or place + size + 8 > len(span):
        return CORRUPT
    W = out.shape[1]
    slot = np.full(M // L if L else 0, -1, np.int64)
    for i in range(len(chosen)):
        if chosen[i] < 0 or chosen[i] >= len(slot) or slot[chosen[i]] >= 0:
            return NO_SUCH
        slot[chosen[i]] = i
    center = np.zeros((0, 3), np.float32)
    if center_number:
        first, length, codec = column_at(span, starts, center_number)
        if codec < 0:
            return -codec
        if codec != _RAW or length != 12 * (M // L):
            return CORRUPT
        center = span[first : first + length].view(np.float32).reshape(-1, 3)
    masks, flat = mask_out.reshape(-1), out.reshape(-1)
    anchor_at, atom_at = 0, 0
    for t in range(M // L if L else 0):
        origin = (center[t, 0], center[t, 1], center[t, 2]) if center_number else NOWHERE
        for residue in range(t * L, (t + 1) * L):
            word = _mask_word(span, at, M, residue)
            present = count_bits(word)
            if anchor_at + (present > 0) > anchors or atom_at + present > atoms:
                return CORRUPT
            j = residue - t * L - a
            if slot[t] >= 0 and 0 <= j < W:
                cell = slot[t] * W + j
                store_mask(masks, 37 * cell, word)
                anchor = place + 16 + 12 * anchor_at
                _residue(
                    span,
                    word,
                    anchor,
                    relative + 6 * (atom_at - anchor_at),
                    origin,
                    flat,
                    111 * cell,
                )
            anchor_at += present > 0
            atom_at += present
    if anchor_at != anchors or atom_at != atoms:
        return CORRUPT
    for e in range(exceptions):
        element = np.int64(load(span, behind + 4 * e) & np.uint64(0xFFFFFFFF))
        if element >= M * 111:
            return CORRUPT
        t = element // (L * 111)
        j = element % (L * 111) // 111 - a
        if slot[t] >= 0 and 0 <= j < W:
            bits = span[behind + 4 * (exceptions + e) : behind + 4 * (exceptions + e) + 4]
            flat[111 * (slot[t] * W + j) + element % 111] = bits.view(np.float32)[0]
    return OK


@compiled
@no_type_check
def _positions_of(mask_number):
    return mask_number + 1  # positions follow their mask in COLUMNS


@compiled
@no_type_check
def _residue(span, word, anchor, relative, center, out, base):
    """The 111 numbers of one residue, zeros where there is no atom, from `base` of flat `out`."""
    store_zeros(out, base, 111)
    if not word:
        return
    first = load(span, anchor)
    k = (
        np.int32(first & np.uint64(0xFFFFFFFF)),
        np.int32(first >> np.uint64(32)),
        np.int32(load(span, anchor + 8) & np.uint64(0xFFFFFFFF)),
    )
    offset = np.uint64(0)  # the anchor is the first atom itself
    while word:
        atom = lowest_bit(word)
        word &= word - np.uint64(1)
        if atom < _LAST:
            store_atom(out, base + 3 * atom, offset, k, center)
        else:
            for axis in range(3):
                moved = k[axis] + np.int16((offset >> np.uint64(16 * axis)) & np.uint64(0xFFFF))
                out[base + 3 * atom + axis] = angstroms(moved) - center[axis]
        offset = load(span, relative)
        relative += 6


@compiled
@no_type_check
def angstroms(k):
    """`f32(k) / f32(1000)`: for |k| < 2^24 the product in f64 rounds to the very same f32.

    No multiple of 1/1000 that small comes closer than 2^-35 of itself to the middle of
    two neighbouring floats, and the product is right to 2^-52. Three times as fast.
    """
    return np.float32(np.float64(k) * 0.001)
