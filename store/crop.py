"""Fast decoders: a residue window and a set of rows, straight into the caller's buffers.

Compiled, without the GIL, and without trust: every size in the bytes is checked
against the bytes that are there before it is used, so wrong bytes give an error
number, never a crash. What they do not know (compressed columns, rare codecs)
they decline; `evofeed.store.decode` then does it the plain way.
"""

# L residues, N stored MSA rows, R rows taken, a..b the window, W = b - a

from __future__ import annotations

from typing import Any, Final, no_type_check

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]  # comes with numba
from numba import njit, types
from numba.extending import intrinsic

from evofeed.store.layout import COLUMN_NUMBER, HEADER_NBYTES, Codec

OK: Final = 0
DECLINED: Final = 1
CORRUPT: Final = 2
TOO_NARROW: Final = 3
"""A deletion count does not fit the caller's dtype."""
NO_SUCH: Final = 4
"""A wanted row or template is not in the chain, or a template is wanted twice."""

_MSA5, _RAW, _FIXED, _MASK37 = int(Codec.MSA5), int(Codec.RAW), int(Codec.FIXED), int(Codec.MASK37)
_U8, _U16 = int(Codec.UINT8), int(Codec.UINT16)
_COUNTS8, _COUNTS16 = int(Codec.ROW_COUNTS8), int(Codec.ROW_COUNTS16)
_COUNTS32 = int(Codec.ROW_COUNTS32)
_ORDER, _D_ROW = COLUMN_NUMBER["msa_order"], COLUMN_NUMBER["deletion_row"]
_D_COLUMN, _D_COUNT = COLUMN_NUMBER["deletion_column"], COLUMN_NUMBER["deletion_count"]

compiled: Any = njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@intrinsic
@no_type_check
def _load(typingctx, data, at):
    """Eight bytes of a u8 array as u64, at any byte."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.gep(array.data, [args[1]])
        word = builder.bitcast(pointer, context.get_value_type(types.uint64).as_pointer())
        return builder.load(word, align=1)

    return types.uint64(data, types.int64), codegen


@intrinsic
@no_type_check
def _store(typingctx, data, at, word):
    """Write a u64 over eight bytes of a contiguous u8 array, at any byte."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.gep(array.data, [args[1]])
        target = builder.bitcast(pointer, context.get_value_type(types.uint64).as_pointer())
        builder.store(args[2], target, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), codegen


def _has_fast_pdep() -> bool:
    """x86 with BMI2, but not the AMD cores that run it in microcode (before Zen 3)."""
    slow = ("bdver4", "znver1", "znver2")
    return bool(binding.get_host_cpu_features().get("bmi2")) and (
        binding.get_host_cpu_name() not in slow
    )


@intrinsic
@no_type_check
def _pdep(typingctx, word):
    """Eight 5-bit codes of a u64 to eight bytes in one instruction."""

    def codegen(context, builder, signature, args):
        kind = context.get_value_type(types.uint64)
        function = builder.module.declare_intrinsic(
            "llvm.x86.bmi.pdep.64", fnty=ir.FunctionType(kind, [kind, kind])
        )
        return builder.call(function, [args[0], ir.Constant(kind, 0x1F1F1F1F1F1F1F1F)])

    return types.uint64(types.uint64), codegen


@compiled
@no_type_check
def spread_plainly(x):
    """The same in three mask-and-shift steps, for every processor."""
    x = (x & np.uint64(0xFFFFF)) | ((x & np.uint64(0xFFFFF00000)) << np.uint64(12))
    x = (x & np.uint64(0x000003FF000003FF)) | ((x & np.uint64(0x000FFC00000FFC00)) << np.uint64(6))
    return (x & np.uint64(0x001F001F001F001F)) | (
        (x & np.uint64(0x03E003E003E003E0)) << np.uint64(3)
    )


@compiled
@no_type_check
def spread_fast(x):
    """`spread_plainly`, where the processor can."""
    return _pdep(x)


spread: Any = spread_fast if _has_fast_pdep() else spread_plainly


@compiled
@no_type_check
def column_at(span, starts, number):
    """Payload start, size and codec of a column; a negative codec if it is not usable."""
    head = np.int64(starts[number])
    stop = np.int64(starts[number + 1])
    if head < 0 or stop > len(span) or head + HEADER_NBYTES > stop:
        return 0, 0, -CORRUPT
    nbytes = np.int64(_load(span, head + 4) & np.uint64(0xFFFFFFFF))
    if head + HEADER_NBYTES + nbytes > stop:
        return 0, 0, -CORRUPT
    if span[head + 1]:  # compressed
        return 0, 0, -DECLINED
    return head + HEADER_NBYTES, nbytes, np.int64(span[head])


@compiled
@no_type_check
def integer(span, at, width, index):
    """Element `index` of a payload of u8, u16 or i32 integers: one load, no branch."""
    word = _load(span, at + width * index) & (np.uint64(0xFFFFFFFF) >> np.uint64(32 - 8 * width))
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
    """W five-bit codes from bit `bit` of `span` into `out` (flat) from `base`."""
    at = bit >> 3
    shift = np.uint64(bit & 7)
    for group in range(W // 8):
        x = spread(_load(span, at + 5 * group) >> shift)
        _store(out, base + 8 * group, x)
    for j in range(W // 8 * 8, W):
        place = bit + 5 * j
        pair = np.uint64(span[place >> 3]) | np.uint64(span[(place >> 3) + 1]) << np.uint64(8)
        out[base + j] = (pair >> np.uint64(place & 7)) & np.uint64(31)


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
    if nbytes != total * row_nbytes or at + nbytes + 8 > len(span):
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
    out[:] = 0
    for i in range(R):
        row = wanted[i]
        for k in range(first[row], first[row + 1]):
            j = integer(span, column, cw, k) - a
            if 0 <= j < W:
                value = integer(span, count, vw, k)
                if value > limit:
                    return TOO_NARROW
                out[i, j] = value
    return OK


@compiled
@no_type_check
def _bits(word):
    x = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
@no_type_check
def _mask_word(span, at, M, residue):
    low = _load(span, at + 4 * residue) & np.uint64(0xFFFFFFFF)
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
    anchors = np.int64(_load(span, place) & np.uint64(0xFFFFFFFF))
    atoms = np.int64(_load(span, place) >> np.uint64(32))
    exceptions = np.int64(_load(span, place + 8) & np.uint64(0xFFFFFFFF))
    relative = place + 16 + 12 * anchors
    behind = relative + 6 * (atoms - anchors)
    behind += -(behind - place) % 4
    if atoms < anchors or behind + 8 * exceptions != place + size:
        return CORRUPT
    W = out.shape[1]
    slot = np.full(M // L if L else 0, -1, np.int64)
    for i in range(len(chosen)):
        if chosen[i] < 0 or chosen[i] >= len(slot) or slot[chosen[i]] >= 0:
            return NO_SUCH
        slot[chosen[i]] = i
    center = np.zeros((1, 3), np.float32)
    if center_number:
        first, length, codec = column_at(span, starts, center_number)
        if codec < 0:
            return -codec
        if codec != _RAW or length != 12 * (M // L):
            return CORRUPT
        center = span[first : first + length].view(np.float32).reshape(-1, 3)
    mask_out[:] = 0
    out[:] = 0
    anchor_at, atom_at = 0, 0
    for residue in range(M):
        word = _mask_word(span, at, M, residue)
        present = _bits(word)
        if anchor_at + (present > 0) > anchors or atom_at + present > atoms:
            return CORRUPT
        t = residue // L
        j = residue - t * L - a
        if slot[t] >= 0 and 0 <= j < W:
            _residue(
                span,
                word,
                place + 16 + 12 * anchor_at,
                relative + 6 * (atom_at - anchor_at),
                center,
                t,
                mask_out[slot[t], j],
                out[slot[t], j],
            )
        anchor_at += present > 0
        atom_at += present
    if anchor_at != anchors or atom_at != atoms:
        return CORRUPT
    for e in range(exceptions):
        flat = np.int64(_load(span, behind + 4 * e) & np.uint64(0xFFFFFFFF))
        if flat >= M * 111:
            return CORRUPT
        t = flat // (L * 111)
        j = flat % (L * 111) // 111 - a
        if slot[t] >= 0 and 0 <= j < W:
            bits = span[behind + 4 * (exceptions + e) : behind + 4 * (exceptions + e) + 4]
            out[slot[t], j, flat % 111 // 3, flat % 3] = bits.view(np.float32)[0]
    return OK


@compiled
@no_type_check
def _positions_of(mask_number):
    return mask_number + 1  # positions follow their mask in COLUMNS


@compiled
@no_type_check
def _residue(span, word, anchor, relative, center, t, mask_out, out):
    first = True
    x0 = x1 = x2 = np.int64(0)
    k0 = k1 = k2 = np.int64(0)
    while word:
        lowest = word & (~word + np.uint64(1))
        atom = _bits(lowest - np.uint64(1))
        word ^= lowest
        if first:
            x0 = np.int64(np.int32(_load(span, anchor) & np.uint64(0xFFFFFFFF)))
            x1 = np.int64(np.int32(_load(span, anchor) >> np.uint64(32)))
            x2 = np.int64(np.int32(_load(span, anchor + 8) & np.uint64(0xFFFFFFFF)))
            k0, k1, k2 = x0, x1, x2
            first = False
        else:
            packed = _load(span, relative)
            relative += 6
            k0 = x0 + np.int64(np.int16(packed & np.uint64(0xFFFF)))
            k1 = x1 + np.int64(np.int16((packed >> np.uint64(16)) & np.uint64(0xFFFF)))
            k2 = x2 + np.int64(np.int16((packed >> np.uint64(32)) & np.uint64(0xFFFF)))
        mask_out[atom] = 1
        out[atom, 0] = angstroms(k0) - center[t, 0]
        out[atom, 1] = angstroms(k1) - center[t, 1]
        out[atom, 2] = angstroms(k2) - center[t, 2]


@compiled
@no_type_check
def angstroms(k):
    """`f32(k) / f32(1000)`: for |k| < 2^24 the product in f64 rounds to the very same f32.

    No multiple of 1/1000 that small comes closer than 2^-35 of itself to the middle of
    two neighbouring floats, and the product is right to 2^-52. Three times as fast.
    """
    return np.float32(np.float64(k) * 0.001)
